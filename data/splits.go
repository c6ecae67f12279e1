package data

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// subset is a configuration of a hub's data set, and split a part of it. Files are paths in its repository.
type subset struct {
	name      string
	isDefault bool
	splits    []split
}

type split struct {
	name  string
	files []string
}

// defaultSubset is the name of the only one where a data set does not name any.
const defaultSubset = "default"

// subsetsOf puts the files of a repository, whose names are sorted, into subsets and splits: as its card says, else
// by their names. The rules are those of the library datasets (data_files.py).
func subsetsOf(names []string, card []cardConfig) ([]subset, error) {
	if len(card) == 0 {
		card = []cardConfig{{name: defaultSubset}}
	}
	var all []subset
	for _, c := range card {
		s := subset{name: c.name, isDefault: c.isDefault || c.name == defaultSubset || len(card) == 1}
		inside := belowFolder(names, c.dir)
		if c.splits == nil {
			s.splits = splitsByName(inside)
		}
		for _, part := range c.splits {
			files, err := matchingNames(inside, part.patterns)
			if err != nil {
				return nil, fmt.Errorf("the README's %s: %s: %w", shown(c.name), shown(part.name), err)
			}
			s.splits = append(s.splits, split{part.name, files})
		}
		for _, part := range s.splits {
			for i, name := range part.files {
				part.files[i] = path.Join(c.dir, name)
			}
		}
		all = append(all, s)
	}
	return all, nil
}

// belowFolder are the names in a directory, without it.
func belowFolder(names []string, dir string) []string {
	if dir == "" || dir == "." {
		return names
	}
	var inside []string
	for _, name := range names {
		if rest, ok := strings.CutPrefix(name, dir+"/"); ok {
			inside = append(inside, rest)
		}
	}
	return inside
}

// matchingNames are the names, which are sorted, that patterns match, those of the first pattern first.
func matchingNames(names, patterns []string) ([]string, error) {
	var all []string
	seen := map[string]bool{}
	for _, p := range patterns {
		if strings.Contains(p, "://") {
			return nil, fmt.Errorf("its files are elsewhere (%.200q): download them, and name them with path", p)
		}
		p = strings.ReplaceAll(strings.TrimPrefix(strings.TrimPrefix(p, "./"), "/"), "[!", "[^")
		parts := strings.Split(p, "/")
		for _, part := range parts {
			if _, err := path.Match(part, ""); err != nil {
				return nil, fmt.Errorf("pattern %q: %w", p, err)
			}
		}
		// Cards with thousands of subsets have patterns for each, among tens of thousands of files: few are looked at.
		literal := p
		if i := strings.IndexAny(p, `*?[\`); i >= 0 {
			literal = strings.TrimSuffix(p[:i], "/") // after which ** may match nothing
		}
		from, _ := slices.BinarySearch(names, literal)
		for _, name := range names[from:] {
			if !strings.HasPrefix(name, literal) {
				break
			}
			if !seen[name] && (name == p || matchGlob(parts, strings.Split(name, "/"))) {
				seen[name] = true
				all = append(all, name)
			}
		}
	}
	return all, nil
}

// shard is a file that says its split and number, as those that the hub's tools write.
var shard = regexp.MustCompile(`^data/(\w+(?:\.\w+)*)-[0-9]{5}-of-[0-9]{5}[^/]*\.[^/]*$`)

// splitWords are the names of splits in the names of files and directories.
var splitWords = []struct {
	split string
	words []string
}{
	{trainSplit, []string{"train", "training"}},
	{"validation", []string{"validation", "valid", "dev", "val"}},
	{"test", []string{"test", "testing", "eval", "evaluation"}},
}

// notData are files that describe others.
var notData = []string{"README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json"}

// splitsByName sorts files into splits: by data/SPLIT-00000-of-00001; else by a directory that has a split's word in
// its name; else by the file's name; else all are for training.
func splitsByName(names []string) []split {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		hidden := slices.ContainsFunc(strings.Split(name, "/"), func(p string) bool {
			return strings.HasPrefix(p, ".") || strings.HasPrefix(p, "__")
		})
		return hidden || slices.Contains(notData, path.Base(name))
	})
	shards := map[string][]string{}
	for _, name := range names {
		if m := shard.FindStringSubmatch(name); m != nil {
			shards[m[1]] = append(shards[m[1]], name)
		}
	}
	var all []split
	for _, name := range slices.SortedFunc(maps.Keys(shards), compareSplits) {
		all = append(all, split{name, shards[name]})
	}
	if all != nil {
		return all
	}
	for _, parts := range []func(string) []string{
		func(name string) []string { p := strings.Split(name, "/"); return p[:len(p)-1] },
		func(name string) []string { return []string{path.Base(name)} },
	} {
		for _, s := range splitWords {
			var files []string
			for _, name := range names {
				if slices.ContainsFunc(parts(name), func(p string) bool { return hasWord(p, s.words) }) {
					files = append(files, name)
				}
			}
			if files != nil {
				all = append(all, split{s.split, files})
			}
		}
		if all != nil {
			return all
		}
	}
	return []split{{trainSplit, names}}
}

// compareSplits puts train first, then validation and test.
func compareSplits(a, b string) int {
	rank := func(name string) int {
		for i, s := range splitWords {
			if s.split == name {
				return i
			}
		}
		return len(splitWords)
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
}

// hasWord reports whether one of the words stands in a name by itself: between its ends, punctuation and digits.
func hasWord(name string, words []string) bool {
	for _, w := range strings.FieldsFunc(name, func(c rune) bool { return strings.ContainsRune("-._ 0123456789", c) }) {
		if slices.Contains(words, w) {
			return true
		}
	}
	return false
}

// chooseSubset is the subset that an entry asks for.
func chooseSubset(all []subset, name string) (*subset, error) {
	var names []string
	var isDefault *subset
	for i := range all {
		s := &all[i]
		if s.name == name {
			return s, nil
		}
		if s.isDefault && isDefault == nil {
			isDefault = s
		}
		names = append(names, s.name)
	}
	switch {
	case name == "" && isDefault != nil:
		return isDefault, nil
	case name == "":
		return nil, fmt.Errorf("it has the subsets %s: choose one with name", someOf(names))
	}
	return nil, fmt.Errorf("it has no subset %q; it has %s", name, someOf(nearestFirst(name, names)))
}

// choose is the split that an entry asks for: without a name it is train, or the only one.
func (s *subset) choose(name string) (split, error) {
	if name == "" && len(s.splits) == 1 {
		return s.splits[0], nil
	}
	want := cmp.Or(name, trainSplit)
	var names []string
	for _, part := range s.splits {
		if part.name == want {
			return part, nil
		}
		names = append(names, part.name)
	}
	switch {
	case slices.Contains(names, partialPrefix+want):
		return split{}, fmt.Errorf("the hub has converted the first 5 GB of split %s only: take them with split: %s%s, or name files with glob",
			want, partialPrefix, want)
	case name == "":
		return split{}, fmt.Errorf("subset %s has the splits %s: choose one with split", shown(s.name), someOf(names))
	}
	return split{}, fmt.Errorf("subset %s has no split %q; it has %s", shown(s.name), name, someOf(nearestFirst(name, names)))
}

// foreign are the endings of data that are not read from the hub, or only where it has not converted them.
var foreign = []string{".csv", ".tsv", ".arrow", ".tar", ".zip", ".xml", ".h5", ".hdf5", ".npz", ".lance",
	".xlsx", ".pkl", ".bz2", ".xz", ".7z"}

// rowFiles returns the files of a split that hold its rows: the files with the most frequent ending, as a directory may
// also have notes. ending is that ending, "" without such files.
func rowFiles(names []string) (files []string, ending string) {
	count := map[string]int{}
	for _, name := range names {
		if e := unpacked(name); isJSON(name) || isParquet(name) || e == ".txt" || slices.Contains(foreign, e) {
			count[e]++
		}
	}
	preferred := []string{".csv", ".json", ".jsonl", ".parquet"}
	for e, n := range count {
		rank, best := slices.Index(preferred, e), slices.Index(preferred, ending)
		if cmp.Or(cmp.Compare(n, count[ending]), cmp.Compare(rank, best), cmp.Compare(e, ending)) > 0 {
			ending = e
		}
	}
	for _, name := range names {
		if ending != "" && unpacked(name) == ending {
			files = append(files, name)
		}
	}
	return files, ending
}

// partialPrefix begins the directory of a split of which the hub has converted a part.
const partialPrefix = "partial-"

// convertedSubsets sorts the files of the branch that the hub makes of all data sets: SUBSET/SPLIT/0000.parquet. The
// card says which subset is the default.
func convertedSubsets(names []string, card []cardConfig) []subset {
	var all []subset
	for _, name := range names {
		parts := strings.Split(name, "/")
		if len(parts) != 3 || !isParquet(name) {
			continue
		}
		i := slices.IndexFunc(all, func(s subset) bool { return s.name == parts[0] })
		if i < 0 {
			i = len(all)
			all = append(all, subset{name: parts[0], isDefault: parts[0] == defaultSubset})
		}
		s := &all[i]
		j := slices.IndexFunc(s.splits, func(p split) bool { return p.name == parts[1] })
		if j < 0 {
			j = len(s.splits)
			s.splits = append(s.splits, split{name: parts[1]})
		}
		s.splits[j].files = append(s.splits[j].files, name)
	}
	for i := range all {
		s := &all[i]
		isCards := slices.ContainsFunc(card, func(c cardConfig) bool { return c.isDefault && c.name == s.name })
		s.isDefault = s.isDefault || len(all) == 1 || isCards
		slices.SortFunc(s.splits, func(a, b split) int { return compareSplits(a.name, b.name) })
	}
	return all
}
