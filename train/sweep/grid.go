package sweep

import (
	"fmt"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"
)

// Key is a key of a run file with the values that it has in turn.
type Key struct {
	Name   string
	Values []string // YAML
}

// Run is one combination of values.
type Run struct {
	Name   string   // of its directory
	Values []string // by key
}

// MostRuns bounds the runs of a sweep: more are a slip of the keyboard.
const MostRuns = 1000

// Parse divides settings key=value into those with one value and the keys with several, which commas divide. A comma in
// quotes, brackets or braces divides nothing, so that a list is one value: adam_betas=[0.9, 0.95],[0.9, 0.99].
func Parse(settings []string) (fixed []string, keys []Key, err error) {
	for _, setting := range settings {
		name, text, _ := strings.Cut(setting, "=")
		values := split(text)
		if len(values) == 1 {
			fixed = append(fixed, setting)
			continue
		}
		for i, v := range values {
			if v == "" {
				return nil, nil, fmt.Errorf("%s: value %d of %d is empty: remove a comma, or put a value with commas in quotes or "+
					"brackets", setting, i+1, len(values))
			}
			if slices.ContainsFunc(values[:i], func(w string) bool { return unquoted(w) == unquoted(v) }) {
				return nil, nil, fmt.Errorf("%s: the value %s is there twice: remove one", setting, v)
			}
		}
		if slices.ContainsFunc(keys, func(k Key) bool { return k.Name == name }) {
			return nil, nil, fmt.Errorf("%s: %s has several values twice: write them once", setting, name)
		}
		keys = append(keys, Key{name, values})
	}
	return fixed, keys, nil
}

// split divides a text at the commas that are outside of quotes, brackets and braces.
func split(text string) (values []string) {
	depth, quote, begin := 0, byte(0), 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quote == '"' && c == '\\':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case (c == '"' || c == '\'') && strings.TrimLeft(text[begin:i], " [{") == "" || depth > 0 && (c == '"' || c == '\''):
			quote = c
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth--
		case c == ',' && depth <= 0:
			values = append(values, strings.TrimSpace(text[begin:i]))
			begin = i + 1
		}
	}
	return append(values, strings.TrimSpace(text[begin:]))
}

// Runs makes a run of each combination, the last key changing first. The error says that there are too many.
func Runs(keys []Key) ([]Run, error) {
	n := 1
	for _, k := range keys {
		if n *= len(k.Values); n > MostRuns {
			return nil, fmt.Errorf("these are more than %d runs: name fewer values", MostRuns)
		}
	}
	runs := []Run{{}}
	for _, k := range keys {
		var more []Run
		for _, r := range runs {
			for _, v := range k.Values {
				name := strings.TrimPrefix(r.Name+","+k.Name+"="+safe(v), ",")
				more = append(more, Run{name, append(slices.Clone(r.Values), v)})
			}
		}
		runs = more
	}
	for i := range runs {
		if name := runs[i].Name; len(name) > mostName {
			runs[i].Name = name[:mostName-len("-00000000")] + "-" + sum(name)
		}
	}
	return runs, nil
}

// Settings are the settings of a run, for a run file.
func (r *Run) Settings(keys []Key) (settings []string) {
	for i, k := range keys {
		settings = append(settings, k.Name+"="+r.Values[i])
	}
	return settings
}

const (
	mostName  = 160 // bytes: file systems take 255
	mostValue = 40  // of a value in it
)

// safe is a value in a name of a directory: letters, digits and a few signs. One that is something else, or long, has
// a sum of the value at its end, so that two of them never share a name.
func safe(value string) string {
	plain := unquoted(value)
	name := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune("._+-", r) {
			return r
		}
		return '-'
	}, plain)
	if name == plain && len(name) <= mostValue {
		return name
	}
	return strings.Trim(name[:min(len(name), mostValue)], "-") + "-" + sum(value)
}

// unquoted is a value without the quotes around it.
func unquoted(value string) string {
	if n := len(value); n > 1 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
		return value[1 : n-1]
	}
	return value
}

func sum(text string) string { return fmt.Sprintf("%08x", uint32(xxh3.HashString(text))) }
