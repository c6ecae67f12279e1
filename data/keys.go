package data

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/data/template"
)

// This file has the keys of rows, as runfile/keys.go has those of run files.
//
// A row of a public data set says more than text. It has labels, which change nothing: an id, a source, a language.
// And it may have keys that change what has to be learned: a system prompt, tools, an answer that was rejected, a mark
// that a message does not count. To pass over one of these trains something else than the file says. So each key that
// some trainer reads is in the table below, with the types that read it here; where the type does not read it, and it
// is not empty, the row is refused by a line that names it.
//
// A key that is in no table is decided by its place. A row of a table has dozens of columns, and an unknown one is a
// label. A message has few keys, so one that is unknown and is no text is refused: it could be the mark of a trainer
// that no one here knows. An unknown text goes to the chat template, and is looked for in what the template writes
// (leftout.go). A part of a content and a call of a tool have no unknown keys at all.
//
// `ignore` in an entry of `datasets` lists keys that are passed over all the same.

// place says which object a key is in.
type place int

const (
	inRow      place = iota
	inMessage        // a message, or a turn of type sharegpt
	inPart           // of a content that is a list
	inCall           // one of tool_calls
	inFunction       // the function of a call
	inTool           // a function that the model may call
)

func (p place) String() string {
	return []string{"row", "message", "part of a content", "call", "function of a call", "tool"}[p]
}

// action says what becomes of a key.
type action int

const (
	reads   action = iota // the types that have it read its value
	marks                 // 1 or true: it counts; 0 or false: it does not
	judges                // 1 or true: the answer is a good one; all else is refused
	labels                // it says something of the row that is not learned
	refuses               // no type reads it
)

// keyRule is a line of the table.
type keyRule struct {
	at     place
	names  string // separated by blanks; any case, and with or without _ and -
	does   action
	entry  string             // the key of an entry of `datasets` that names it
	of     func(*format) bool // the types whose rows are refused where they do not read it; nil is all but text
	says   string             // what it says, for the docs
	remedy string             // what to do instead
}

var mediaNames = media("image") + media("video") + media("audio")

// keyTable has all keys that are known.
var keyTable = []keyRule{
	{inRow, "system system_prompt system_message system_instruction", reads, "system", nil, "a system prompt", ""},
	{inRow, "history chat_history conversation_history", reads, "history", nil, "turns before the prompt",
		"put its turns into the list of messages"},
	{inRow, "tools functions tool_definitions tool_defs available_tools", reads, "tools", nil, "tools that the model may call", ""},
	{inRow, "input context contexts instruction instructions", reads, "input",
		func(f *format) bool { return f.prompt != nil || f.others != nil }, "more of the question",
		"use type: alpaca, which has a key input"},
	{inRow, "reasoning_content reasoning thinking thoughts chain_of_thought", refuses, "", nil, "thoughts of the model",
		"thoughts are read in a message of the assistant (type: messages)"},
	{inRow, "tool_calls function_call function_calls", refuses, "", nil, "calls of tools",
		"calls are read in a message of the assistant (type: messages)"},
	{inRow, "documents", reads, "documents", nil, "documents to answer from", "write documents"},
	{inRow, "chat_template_kwargs", reads, "chat_template_kwargs", nil, "variables of the chat template: an object", "write chat_template_kwargs"},
	{inRow, "template_kwargs enable_thinking thinking_budget reasoning_effort", refuses, "", nil, "a variable of the chat template",
		"put it into chat_template_kwargs"},
	{inRow, mediaNames, refuses, "", anyType, "pictures, films, sounds", onlyText},
	{inRow, "label labels kto_tag kto_label", judges, "label", nil, "whether the answer is a good one", ""},
	{inRow, choice("chosen") + choice("preferred") + choice("positive"), reads, "chosen", nil, "the better answer of two",
		"use type: preference, or name the key of the one answer to train on"},
	{inRow, choice("rejected") + choice("dispreferred") + choice("non_preferred") + choice("negative"), reads,
		"rejected", nil,
		"the worse answer of two", "use type: preference, or name the key of the one answer to train on"},
	{inRow, "margin", reads, "margin", func(f *format) bool { return f.isPair },
		"by how much the chosen answer is the better one", ""},
	{inRow, "weights token_weights loss_weights", reads, "weights", func(f *format) bool { return f.isTokens },
		"a weight for each token", "write weights"},
	{inRow, "completion_mask response_mask", reads, "completion_mask", func(f *format) bool { return f.isTokens },
		"which tokens are of the answer", "write completion_mask"},
	{inRow, "advantage advantages", reads, "advantage", func(f *format) bool { return f.isTokens },
		"a weight for all tokens of the answer",
		"write advantage, or weights for each token"},
	{inRow, "weight loss_weight loss_scale sample_weight loss train training trainable is_trainable", marks, "", anyType,
		"whether the row counts",
		"leave the row out, or set weight of the entry"},
	{inRow, "mask masked loss_mask", refuses, "", anyType, "which part counts, or which does not",
		"trainers read it in two ways: mark messages by weight: 0 or 1"},

	{inMessage, "role from", reads, "role_tag", nil, "who speaks", ""},
	{inMessage, "content value", reads, "content_tag", nil, "what is said: a text, or a list of parts", ""},
	{inMessage, "reasoning_content thinking reasoning", reads, "", nil, "thoughts: a text", ""},
	{inMessage, "tool_calls", reads, "", nil, "calls of tools: a list, or a list in a text", ""},
	{inMessage, "name", reads, "", nil, "who speaks, or which tool: a text for the template", ""},
	{inMessage, "tool_call_id", reads, "", nil, "which call a tool answers: a text for the template", ""},
	{inMessage, "weight loss_weight loss_scale loss train training trainable is_trainable", marks, "", nil, "whether the message counts", ""},
	{inMessage, "mask masked loss_mask", refuses, "", nil, "whether the message counts, or does not",
		"trainers read it in two ways: write weight: 0 or 1"},
	{inMessage, "train_detail", refuses, "", nil, "which parts of the message count", "a message counts as a whole (train) or not"},
	{inMessage, "label kto_tag kto_label", judges, "", nil, "whether the answer is a good one", ""},
	{inMessage, "function_call function_calls", refuses, "", nil, "calls of tools", "use tool_calls"},
	{inMessage, "tools functions", refuses, "", nil, "tools that the model may call", "put them into the row's tools"},
	{inMessage, "documents", refuses, "", nil, "documents to answer from", "put their text into the content"},
	{inMessage, mediaNames, refuses, "", nil, "pictures, films, sounds", onlyText},
	{inMessage, choice("chosen") + choice("rejected"), refuses, "", nil, "one of two answers", "only one answer can be trained on"},
	{inMessage, "refusal", refuses, "", nil, "an answer that is no content", "put its text into content"},
	{inMessage, "id message_id parent_id conversation_id uuid index idx turn turn_id turn_identifier position model source " +
		"language lang country state timestamp time date created created_at updated_at finish_reason stop_reason usage logprobs " +
		"annotations metadata meta info token_count num_tokens n_tokens hashed_ip header toxic redacted", labels, "", nil, "nothing that is learned", ""},

	{inPart, "type", reads, "", nil, "text; of LLaMA-Factory's v1 format also reasoning and tool_call", ""},
	{inPart, "text value", reads, "", nil, "what is said: a text", ""},
	{inPart, "weight loss_weight loss_scale loss train training trainable is_trainable", marks, "", nil, "whether the part counts",
		"a message counts as a whole or not"},
	{inPart, "id index cache_control annotations", labels, "", nil, "nothing that is learned", ""},

	{inCall, "function", reads, "", nil, "the function: an object, or one in a text", ""},
	{inCall, "type", reads, "", nil, "function", ""},
	{inCall, "id call_id index status extra_content", labels, "", nil, "nothing that is learned; id goes to the template", ""},

	{inFunction, "name", reads, "", nil, "which tool is called: a text", ""},
	{inFunction, "arguments", reads, "", nil, "an object, or one in a text", ""},
	{inFunction, "parameters args kwargs input inputs", refuses, "", nil, "arguments by another name", "write arguments"},
	{inFunction, "description strict parsed_arguments", labels, "", nil, "nothing that is learned", ""},

	{inTool, "name", reads, "", nil, "a text", ""},
	{inTool, "parameters", reads, "", nil, "a JSON schema: an object, or one in a text", ""},
	{inTool, "input_schema schema arguments args", refuses, "", nil, "parameters by another name", "write parameters"},
}

// mediaEnds and choiceEnds are what names of media, and of an answer that is one of two, end in.
var (
	mediaEnds  = []string{"", "s", "_url", "_urls", "_path", "_paths", "_file", "_files", "_bytes"}
	choiceEnds = []string{"_response", "_responses", "_message", "_messages", "_answer", "_output", "_completion", "_conversation", "_conversations", "_text"}
)

// media are the names of a kind of media.
func media(kind string) string {
	return kind + strings.Join(mediaEnds, " "+kind) + " "
}

// choice are the names of an answer that is one of two. A number of preferred or positive examples is no answer.
func choice(kind string) string {
	names := kind + strings.Join(choiceEnds, " "+kind) + " "
	if kind == "chosen" || kind == "rejected" {
		names = kind + " " + names
	}
	return names
}

// plainName is a key as it is compared: Label, kto-tag and ktoTag are written for label and kto_tag.
func plainName(name string) string {
	return strings.ToLower(strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r == ' ' || r == '.' {
			return -1
		}
		return r
	}, name))
}

// keysByName finds the rules of a place.
var keysByName = func() map[place]map[string]*keyRule {
	all := map[place]map[string]*keyRule{}
	for i := range keyTable {
		k := &keyTable[i]
		if all[k.at] == nil {
			all[k.at] = map[string]*keyRule{}
		}
		for _, name := range strings.Fields(k.names) {
			all[k.at][plainName(name)] = k
		}
	}
	return all
}()

// ruleOf is the rule of a key, or nil.
func ruleOf(at place, name string) *keyRule { return keysByName[at][plainName(name)] }

// concerns reports whether rows of a type are refused if they have the key and do not read it.
func (k *keyRule) concerns(t Type) bool {
	f := t.format()
	if f.isAsked { // rewards may read any other key
		return k.remedy == onlyText
	}
	return k.of == nil && !f.isText || k.of != nil && k.of(f)
}

// isLabel reports whether a key of a message is known to say nothing that a template has to write.
func isLabel(name string) bool {
	k := ruleOf(inMessage, name)
	return k != nil && (k.does == labels || name == "role" || name == "name" || name == "tool_call_id")
}

// entryKey is a key of an entry of `datasets` that names a key of its rows, or a key of rows that has one name only.
type entryKey struct {
	name     string
	of       func(*Source) *string // nil: no entry gives it another name
	required bool
}

// isOf reports whether a type reads the key.
func (k entryKey) isOf(f *format) bool { return f.keys[k.name] != "" }

// entryKeys are all of them, with those that a row must have first.
var entryKeys = []entryKey{
	{"field", func(s *Source) *string { return &s.Field }, true},
	{"prompt", func(s *Source) *string { return &s.Prompt }, true},
	{"response", func(s *Source) *string { return &s.Response }, true},
	{"messages", func(s *Source) *string { return &s.Messages }, true},
	{"chosen", func(s *Source) *string { return &s.Chosen }, true},
	{"rejected", func(s *Source) *string { return &s.Rejected }, true},
	{"margin", func(s *Source) *string { return &s.Margin }, false},
	{"label", func(s *Source) *string { return &s.Label }, false},
	{"group", nil, true},
	{"sample", nil, true},
	{"ids", nil, true},
	{"start", nil, true},
	{"input_ids", nil, true},
	{teacherIDs, nil, true},
	{teacherLogProbs, nil, true},
	{"labels", nil, false},
	{"weights", nil, false},
	{"completion_mask", nil, false},
	{"advantage", nil, false},
	{"logprobs", nil, false},
	{"ref_logprobs", nil, false},
	{"old", nil, false},
	{"ref", nil, false},
	{"values", nil, false},
	{"mask", nil, false},
	{"reward", nil, false},
	{"rewards", nil, false},
	{"version", nil, false},
	{"finish", nil, false},
	{"input", func(s *Source) *string { return &s.Input }, false},
	{"history", func(s *Source) *string { return &s.History }, false},
	{"system", func(s *Source) *string { return &s.System }, false},
	{"tools", func(s *Source) *string { return &s.Tools }, false},
	{documentsKey, nil, false},
	{kwargsKey, nil, false},
}

const (
	documentsKey = "documents"
	kwargsKey    = "chat_template_kwargs"
)

// in is the name that the key has in the rows of a source.
func (k entryKey) in(s Source) string {
	if k.of == nil {
		return s.Type.format().keys[k.name]
	}
	return *k.of(&s)
}

// namesIn are the names that the key can have in the rows of a source: the entry's, or the usual ones where it names
// none.
func (k entryKey) namesIn(s Source, f *format) []string {
	name := f.keys[k.name]
	if k.of != nil {
		name = *k.of(&s)
	}
	switch {
	case name == f.keys[k.name]:
		return append([]string{name}, strings.Fields(f.others[k.name])...)
	case k.name == "margin" && name == scoresMargin:
		return scoreKeys
	}
	return []string{name}
}

// namesOf are the names in rows of a key that the type reads.
func (f *fields) namesOf(s Source, key string) []string {
	i := slices.IndexFunc(entryKeys, func(k entryKey) bool { return k.name == key })
	return entryKeys[i].namesIn(s, f.format)
}

// columns are the keys of a row that the source's type reads; those that it must have come first.
func (s Source) columns() (all []string, required int) {
	f := s.Type.format()
	for _, k := range entryKeys {
		if !k.isOf(f) || k.name == "tools" && s.Tools == DropTools {
			continue
		}
		if all = append(all, k.namesIn(s, f)...); k.required && f.others == nil {
			required = len(all)
		}
	}
	return all, required
}

// looksAt reports whether a key of a row is read by the source's type, or decides whether the row can be used. Rewards
// read any key of a prompt's row.
func (s Source) looksAt(name string) bool {
	if s.Type.format().isAsked {
		return !s.ignores(name)
	}
	if all, _ := s.columns(); slices.Contains(all, name) {
		return true
	}
	k := ruleOf(inRow, name)
	return k != nil && k.concerns(s.Type) && !s.ignores(name)
}

// ignores reports whether the source passes over a key.
func (s Source) ignores(name string) bool {
	return len(s.Ignore) > 0 && slices.ContainsFunc(s.Ignore, func(i string) bool { return plainName(i) == plainName(name) })
}

// unknownKey says why a value under an unknown key of a message cannot be passed over, or "" for a text that is said.
func unknownKey(v template.Value) string {
	text, ok := v.(template.String)
	if !ok {
		return kindOf(v)
	}
	_, isMark := isCounted(text)
	if isMark || slices.Contains([]string{"yes", "no", "y", "n", "on", "off"}, strings.ToLower(string(text))) {
		return "the text " + shown(string(text))
	}
	return ""
}
