// Package othertrainers knows the keys of Hugging Face's Trainer, TRL, LLaMA-Factory, Axolotl and verl, and the key of
// a run file of Millrace for each. The list is data: keys.yaml. Errors of run files, the verb convert and a page of the
// docs are made from it.
//
//   - [Lookup] finds a key of a file, [LookupEntry] one of an entry of its datasets, [For] the keys that one here has.
//   - [Sections] is the whole list, for the docs.
package othertrainers

import (
	_ "embed"
	"fmt"
	"strings"
	"sync"

	"github.com/goccy/go-yaml"
)

// Row says the same of some keys. Either Use or Drop is set.
type Row struct {
	Keys []string `yaml:"keys"` // a * at the end stands for anything
	Use  string   `yaml:"use"`  // the key of a run file that does the same; a dot goes into a mapping
	Note string   `yaml:"note"` // how its value comes about
	Drop string   `yaml:"drop"` // why there is no such key

	Changes bool `yaml:"changes"` // of Drop: without the key the result of a training is another one
	Refuse  bool `yaml:"refuse"`  // of Drop: a file with the key asks for a training that Millrace does not have
	Mostly  bool `yaml:"mostly"`  // of Drop: a file with the key does so with some values, such as stage: dpo
}

// Advice says what to do with a key.
func (r Row) Advice() string {
	switch {
	case r.Refuse || r.Mostly:
		return "no key asks for that, and without it all parameters learn to predict the next token: " + r.Drop
	case r.Changes:
		return "leave it out, which changes the result: " + r.Drop
	case r.Drop != "":
		return "leave it out: " + r.Drop
	case r.Note != "":
		return fmt.Sprintf("use %s (%s)", r.Use, r.Note)
	}
	return "use " + r.Use
}

// Section is the rows of a subject.
type Section struct {
	Title   string `yaml:"title"`
	Entries bool   `yaml:"entries"` // the keys are those of entries of datasets
	Rows    []Row  `yaml:"rows"`
}

//go:embed keys.yaml
var source []byte

// Sections is the list, in the order of its file.
var Sections = sync.OnceValue(func() (all []Section) {
	if err := yaml.UnmarshalWithOptions(source, &all, yaml.Strict()); err != nil {
		panic(err) // the file above is wrong
	}
	return all
})

// Lookup finds a key of another trainer's file.
func Lookup(key string) (Row, bool) { return find(key, false) }

// LookupEntry finds a key of an entry of another trainer's data sets.
func LookupEntry(key string) (Row, bool) { return find(key, true) }

// For lists the keys of other trainers' files that do the same as a key of a run file, in the order of the list.
func For(use string) (keys []string) {
	for _, s := range Sections() {
		for _, r := range s.Rows {
			if r.Use == use && !s.Entries {
				keys = append(keys, r.Keys...)
			}
		}
	}
	return keys
}

// find prefers a name to a pattern, and a long pattern to a short one.
func find(key string, entries bool) (found Row, ok bool) {
	longest := -1
	for _, s := range Sections() {
		if s.Entries != entries {
			continue
		}
		for _, r := range s.Rows {
			for _, name := range r.Keys {
				if name == key {
					return r, true
				}
				start, isPattern := strings.CutSuffix(name, "*")
				if isPattern && strings.HasPrefix(key, start) && len(start) > longest {
					found, ok, longest = r, true, len(start)
				}
			}
		}
	}
	return found, ok
}
