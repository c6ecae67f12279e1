// Package data turns files into the batches that a training step sees.
//
// The way is: a [Source] names files; each row of them is a [Record]; a [Renderer] turns a record into segments of
// text, some of which the model shall learn to produce; a tokenizer turns these into an [Example]; [Prepare] does all
// of this in parallel, keeps the result in a cache, and returns a [Dataset]; a [Loader] shuffles and packs its
// documents into rows of a fixed length and hands them out as micro-batches, step by step.
//
// Invariants:
//   - the order of documents, the packing and every batch depend only on the dataset's content, the seed and the
//     loader's sizes: never on timing, the number of workers or the cache;
//   - in an epoch each token of each document stands in exactly one batch, and each target is counted exactly once;
//   - a [Cursor] is all that a loader remembers: seeking to it gives the batches that would have come next;
//   - bad input is an error that names the file and the line. No row is skipped and no byte replaced.
package data

import (
	"errors"
	"fmt"
)

// Ignore is the label of a token that does not count in the loss, as in PyTorch and transformers.
const Ignore int32 = -100

// Example is one tokenized document before packing. Labels[t] is InputIDs[t] or [Ignore]: it is not shifted, as in
// transformers, so Labels[t+1] is what position t learns and Labels[0] is never a target.
type Example struct {
	InputIDs []int32 `json:"input_ids"`
	Labels   []int32 `json:"labels"`
}

// Type says what a row of a source holds.
type Type string

// The types of sources.
const (
	Text           Type = "text"            // one text per row, or one per plain file; all of it counts
	PromptResponse Type = "prompt-response" // two fields; the response counts
	Alpaca         Type = "alpaca"          // instruction, input (may be empty) and output; the output counts
)

// Source is one entry of `datasets` in run.yaml.
//
// A path ending in .jsonl, .ndjson or .json is read as JSON rows: one object per line, or one array of objects. Any
// other file is one document of type text. A directory needs Glob; each matching file, in the order of the paths, is
// read by its ending.
type Source struct {
	Path string `yaml:"path" json:"path"`
	Type Type   `yaml:"type" json:"type"`
	// Field is the row's key that holds the text (type text; default "text").
	Field string `yaml:"field,omitempty" json:"field,omitempty"`
	// Prompt and Response are the row's keys (type prompt-response; default "prompt" and "response").
	Prompt   string `yaml:"prompt,omitempty" json:"prompt,omitempty"`
	Response string `yaml:"response,omitempty" json:"response,omitempty"`
	// Glob selects files below the directory Path: * and ? within one name, ** any number of directories.
	Glob string `yaml:"glob,omitempty" json:"glob,omitempty"`
	// MaxSamples ends the source after so many rows or documents; 0 is all of them.
	MaxSamples int `yaml:"max_samples,omitempty" json:"max_samples,omitempty"`
}

// Validate returns the first thing that is wrong with the entry itself, without looking at files.
func (s Source) Validate() error {
	if s.Path == "" {
		return errors.New("dataset: path is missing: name a file or a directory")
	}
	fail := func(format string, args ...any) error {
		return fmt.Errorf("dataset %s: %s", s.Path, fmt.Sprintf(format, args...))
	}
	switch s.Type {
	case Text, PromptResponse, Alpaca:
	case "":
		return fail("type is missing: use %s, %s or %s", Text, PromptResponse, Alpaca)
	default:
		return fail("type %q is unknown: use %s, %s or %s", s.Type, Text, PromptResponse, Alpaca)
	}
	if s.Field != "" && s.Type != Text {
		return fail("field is for type %s, not %s", Text, s.Type)
	}
	if (s.Prompt != "" || s.Response != "") && s.Type != PromptResponse {
		return fail("prompt and response are for type %s, not %s", PromptResponse, s.Type)
	}
	if s.MaxSamples < 0 {
		return fail("max_samples is %d: it must not be negative", s.MaxSamples)
	}
	return nil
}

// withDefaults fills in the names of fields.
func (s Source) withDefaults() Source {
	fill := func(name *string, value string) {
		if *name == "" {
			*name = value
		}
	}
	switch s.Type {
	case Text:
		fill(&s.Field, "text")
	case PromptResponse:
		fill(&s.Prompt, "prompt")
		fill(&s.Response, "response")
	}
	return s
}

// Record is one row as the source's type understands it. Fields that the type does not have are empty.
type Record struct {
	Type Type
	// Text is the document (type text).
	Text string
	// Prompt is what the model is asked: the prompt, or alpaca's instruction.
	Prompt string
	// Input is alpaca's input, which may be empty.
	Input string
	// Response is what the model shall answer: the response, or alpaca's output.
	Response string
}
