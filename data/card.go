package data

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// cardConfig is one entry of `configs` in the YAML head of a data set's README.md, its card. Source: "Configure your
// data set" in the hub's documentation.
type cardConfig struct {
	name      string
	isDefault bool
	dir       string      // data_dir: where its files are
	splits    []cardSplit // nil: by the names of files
}

// cardSplit is a split and the patterns of its files.
type cardSplit struct {
	name     string
	patterns []string
}

// maxCardBytes bounds the part of a card that is parsed; data sets with hundreds of languages have some 100 kB.
const maxCardBytes = 1 << 20

// readCard reads the configs of a README.md; none if it has none.
func readCard(readme []byte) ([]cardConfig, error) {
	part := configsPart(readme)
	if part == nil {
		return nil, nil
	}
	if err := checkCost(part); err != nil {
		return nil, err
	}
	var head struct {
		Configs []struct {
			Name      string `yaml:"config_name"`
			Default   bool   `yaml:"default"`
			Dir       string `yaml:"data_dir"`
			DataFiles any    `yaml:"data_files"`
		} `yaml:"configs"`
	}
	if err := unmarshalYAML(part, &head); err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		return nil, fmt.Errorf("configs: %s", first)
	}
	var all []cardConfig
	for i, c := range head.Configs {
		if c.Name == "" {
			return nil, fmt.Errorf("configs: entry %d has no config_name", i)
		}
		splits, err := cardSplits(c.DataFiles)
		if err != nil {
			return nil, fmt.Errorf("configs: %s: %w", shown(c.Name), err)
		}
		all = append(all, cardConfig{c.Name, c.Default, strings.Trim(strings.TrimPrefix(c.Dir, "./"), "/"), splits})
	}
	return all, nil
}

// unmarshalYAML makes a panic of the library an error: some tags are enough for one.
func unmarshalYAML(doc []byte, out any) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("not YAML that can be read: %v", p)
		}
	}()
	return yaml.Unmarshal(doc, out)
}

// configsPart cuts the top-level key configs out of the YAML head, which is between two lines of dashes. The other keys
// do not concern us, and may be in any state.
func configsPart(readme []byte) []byte {
	readme = bytes.ReplaceAll(bytes.TrimPrefix(readme, byteOrderMark), []byte("\r\n"), []byte("\n"))
	rest, ok := bytes.CutPrefix(readme, []byte("---\n"))
	if !ok {
		return nil
	}
	var part []byte
	for line := range bytes.Lines(rest) {
		switch {
		case bytes.HasPrefix(line, []byte("---")):
			return part
		case bytes.HasPrefix(line, []byte("configs:")):
			part = bytes.Clone(line)
		case part != nil && (len(bytes.TrimSpace(line)) == 0 || line[0] == ' ' || line[0] == '-' || line[0] == '#'):
			part = append(part, line...)
		case part != nil:
			return part
		}
	}
	return part
}

// maxMarks bounds each of YAML's marks in a card, as the parser's time grows with the square of some: a megabyte of
// [] takes it minutes. Cards with thousands of subsets have some 10,000 colons.
const maxMarks = 20_000

// checkCost refuses YAML that would make the parser recurse, expand or run without bounds: a card comes from a
// stranger.
func checkCost(part []byte) error {
	if len(part) > maxCardBytes {
		return fmt.Errorf("configs has more than %d bytes", maxCardBytes)
	}
	const deepest = 40
	depth, dashes := 0, 0
	var marks [256]int
	for i, c := range part {
		if strings.IndexByte("[{:!*&|>%?\"'", c) >= 0 {
			if marks[c]++; marks[c] > maxMarks {
				return fmt.Errorf("configs has more than %d times %q", maxMarks, c)
			}
		}
		switch c {
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		case '-', '?', ':':
			dashes++
		case '\n':
			dashes = 0
		case '&', '*':
			// An anchor or an alias begins a word; a pattern's star stands in or ends one, or is quoted.
			if i > 0 && bytes.IndexByte([]byte(" \t\n[{,"), part[i-1]) >= 0 && i+1 < len(part) && isWord(part[i+1]) {
				return errors.New("configs has anchors or aliases of YAML")
			}
		}
		if depth > deepest || dashes > 1000 {
			return errors.New("configs is nested too deep")
		}
	}
	return nil
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// trainSplit is the split of files that are said to be of none.
const trainSplit = "train"

// cardSplits reads data_files: a pattern or a list of them, a list of objects with split and path, or an object from
// splits to patterns.
func cardSplits(v any) ([]cardSplit, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case string:
		return []cardSplit{{trainSplit, []string{v}}}, nil
	case map[string]any:
		var all []cardSplit
		for _, name := range slices.Sorted(maps.Keys(v)) {
			patterns, err := textList(v[name])
			if err != nil {
				return nil, err
			}
			all = append(all, cardSplit{name, patterns})
		}
		return all, nil
	case []any:
		if patterns, err := textList(v); err == nil {
			return []cardSplit{{trainSplit, patterns}}, nil
		}
		var all []cardSplit
		for _, item := range v {
			entry, _ := item.(map[string]any)
			name, ok := entry["split"].(string)
			patterns, err := textList(entry["path"])
			if !ok || err != nil {
				return nil, errors.New("an entry of data_files has no split and path")
			}
			all = append(all, cardSplit{name, patterns})
		}
		return all, nil
	}
	return nil, errors.New("data_files is neither a pattern nor a list")
}

// textList is a text, or a list of them.
func textList(v any) ([]string, error) {
	if s, ok := v.(string); ok {
		return []string{s}, nil
	}
	list, ok := v.([]any)
	if !ok {
		return nil, errors.New("a path of data_files is not a text")
	}
	var all []string
	for _, item := range list {
		s, ok := item.(string)
		if !ok {
			return nil, errors.New("a path of data_files is not a text")
		}
		all = append(all, s)
	}
	return all, nil
}
