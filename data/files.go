package data

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// packed are the endings of compressed files.
var packed = []string{".gz", ".zst", ".zstd"}

// endings returns what says how a file is read, in lower case: .jsonl, or .jsonl.gz.
func endings(name string) string {
	name = strings.ToLower(filepath.Base(name))
	ext := path.Ext(name)
	if slices.Contains(packed, ext) {
		return path.Ext(strings.TrimSuffix(name, ext)) + ext
	}
	return ext
}

// unpacked is the ending without that of a compression.
func unpacked(name string) string {
	e := endings(name)
	for _, p := range packed {
		if rest, ok := strings.CutSuffix(e, p); ok {
			return rest
		}
	}
	return e
}

func isJSON(name string) bool {
	return slices.Contains([]string{".jsonl", ".ndjson", ".json"}, unpacked(name))
}

func isParquet(name string) bool { return endings(name) == ".parquet" }

// files returns the files of a source in the order in which they are read.
func (s Source) files() ([]string, error) {
	info, err := os.Stat(s.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && strings.ContainsAny(s.Path, "*?["):
		if s.Glob != "" {
			return nil, s.fail("path is a pattern, so glob cannot be one too")
		}
		return s.matching(splitPattern(s.Path))
	case errors.Is(err, fs.ErrNotExist) && !strings.ContainsAny(s.Path, `/\.`):
		return nil, s.fail("there is no such file or directory; a data set of the hub is named ORG/NAME")
	case errors.Is(err, fs.ErrNotExist) && endings(s.Path) == "" && looksLikeSubset(s.Path):
		return nil, s.fail("there is no such file or directory; a data set of the hub is named ORG/NAME, and a subset of it by name")
	case errors.Is(err, fs.ErrNotExist):
		return nil, s.fail("there is no such file or directory; check the path")
	case err != nil:
		return nil, fmt.Errorf("dataset: %w", err)
	case !info.IsDir() && s.Glob != "":
		return nil, s.fail("glob is for directories, and this is a file")
	case !info.IsDir():
		return []string{s.Path}, nil
	case s.Glob == "":
		return s.allRows()
	}
	return s.matching(s.Path, s.Glob)
}

// outside is a line about the files that are links out of the directory that the source names; "" if none are. They are
// read, as people keep large files elsewhere; but one may be of a directory that was downloaded.
func (s Source) outside(files []string) string {
	dir := s.Path
	switch info, err := os.Stat(dir); {
	case err == nil && !info.IsDir():
		return "" // the user names the file
	case err != nil && strings.ContainsAny(dir, "*?["):
		dir, _ = splitPattern(dir)
	}
	first, n := "", 0
	for _, name := range files {
		if err := insideOf(dir, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			if n++; n == 1 {
				first = name
			}
		}
	}
	switch n {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("dataset %s: %s leads out of the directory, and is read", s.Path, shown(first))
	}
	return fmt.Sprintf("dataset %s: %d files lead out of the directory, and are read; the first: %s",
		s.Path, n, shown(first))
}

// looksLikeSubset tells a path that may be meant as ORG/NAME/SUBSET.
func looksLikeSubset(path string) bool {
	org, subset, _ := strings.Cut(path, "/")
	return org != "" && org[0] != '.' && strings.Count(subset, "/") == 1 && !strings.HasSuffix(subset, "/")
}

// splitPattern cuts a path before the first part that is a pattern.
func splitPattern(name string) (dir, pattern string) {
	parts := strings.Split(filepath.ToSlash(name), "/")
	n := slices.IndexFunc(parts, func(p string) bool { return strings.ContainsAny(p, "*?[") })
	dir = strings.Join(parts[:n], "/")
	switch {
	case n == 0:
		dir = "."
	case dir == "":
		dir = "/"
	}
	return filepath.FromSlash(dir), strings.Join(parts[n:], "/")
}

// savedFiles have no rows: datasets writes them next to its Arrow files.
var savedFiles = []string{"state.json", "dataset_dict.json"}

// allRows are the files of a directory that hold rows or text by their ending.
func (s Source) allRows() ([]string, error) {
	entries, err := os.ReadDir(s.Path)
	if err != nil {
		return nil, s.fail("%v", err)
	}
	isSaved := slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == "dataset_dict.json" || unpacked(e.Name()) == ".arrow" })
	var names []string
	for _, e := range entries {
		name := e.Name()
		hasRows := isJSON(name) || isSeparated(name) || isParquet(name) || unpacked(name) == ".txt"
		if !e.IsDir() && name != registryName && hasRows && !(isSaved && slices.Contains(savedFiles, name)) {
			names = append(names, filepath.Join(s.Path, name))
		}
	}
	if len(names) == 0 && isSaved {
		return nil, s.fail("the directory was written by save_to_disk of datasets, or is its cache, and Arrow files are not read: load it with " +
			"datasets.load_from_disk, write it with to_parquet or to_json, and name that file")
	}
	if len(names) == 0 {
		return nil, s.fail(`the directory has no .json, .jsonl, .ndjson, .csv, .tsv, .parquet or .txt file: name others with a glob, such as "**/*.md"`)
	}
	return names, nil
}

// matching are the files below a directory whose path in it matches a pattern.
func (s Source) matching(dir, glob string) ([]string, error) {
	pattern := strings.Split(glob, "/")
	for _, p := range pattern {
		if _, err := path.Match(p, ""); err != nil {
			return nil, s.fail("glob %q: %v", glob, err)
		}
	}
	var names []string
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(dir, name)
		if err != nil || entry.IsDir() {
			return err
		}
		if matchGlob(pattern, strings.Split(filepath.ToSlash(relative), "/")) {
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("dataset %s: %w", s.Path, err)
	}
	if len(names) == 0 {
		return nil, s.fail("no file matches glob %q; check the pattern, and the directory", glob)
	}
	slices.Sort(names)
	return names, nil
}

// matchGlob matches the parts of a path against those of a pattern. Each ** is tried with as few directories as
// possible, and only the last one is ever reconsidered, so the time is the product of the lengths at most.
func matchGlob(pattern, parts []string) bool {
	p, n := 0, 0
	star, from := -1, 0 // the last ** and the part after those that it covers
	for n < len(parts) {
		if p < len(pattern) && pattern[p] == "**" {
			star, from = p, n
			p++
			continue
		}
		if p < len(pattern) {
			if ok, _ := path.Match(pattern[p], parts[n]); ok {
				p++
				n++
				continue
			}
		}
		if star < 0 {
			return false
		}
		from++
		p, n = star+1, from
	}
	for p < len(pattern) && pattern[p] == "**" {
		p++
	}
	return p == len(pattern)
}
