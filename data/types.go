package data

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"
)

// Type says what a row of a source holds.
type Type string

// The types of sources.
const (
	Text           Type = "text"            // one text per row, or one per plain file; all of it counts
	PromptResponse Type = "prompt-response" // two fields, texts or lists of messages; the response counts
	Alpaca         Type = "alpaca"          // instruction, input (may be empty) and output; the output counts
	ShareGPT       Type = "sharegpt"        // a list of turns with from and value; what the assistant wrote counts
	Messages       Type = "messages"        // OpenAI's list of messages with role and content; the same
	Preference     Type = "preference"      // a prompt and two answers, of which the chosen one is the better
	Binary         Type = "binary"          // a prompt, an answer, and whether that is wanted
	Weighted       Type = "weighted"        // tokens, each with a weight of its loss
	Distill        Type = "distill"         // tokens, each with a teacher's likeliest tokens in its place
	Rollouts       Type = "rollouts"        // tokens of an answer that a policy has sampled, with its reward
	Prompts        Type = "prompts"         // a prompt that a policy is to answer; what else the row has is for rewards
)

// format is a row of types: all that depends on the type of a source. Other files look it up and compare no types.
type format struct {
	name Type
	// keys are those of entryKeys that the type reads, each with its default: of a row, or as a column of a table.
	keys map[string]string
	// others are further names of keys, which rows may have where the entry gives no name. The keys of such a type tell
	// its forms of rows apart, so that a row needs none of them by itself.
	others map[string]string
	// read fills the record from the row. It finds its format in fields, since Go refuses types whose functions look
	// into types.
	read   func(f *fields, s Source, out *Record)
	prompt func(Record) string // the text before the response where no chat template renders it; nil: one has to
	turns  func(Tags) turnForm // how the turns of a row are written; nil if rows have none
	tags   Tags                // the defaults where an entry can name the keys and the roles of turns

	isText         bool // a row is one text, all of which counts; a plain file or a line of it is a row too
	isConversation bool // a row is a list of turns, and may be that list alone
	opens          bool // turns may precede the first question
	isPair         bool // a row becomes two documents that follow each other: the chosen side, and the rejected one
	isLabeled      bool // an answer is wanted or not
	isTokens       bool // a row has tokens, and nothing is rendered
	isTaught       bool // and what a teacher says of each
	isSampled      bool // and an answer among them has rewards, and other answers to the same prompt
	isAsked        bool // a row has a prompt, to be answered

	formatting string            // of LLaMA-Factory's registry
	columns    map[string]string // of an entry there: the key of ours that has the column's name
}

// types has a row for each type, in the order of the docs and of errors.
var types = []*format{
	{name: Text, isText: true, keys: named("field=text"), columns: named("prompt=field"),
		read: func(f *fields, s Source, out *Record) { out.Text = f.text(s.Field) }},
	{name: PromptResponse, opens: true, keys: named("prompt response history " + shared),
		read: (*fields).textsOrMessages, turns: openAITurns, prompt: func(r Record) string { return r.Prompt + "\n" }},
	{name: Alpaca, keys: named("prompt=instruction response=output input history " + shared),
		read:       func(f *fields, s Source, out *Record) { f.pair(s, out); out.Input = f.optional(s.Input) },
		prompt:     func(r Record) string { return alpacaPrompt(r.Prompt, r.Input) },
		formatting: "alpaca", columns: named("prompt query=input response system history tools")},
	{name: ShareGPT, isConversation: true, opens: true, keys: named("messages=conversations " + shared),
		read: (*fields).conversation, turns: Tags.turns, tags: Tags{Role: "from", Content: "value"},
		formatting: "sharegpt", columns: named("messages system tools")},
	{name: Messages, isConversation: true, opens: true, keys: named("messages " + shared),
		read: (*fields).conversation, turns: openAITurns, formatting: "openai", columns: named("messages tools")},
	{name: Preference, isPair: true, opens: true,
		keys: named("prompt chosen rejected messages input history margin " + shared),
		others: map[string]string{"prompt": "instruction question", "messages": "conversations",
			"chosen": "preferred_output", "rejected": "non_preferred_output rejected_response rejected_messages"},
		read: (*fields).preference, turns: openAITurns, tags: Tags{Role: "from", Content: "value"},
		columns: named("prompt query=input system history tools messages chosen rejected")},
	{name: Binary, isLabeled: true, opens: true,
		keys: named("prompt response=completion messages input history label " + shared),
		others: map[string]string{"prompt": "instruction question", "messages": "conversations",
			"response": "response output",
			"label":    "kto_tag"},
		read: (*fields).binary, turns: openAITurns, tags: Tags{Role: "from", Content: "value"},
		columns: named("prompt query=input response system history tools messages kto_tag=label")},
	{name: Weighted, isTokens: true, read: (*fields).weighted,
		keys: named("input_ids weights completion_mask advantage logprobs ref_logprobs")},
	{name: Distill, isTokens: true, isTaught: true, read: (*fields).taught,
		keys: named("input_ids labels " + teacherIDs + " " + teacherLogProbs)},
	{name: Rollouts, isTokens: true, isSampled: true, read: (*fields).rollout, keys: named(rolloutKeys)},
	{name: Prompts, isAsked: true, read: (*fields).asks, keys: named("prompt")},
}

// shared are the keys that all types but text read.
const shared = "system tools " + documentsKey + " " + kwargsKey

// named makes a map of pairs such as a=b, where a alone is a=a.
func named(pairs string) map[string]string {
	all := map[string]string{}
	for _, pair := range strings.Fields(pairs) {
		name, value, _ := strings.Cut(pair, "=")
		all[name] = cmp.Or(value, name)
	}
	return all
}

// group counts the documents that a row becomes, which belong together.
func (f *format) group() int {
	if f.isPair {
		return 2
	}
	return 1
}

// format is the row of a type, empty for one that is not known.
func (t Type) format() *format {
	if i := slices.IndexFunc(types, func(f *format) bool { return f.name == t }); i >= 0 {
		return types[i]
	}
	return &format{}
}

// typesThat are the names of some types.
func typesThat(has func(*format) bool) (names []string) {
	for _, f := range types {
		if has(f) {
			names = append(names, string(f.name))
		}
	}
	return names
}

func anyType(*format) bool { return true }

// listed writes names that are not empty, with a word before the last.
func listed(names []string, word string) string {
	names = strings.Fields(strings.Join(names, " "))
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " " + word + " " + names[last]
}

var typeNames = listed(typesThat(anyType), "or")

// usualRows tell types, with their keys, by a key of a row, another one that it has too, and a part of the key's value.
// The first that fits is taken.
var usualRows = []struct{ key, other, part, typed string }{
	{"chosen", "rejected", "", "preference"},
	{"preferred_output", "non_preferred_output", "", "preference"},
	{"messages", "rejected_response", "", "preference"},
	{"messages", "rejected_messages", "", "preference"},
	{"completion", "label", "", "binary"},
	{"input_ids", teacherIDs, "", "distill"},
	{"input_ids", "weights", "", "weighted"},
	{"input_ids", "completion_mask", "", "weighted"},
	{"ids", "start", "", "rollouts"},
	{"prompt", "reward_model", "", "prompts"},
	{"instruction", "output", "", "alpaca"},
	{"messages", "", `"from"`, "sharegpt, with messages: messages"},
	{"messages", "", "", "messages"},
	{"conversations", "", `"from"`, "sharegpt"},
	{"conversations", "", "", "messages, with messages: conversations"},
	{"text", "", "", "text"},
	{"prompt", "response", "", "prompt-response, with prompt: prompt and response: response"},
	{"prompt", "completion", "", "prompt-response, with prompt: prompt and response: completion"},
	{"question", "answer", "", "prompt-response, with prompt: question and response: answer"},
	{"instruction", "response", "", "prompt-response, with prompt: instruction and response: response"},
}

// typeOf is the type, with its keys, whose usual rows have the keys of this one; empty if none has.
func typeOf(object map[string]json.RawMessage) string {
	for _, usual := range usualRows {
		value, hasKey := object[usual.key]
		_, hasOther := object[cmp.Or(usual.other, usual.key)]
		if hasKey && hasOther && bytes.Contains(value, []byte(usual.part)) {
			return usual.typed
		}
	}
	return ""
}
