package data

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// files returns the files of a source in the order in which they are read.
func (s Source) files() ([]string, error) {
	info, err := os.Stat(s.Path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("dataset: %w", err)
	case !info.IsDir() && s.Glob != "":
		return nil, fmt.Errorf("dataset %s: glob is for directories, and this is a file", s.Path)
	case !info.IsDir():
		return []string{s.Path}, nil
	case s.Glob == "":
		return nil, fmt.Errorf(`dataset %s: a directory needs a glob, such as "**/*.txt"`, s.Path)
	}
	pattern := strings.Split(s.Glob, "/")
	for _, p := range pattern {
		if _, err := path.Match(p, ""); err != nil {
			return nil, fmt.Errorf("dataset %s: glob %q: %w", s.Path, s.Glob, err)
		}
	}
	var names []string
	err = filepath.WalkDir(s.Path, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(s.Path, name)
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
		return nil, fmt.Errorf("dataset %s: no file matches glob %q", s.Path, s.Glob)
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
