package data

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/hf/hub"
)

// splitName matches the names of splits. Other forms that the library datasets accepts, such as train[:10%], are
// refused.
var splitName = regexp.MustCompile(`^\w+([.-]\w+)*$`)

// hubKeys returns what is wrong with the keys for the hub's data sets.
func (s Source) hubKeys() error {
	switch {
	case s.Split != "" && strings.ContainsAny(s.Split, "[]%:"):
		return s.fail("split is %q: name a whole split, and take a part of it with max_samples", s.Split)
	case strings.Contains(s.Split, "+"):
		return s.fail("split is %q: make an entry of each", s.Split)
	case s.Split != "" && !splitName.MatchString(s.Split):
		return s.fail("split is %q, which is no name", s.Split)
	case s.Glob != "" && s.Name+s.Split != "":
		return s.fail("glob says which files, and so do name and split: remove one")
	}
	return nil
}

// local reports whether Path is a path of this machine, there or missing, and not a hub id.
func (s Source) local() bool {
	if _, err := os.Stat(s.Path); !errors.Is(err, fs.ErrNotExist) {
		return true // there, or hidden from us
	}
	_, isID := hub.Parse(hub.Dataset, s.Path)
	// data/train.jsonl could be an id, and is a typing error.
	ending := unpacked(s.Path)
	return !isID || isJSON(s.Path) || isParquet(s.Path) || ending == ".txt" || ending == ".md" || slices.Contains(foreign, ending)
}

// HubID is the id, ORG/NAME, of a data set of the hub; "" for a path of this machine.
func (s Source) HubID() string {
	if s.local() {
		return ""
	}
	repo, _ := hub.Parse(hub.Dataset, s.Path)
	return repo.ID
}

// checkLocal refuses keys that only data sets of the hub have.
func (s Source) checkLocal() error {
	if s.Split == "" && s.Revision == "" {
		return nil
	}
	if _, err := os.Stat(s.Path); err == nil {
		return s.fail("split and revision are for data sets of the hub, and this is a path of this machine: remove them")
	}
	return s.fail("there is no such path, and it is not a hub id (ORG/NAME), as split and revision need")
}

// fetch brings the files of a hub's data set into the cache, and returns them and their commit, "" if it
// is one of a conversion. folder is a directory in it, or "".
func (s Source) fetch(ctx context.Context, folder string, o Options) (paths []string, commit string, err error) {
	if s.Type == "" {
		return nil, "", s.fail("there is no such path; if it is a data set of the hub, type is missing: use %s", typeNames)
	}
	repo, _ := hub.Parse(hub.Dataset, s.Path)
	if s.Revision != "" {
		asked, ok := hub.Parse(hub.Dataset, repo.ID+"@"+s.Revision)
		if !ok {
			return nil, "", s.fail("revision is %q: name a branch, a tag or a commit", s.Revision)
		}
		if strings.Contains(s.Path, "@") && asked != repo {
			return nil, "", s.fail("path and revision both name a revision: remove one")
		}
		repo = asked
	}
	snapshot, err := o.Hub.Open(ctx, repo)
	var files []hub.File
	if err == nil {
		snapshot, files, err = s.choose(ctx, o.Hub, snapshot, folder)
	}
	if err == nil {
		err = snapshot.Fetch(ctx, files...)
	}
	switch {
	case ctx.Err() != nil:
		return nil, "", ctx.Err()
	case err != nil && snapshot == nil: // nothing is known of it
		alike := ""
		if hub.IsAbsent(err) && repo.Revision == hub.Main {
			if ids := o.Hub.Similar(ctx, repo); len(ids) > 0 {
				alike = "; there is " + strings.Join(ids, ", ")
			}
		}
		return nil, "", fmt.Errorf("dataset %s: there is no such path, and it cannot be downloaded: %w%s", s.Path, err, alike)
	case err != nil:
		return nil, "", fmt.Errorf("dataset %s: %w", s.Path, err)
	}
	for _, f := range files {
		paths = append(paths, snapshot.Path(f))
	}
	o.Note(fmt.Sprintf("dataset %s: %s at commit %s", s.Path, countFiles(files), snapshot.Commit))
	if snapshot.Repo == repo {
		commit = snapshot.Commit
	}
	return paths, commit, nil
}

func countFiles(files []hub.File) string {
	if len(files) == 1 {
		return files[0].Name
	}
	return fmt.Sprintf("%d files, %s to %s,", len(files), files[0].Name, files[len(files)-1].Name)
}

// converted is the branch on which the hub keeps Parquet files of data sets that have others.
const converted = "refs/convert/parquet"

// choose is the files of an entry, in this commit or in the one of the branch with conversions.
func (s Source) choose(ctx context.Context, h *hub.Hub, snapshot *hub.Snapshot, folder string) (*hub.Snapshot, []hub.File, error) {
	var names []string
	for _, f := range snapshot.Files {
		names = append(names, f.Name)
	}
	slices.Sort(names) // what another program has left in the cache comes by directories
	if s.Glob != "" {
		chosen, err := matchingNames(names, []string{s.Glob})
		if err == nil && len(chosen) == 0 {
			err = fmt.Errorf("no file matches glob %q; it has %s", s.Glob, someOf(names))
		}
		if err == nil {
			err = checkEndings(chosen)
		}
		return snapshot, filesOf(snapshot, chosen), err
	}
	var card []cardConfig
	if readme, ok := snapshot.Find("README.md"); ok {
		if readme.Size > maxSmallBytes {
			return snapshot, nil, fmt.Errorf("its README.md has %d bytes: name files with glob", readme.Size)
		}
		if err := snapshot.Fetch(ctx, readme); err != nil {
			return nil, nil, err
		}
		doc, err := readSmall(snapshot.Path(readme))
		if err != nil {
			return nil, nil, err
		}
		if card, err = readCard(doc); err != nil {
			return snapshot, nil, fmt.Errorf("its README.md: %w: name files with glob", err)
		}
	}
	if folder != "" {
		card = []cardConfig{{name: defaultSubset, dir: folder}}
	}
	subsets, err := subsetsOf(names, card)
	if err != nil {
		return snapshot, nil, err
	}
	var files []string
	ending := ""
	part, err := chooseSplit(subsets, s.Name, s.Split)
	if err == nil {
		if files, ending = rowFiles(part.files); len(files) > 0 && !slices.Contains(foreign, ending) {
			return snapshot, filesOf(snapshot, files), checkComplete(snapshot, files)
		}
	}
	// Files that cannot be read, or a script that would make them. Only a script knows its splits.
	if _, ending := rowFiles(allFiles(subsets)); err != nil && ending != "" && !slices.Contains(foreign, ending) {
		return snapshot, nil, err
	}
	// Of CSV the conversion knows separators and columns that the card names; without one it is read as it is.
	asItIs := err == nil && isSeparated(ending)
	problem := "it has no .parquet, .json, .jsonl or .txt files"
	if ending != "" {
		problem = fmt.Sprintf("its files are %s, which is not read here", ending)
	}
	if snapshot.Repo.Revision != hub.Main || folder != "" {
		if asItIs {
			return snapshot, filesOf(snapshot, files), checkComplete(snapshot, files)
		}
		return snapshot, nil, fmt.Errorf("%s: name others with glob", problem)
	}
	repo := snapshot.Repo
	repo.Revision = converted
	parquet, openErr := h.Open(ctx, repo)
	switch {
	case hub.IsAbsent(openErr) && asItIs:
		return snapshot, filesOf(snapshot, files), checkComplete(snapshot, files)
	case hub.IsAbsent(openErr):
		return snapshot, nil, fmt.Errorf("%s, and the hub has not converted it to Parquet: convert it, and name the files with path", problem)
	case openErr != nil:
		return snapshot, nil, fmt.Errorf("%s, and the hub's conversion to Parquet cannot be had: %w", problem, openErr)
	}
	names = nil
	for _, f := range parquet.Files {
		names = append(names, f.Name)
	}
	part, err = chooseSplit(convertedSubsets(names, card), s.Name, s.Split)
	if err == nil {
		err = checkComplete(parquet, part.files)
	}
	return parquet, filesOf(parquet, part.files), err
}

func chooseSplit(subsets []subset, name, splitName string) (split, error) {
	s, err := chooseSubset(subsets, name)
	if err != nil {
		return split{}, err
	}
	return s.choose(splitName)
}

func allFiles(subsets []subset) (files []string) {
	for _, s := range subsets {
		for _, part := range s.splits {
			files = append(files, part.files...)
		}
	}
	return files
}

func filesOf(snapshot *hub.Snapshot, names []string) []hub.File {
	byName := make(map[string]hub.File, len(snapshot.Files))
	for _, f := range snapshot.Files {
		byName[f.Name] = f
	}
	var files []hub.File
	for _, name := range names {
		files = append(files, byName[name])
	}
	return files
}

// numbered is the end of a name that says which of how many it is.
var numbered = regexp.MustCompile(`^(.*)-[0-9]{5}-of-([0-9]{5})[^/]*$`)

// checkComplete refuses files of a split in a cache that another program has filled if others may be missing:
// offline, only the card and files that say how many there are tell that these are all.
func checkComplete(snapshot *hub.Snapshot, names []string) error {
	if err := checkShards(names); err != nil || !snapshot.Partial {
		return err
	}
	_, hasCard := snapshot.Find("README.md")
	if hasCard && !slices.ContainsFunc(names, func(name string) bool { return !numbered.MatchString(name) }) {
		return nil
	}
	var present []string
	for _, f := range snapshot.Files {
		present = append(present, f.Name)
	}
	return fmt.Errorf("of its files the cache has %s, and whether these are all is not known offline: unset HF_HUB_OFFLINE for one run, or name the files with glob",
		someOf(present))
}

// checkShards refuses a split that lacks files by the names of the others.
func checkShards(names []string) error {
	count := map[string]int{}
	for _, name := range names {
		m := numbered.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		count[m[1]+"-of-"+m[2]]++
	}
	for _, name := range names {
		if m := numbered.FindStringSubmatch(name); m != nil {
			if all, err := strconv.Atoi(m[2]); err == nil && count[m[1]+"-of-"+m[2]] < all {
				return fmt.Errorf("there are %d of %d files %s-...: download the others", count[m[1]+"-of-"+m[2]], all, path.Base(m[1]))
			}
		}
	}
	return nil
}
