package data

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/data/template"
)

// What becomes of a row that cannot be used.
const (
	RefuseBadRows = "refuse" // the run ends with the place of the row
	SkipBadRows   = "skip"   // it is left out and counted
)

// DropTools is Source.Tools of rows whose tools shall not be rendered, as for a chat template that knows no tools.
const DropTools = "drop"

// Source is one entry of `datasets` in run.yaml.
//
// The ending of a file decides how it is read: .jsonl, .ndjson and .json as JSON rows, one object per line or one array
// of objects; .parquet as its rows; any other file is one document of type text. Each except Parquet may be compressed,
// with .gz or .zst after the ending.
type Source struct {
	// Path is a file, a pattern such as data/*.jsonl, or a directory. If there is no such path, it is a data set of the
	// hub, ORG/NAME. With Name and without Type it is a dataset_info.json or its directory.
	Path string `yaml:"path" json:"path"`
	Type Type   `yaml:"type,omitempty" json:"type"`
	// Name is an entry of LLaMA-Factory's registry, dataset_info.json, which then says the type and the keys; or the
	// subset of a data set of the hub.
	Name string `yaml:"name,omitempty" json:"name,omitempty"`
	// Split is a part of a data set of the hub, train if it has that, and Revision a branch, tag or commit of it.
	Split    string `yaml:"split,omitempty" json:"split,omitempty"`
	Revision string `yaml:"revision,omitempty" json:"revision,omitempty"`
	// Field is the row's key that holds the text (type text; default "text").
	Field string `yaml:"field,omitempty" json:"field,omitempty"`
	// Lines makes each line of a plain file that is not blank a document (type text).
	Lines bool `yaml:"lines,omitempty" json:"lines,omitempty"`
	// Prompt and Response are the row's keys (type prompt-response; default "prompt" and "response"; type alpaca;
	// default "instruction" and "output"). Type preference has Prompt, and binary
	// both; default "prompt" and "completion".
	Prompt   string `yaml:"prompt,omitempty" json:"prompt,omitempty"`
	Response string `yaml:"response,omitempty" json:"response,omitempty"`
	// Input is one more key of types alpaca, preference and binary; default "input". History is a key of pairs of
	// questions and answers (alpaca, prompt-response, preference and binary; default "history").
	Input   string `yaml:"input,omitempty" json:"input,omitempty"`
	History string `yaml:"history,omitempty" json:"history,omitempty"`
	// Messages is the key of the list of turns; default "conversations" (sharegpt) and "messages" (messages,
	// preference and binary).
	Messages string `yaml:"messages,omitempty" json:"messages,omitempty"`
	// Chosen and Rejected are the keys of the better and the worse answer (type preference; default "chosen" and
	// "rejected"). Margin is the key of a number that says by how much (default "margin"), or scores.
	Chosen   string `yaml:"chosen,omitempty" json:"chosen,omitempty"`
	Rejected string `yaml:"rejected,omitempty" json:"rejected,omitempty"`
	Margin   string `yaml:"margin,omitempty" json:"margin,omitempty"`
	// Label is the key that says whether an answer is wanted (type binary; default "label").
	Label string `yaml:"label,omitempty" json:"label,omitempty"`
	// System is the key of a system prompt (all types but text; default "system").
	System string `yaml:"system,omitempty" json:"system,omitempty"`
	// Tools is the key of a list of tools (all types but text; default "tools"), or DropTools.
	Tools string `yaml:"tools,omitempty" json:"tools,omitempty"`
	Tags  Tags   `yaml:"tags,omitempty" json:"tags,omitzero"`
	// Ignore lists keys of rows and of messages that are passed over although they carry meaning, or are unknown.
	Ignore []string `yaml:"ignore,omitempty" json:"ignore,omitempty"`
	// Opening is DropOpening, or "" to keep turns before the first question (all types with turns).
	Opening string `yaml:"opening,omitempty" json:"opening,omitempty"`
	// Glob selects files below the directory Path, or of a data set of the hub: * and ? within one name, ** any number of
	// directories. Without it, a directory's files of rows and .txt files are read.
	Glob string `yaml:"glob,omitempty" json:"glob,omitempty"`
	// MaxSamples ends the source after that number of rows or documents; 0 is all of them.
	MaxSamples int `yaml:"max_samples,omitempty" json:"max_samples,omitempty"`
	// Weight is the number of times that each document comes in an epoch, 1 if it is 0. A fraction takes that share of
	// the documents, others in each epoch until all had their turn.
	Weight float64 `yaml:"weight,omitempty" json:"-"`
	// BadRows is RefuseBadRows, the default, or SkipBadRows.
	BadRows string `yaml:"bad_rows,omitempty" json:"bad_rows,omitempty"`
	// EvalSet is the label of the evaluation set that an entry of eval.datasets belongs to; see [Dataset.Sets].
	EvalSet string `yaml:"eval_set,omitempty" json:"-"`
}

// Tags are the names in the turns of types sharegpt, preference and binary, under the names that LLaMA-Factory gives
// them. A field that is empty has the usual names.
type Tags struct {
	Role        string `yaml:"role_tag,omitempty" json:"role_tag,omitempty"`       // key of who speaks; default "from"
	Content     string `yaml:"content_tag,omitempty" json:"content_tag,omitempty"` // key of what is said; default "value"
	User        string `yaml:"user_tag,omitempty" json:"user_tag,omitempty"`
	Assistant   string `yaml:"assistant_tag,omitempty" json:"assistant_tag,omitempty"`
	Observation string `yaml:"observation_tag,omitempty" json:"observation_tag,omitempty"` // what a tool returned
	Function    string `yaml:"function_tag,omitempty" json:"function_tag,omitempty"`       // a call of a tool, as JSON
	System      string `yaml:"system_tag,omitempty" json:"system_tag,omitempty"`
}

// Validate returns the first thing that is wrong with the entry itself, without looking at files.
func (s Source) Validate() error {
	if s.Path == "" {
		return errors.New("dataset: path is missing: name a file, a pattern or a directory")
	}
	if err := s.checkAddress(); err != nil {
		return err
	}
	switch {
	case s.Type == "" && s.Name == "":
		return s.fail("type is missing: use %s", typeNames)
	case s.Type != "" && s.Type.format().name == "":
		return s.fail("type %q is unknown: use %s", s.Type, typeNames)
	}
	// With a type, name is a subset; whether path can have any is seen when it is looked for.
	if s.Name != "" && s.Type == "" {
		if err := s.checkNamed(); err != nil {
			return err
		}
	} else if err := s.checkKeys(); err != nil {
		return err
	}
	if err := s.hubKeys(); err != nil {
		return err
	}
	switch {
	case s.MaxSamples < 0:
		return s.fail("max_samples is %d: it must not be negative", s.MaxSamples)
	case !(s.Weight >= 0) || s.Weight > 1000:
		return s.fail("weight is %v: it must be between 0, which leaves the data out, and 1000", s.Weight)
	case s.BadRows != "" && s.BadRows != RefuseBadRows && s.BadRows != SkipBadRows:
		return s.fail("bad_rows is %q: use %s or %s", s.BadRows, RefuseBadRows, SkipBadRows)
	case s.Opening != "" && s.Opening != DropOpening:
		return s.fail("opening is %q: use %s, or remove the key", s.Opening, DropOpening)
	}
	return s.checkSetLabel()
}

// checkNamed refuses keys that do not go with the entry of a registry.
func (s Source) checkNamed() error {
	isNamed := func(k entryKey) bool { return k.in(s) != "" && (k.name != "tools" || s.Tools != DropTools) }
	if cmp.Or(string(s.Type), s.Glob, s.Split, s.Revision) != "" || s.Lines || s.Tags != (Tags{}) ||
		slices.ContainsFunc(entryKeys, isNamed) {
		return s.fail("name %q takes type, keys, tags and files from the registry: remove them here", s.Name)
	}
	return nil
}

func (s Source) fail(format string, args ...any) error {
	return fmt.Errorf("dataset %s: %s", s.Path, fmt.Sprintf(format, args...))
}

// checkKeys refuses keys of another type.
func (s Source) checkKeys() error {
	of := func(key string, isSet bool, has func(*format) bool) error {
		if !isSet || has(s.Type.format()) {
			return nil
		}
		return s.fail("%s for type %s, not %s", key, listed(typesThat(has), "and"), s.Type)
	}
	err := cmp.Or(of("tags are", s.Tags != (Tags{}), func(f *format) bool { return f.tags != (Tags{}) }),
		of("lines is", s.Lines, func(f *format) bool { return f.isText }))
	for _, k := range entryKeys {
		err = cmp.Or(err, of(k.name+" is", k.in(s) != "", k.isOf))
	}
	return cmp.Or(err, of("opening is", s.Opening != "", func(f *format) bool { return f.opens }), s.checkIgnore())
}

// checkIgnore refuses to pass over what the entry reads.
func (s Source) checkIgnore() error {
	full := s.withDefaults()
	read, required := full.columns()
	for i, name := range read {
		switch {
		case !s.ignores(name):
		case i < required:
			return s.fail("ignore has %q, which type %s needs", name, s.Type)
		case name == full.Tools:
			return s.fail("ignore has %q: write tools: %s", name, DropTools)
		}
	}
	for _, name := range []string{"role", "content", full.Tags.Role, full.Tags.Content} {
		if name != "" && s.ignores(name) {
			return s.fail("ignore has %q, which no conversation can do without", name)
		}
	}
	return nil
}

// withDefaults fills in the names of fields.
func (s Source) withDefaults() Source {
	f := s.Type.format()
	for _, k := range entryKeys {
		if k.of != nil {
			name := k.of(&s)
			*name = cmp.Or(*name, f.keys[k.name])
		}
	}
	s.Tags.Role, s.Tags.Content = cmp.Or(s.Tags.Role, f.tags.Role), cmp.Or(s.Tags.Content, f.tags.Content)
	s.Weight, s.BadRows = cmp.Or(s.Weight, 1), cmp.Or(s.BadRows, RefuseBadRows)
	return s
}

// wholeWeight splits a weight into the times that every document comes in an epoch and the share that comes once more.
func wholeWeight(weight float64) (times int, share float64) {
	whole, share := math.Modf(weight)
	return int(whole), share
}

// Record is one row as the source's type understands it. Fields that the type does not have are empty.
type Record struct {
	Type Type
	// Text is the document (type text).
	Text string
	// Prompt is the question to the model: the prompt, or alpaca's instruction.
	Prompt string
	// Input is alpaca's input, which may be empty.
	Input string
	// Response is the answer that the model shall learn: the response, or alpaca's output.
	Response string
	// System is a system prompt, which may be empty, and History the questions and answers before the prompt.
	System  string
	History [][2]string
	// Messages is a conversation as chat templates expect it, and Tools are the JSON schemas of functions, or nil.
	Messages []template.Value
	Tools    []template.Value
	// Documents are what the answer rests on, for templates that write them; nil: none.
	Documents []template.Value
	// Kwargs are variables of the chat template for this row, in place of those that the chat has; nil: none.
	Kwargs *template.Dict
	// Untrained has the indices of messages of the assistant that do not count (type messages; weight: 0).
	Untrained map[int]bool
	isMarked  bool // the row itself says so of one, and it is in no prompt
	// Rejected is the rejected side of a pair whose chosen side the record is; nil: the record is by itself. Margin is by
	// how much the chosen side is the better one.
	Rejected *Record
	Margin   float64
	// IsWanted says whether the response is a good one (type binary).
	IsWanted bool
	// promptMessages counts the first messages of the conversation that are the prompt; 0: each answer counts.
	promptMessages int
	isLabeled      bool // IsWanted has a meaning
	tokens         *tokenRow
	asked          *Asked // a prompt that is to be answered; nil: the row has an answer
}
