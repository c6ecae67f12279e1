package data

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace/data/template"
	"github.com/millrace/millrace/internal/budget"
)

// A row of type preference has a prompt and two answers, and there are many ways to write these. The keys of a row tell
// them apart: texts, lists of messages after a prompt, and whole conversations, whose first messages that are equal are
// the prompt. A prompt is never cut out of texts: two answers may begin with the same word, and would lose it.
//
// A pair becomes two records of other types, so that a side has the tokens that it has by itself.

// scoresMargin is Source.Margin of rows whose margin is score_chosen - score_rejected.
const scoresMargin = "scores"

var scoreKeys = []string{"score_chosen", "score_rejected"}

// sideKeys are the keys of the entry that name the two answers.
var sideKeys = [2]string{"chosen", "rejected"}

// preference reads a row of type preference.
func (f *fields) preference(s Source, out *Record) {
	if f.chosenLast(s); f.err != nil {
		return
	}
	var sides [2]string
	for i, key := range sideKeys {
		sides[i] = f.sideOf(s, key)
	}
	chosen, rejected := f.namesOf(s, sideKeys[0]), f.namesOf(s, sideKeys[1])
	i, j := slices.Index(chosen, sides[0]), slices.Index(rejected, sides[1])
	if i != j && j < len(chosen) && min(len(chosen), len(rejected)) > 1 { // later ones belong to no other key
		f.fail("the row has %q and %q, which are of two forms: name both with chosen and rejected in the entry", sides[0],
			sides[1])
	}
	if f.err != nil {
		return
	}
	margin := f.margin(s)
	texts, lists := f.prompts(s)
	switch isText := !f.isSpoken(s, sides[0]); {
	case isText == f.isSpoken(s, sides[1]):
		f.fail("one of %q and %q is a text, and the other one is not: write both as texts, or both as messages",
			sides[0], sides[1])
	case f.err != nil:
	case isText:
		f.textPair(s, sides, texts, lists, out)
	default:
		f.messagePair(s, sides, texts, lists, out)
	}
	out.Margin = margin
}

// oneOf is the key of the row that a key of the entry stands for; "" if the row has no such key.
func (f *fields) oneOf(s Source, key string) string {
	has := slices.DeleteFunc(slices.Clone(f.namesOf(s, key)), func(name string) bool {
		raw, ok := f.object[name]
		return !ok || string(raw) == "null"
	})
	switch len(has) {
	case 0:
		return ""
	case 1:
	default:
		f.fail("the row has %q and %q, each of which can be %s: list one of the two under ignore in the entry", has[0],
			has[1], key)
	}
	return has[0]
}

// sideOf is the key of the row that has a side.
func (f *fields) sideOf(s Source, key string) string {
	name, names := f.oneOf(s, key), f.namesOf(s, key)
	switch {
	case name != "":
	case typeOf(f.object) == string(s.Type):
		f.fail("field %q is missing: the row has %s, and a pair has two sides: leave the row out, or name the key with %s in "+
			"the entry", names[0], someOf(slices.Sorted(maps.Keys(f.object))), key)
	default:
		f.missing(names[0])
	}
	return name
}

// margin reads by how much the chosen side is the better one; 0 where the row does not say it.
func (f *fields) margin(s Source) float64 {
	if s.Margin != scoresMargin {
		n, ok := f.number(s.Margin)
		if !ok && s.Margin != f.format.keys["margin"] {
			f.missing(s.Margin)
		}
		return n
	}
	var scores [2]float64
	for i, name := range scoreKeys {
		n, ok := f.number(name)
		if !ok {
			f.missing(name)
		}
		scores[i] = n
	}
	return scores[0] - scores[1]
}

// number reads a number, which is a text in some tables; false where it is missing.
func (f *fields) number(name string) (n float64, ok bool) {
	v, ok := f.value(name)
	if !ok {
		return 0, false
	}
	inside, err := decoded(v)
	switch v := inside.(type) {
	case template.Int:
		n = float64(v)
	case template.Float:
		n = float64(v)
	default:
		err = cmp.Or(err, errNoNumber)
	}
	if err != nil || math.IsInf(n, 0) || math.IsNaN(n) {
		f.fail("field %q is not a number of 64 bits, but %s", name, kindOf(v))
	}
	return n, true
}

var errNoNumber = errors.New("it is no number")

// prompts are the keys of the row that say what both sides answer: those with texts, and those with lists of messages.
// An object that has messages and tools, as OpenAI writes them, becomes keys of the row.
func (f *fields) prompts(s Source) (texts, lists []string) {
	names := slices.Concat(f.namesOf(s, "prompt"), f.namesOf(s, "messages"))
	if raw := f.object[s.Input]; len(raw) > 0 && raw[0] == '{' {
		names = append(names, s.Input)
	}
	for _, name := range names {
		v, _ := f.value(name)
		if f.err != nil || saysNothing(v) {
			continue
		}
		if d, ok := v.(*template.Dict); ok && turnTag(s, d) == "" {
			if f.unwrap(s, name, d); f.err != nil {
				return nil, nil
			}
		}
		if f.isSpoken(s, name) {
			lists = append(lists, name)
		} else {
			texts = append(texts, name)
		}
	}
	return texts, lists
}

// unwrap takes messages and tools out of an object.
func (f *fields) unwrap(s Source, name string, d *template.Dict) {
	var inside map[string]json.RawMessage
	if err := budget.Unmarshal(f.object[name], &inside); err != nil {
		f.fail("field %q: %w", name, err)
		return
	}
	for _, key := range slices.Sorted(maps.Keys(inside)) {
		v, _ := d.Get(key)
		switch {
		case saysNothing(v), s.ignores(key), key == "messages", key == "parallel_tool_calls", key == "tools" &&
			s.Tools == DropTools:
		case key == "tools" && f.object[s.Tools] == nil:
			f.object[s.Tools] = inside[key]
		default:
			f.fail("field %q has %q, and can have messages and tools: remove it, or list it under ignore in the entry", name,
				key)
			return
		}
	}
	if inside["messages"] == nil {
		f.fail("field %q is an object without messages: write the prompt as a text or a list of messages", name)
	}
	f.object[name] = inside["messages"]
}

// isSpoken reports whether a field is messages: a list or one of them, which may be JSON in a text.
func (f *fields) isSpoken(s Source, name string) bool {
	raw := f.object[name]
	if len(raw) == 0 || raw[0] != '"' {
		return len(raw) > 0 && (raw[0] == '[' || raw[0] == '{')
	}
	if start := strings.TrimLeft(string(raw[1:min(len(raw), 64)]), ` `); start == "" || start[0] != '[' &&
		start[0] != '{' {
		return false
	}
	v, ok := f.value(name)
	if !ok {
		return false
	}
	turns, err := turnsIn(s, v)
	return err == nil && len(turns) > 0 && !slices.ContainsFunc(turns, func(v template.Value) bool {
		d, ok := v.(*template.Dict)
		return !ok || turnTag(s, d) == ""
	})
}

// turnTag is the key of a turn that says who speaks; "" if it has none.
func turnTag(s Source, d *template.Dict) string {
	for _, tag := range []string{s.Tags.Role, "role"} {
		if v, _ := d.Get(tag); kindOf(v) == "a text" {
			return tag
		}
	}
	return ""
}

// turnsIn are the turns of a value: a list of them, or one.
func turnsIn(s Source, v template.Value) ([]template.Value, error) {
	inside, err := decoded(v)
	if d, ok := inside.(*template.Dict); ok && err == nil && turnTag(s, d) != "" {
		return []template.Value{d}, nil
	}
	return listOf(v)
}

// spoken returns the turns of a field.
func (f *fields) spoken(s Source, name string) (all []*template.Dict) {
	v, _ := f.value(name)
	turns, err := turnsIn(s, v)
	if err != nil || len(turns) == 0 {
		f.fail("field %q is no list of messages, but %s", name, kindOf(v))
	}
	for i, turn := range turns {
		d, err := objectOf(turn)
		if d == nil || err != nil {
			f.fail("field %q: message %d is not an object: it is %s", name, i, kindOf(turn))
			return nil
		}
		all = append(all, d)
	}
	return all
}

// addSpoken adds turns of a field to a record. The names of their keys tell how they are written.
func (f *fields) addSpoken(s Source, name string, turns []*template.Dict, r *Record) {
	for i, turn := range turns {
		form := formOf(s, turn)
		if err := f.addTurn(s, form, turn, r); err != nil {
			f.fail("field %q: %s %d: %w", name, form.turn, i, err)
			return
		}
	}
}

// formOf tells by the names of a turn's keys how it is written.
func formOf(s Source, turn *template.Dict) turnForm {
	if turnTag(s, turn) == s.Tags.Role {
		return s.Tags.turns()
	}
	return openAITurns(s.Tags)
}

// textPair reads a prompt and two answers that are texts.
func (f *fields) textPair(s Source, sides [2]string, texts, lists []string, out *Record) {
	if f.textAnswer(s, sides[0], texts, lists, out); f.err != nil {
		return
	}
	rejected := *out
	rejected.Response = f.text(sides[1])
	out.Rejected = &rejected
}

// textAnswer reads a prompt and an answer that are texts.
func (f *fields) textAnswer(s Source, answer string, texts, lists []string, out *Record) {
	switch {
	case len(lists) > 0:
		f.fail("field %q is a list of messages, and %q is a text: write both as lists, or both as texts", lists[0], answer)
	case len(texts) == 0:
		f.fail("the row has no prompt, and %q is a text: write what it answers under %q; a prompt is not cut out of texts",
			answer, s.Prompt)
	case len(texts) > 1:
		f.fail("the row has %q and %q, each of which can be the prompt: list one of the two under ignore in the entry",
			texts[0], texts[1])
	}
	if f.err != nil {
		return
	}
	named := s.Prompt != f.format.keys["prompt"]
	s.Prompt, s.Response = texts[0], answer
	out.Type = PromptResponse
	f.pair(s, out)
	out.Input = f.optional(s.Input)
	switch isInstruction := s.Prompt == "instruction"; {
	case out.Input != "" && !named && !isInstruction:
		f.fail("the row has %q and %q: put both into one text, or name them with prompt and input in the entry", s.Prompt,
			s.Input)
	case out.Input != "" || isInstruction:
		out.Type = Alpaca
	}
}

// messagePair reads two answers that are messages. Both are whole conversations where the row has no prompt, or where
// one of them begins with a question or a system prompt.
func (f *fields) messagePair(s Source, sides [2]string, texts, lists []string, out *Record) {
	if len(f.history(s.History)) > 0 {
		f.fail("the row has %q, and its answers are messages: put the turns into the prompt", s.History)
	}
	answers := [2][]*template.Dict{f.spoken(s, sides[0]), f.spoken(s, sides[1])}
	isWhole := len(texts)+len(lists) == 0
	var all [2]Record
	for i := range all {
		all[i].Type = Messages
		f.addSystem(s, &all[i])
		first := len(all[i].Messages)
		if f.addSpoken(s, sides[i], answers[i], &all[i]); f.err != nil {
			return
		}
		isWhole = isWhole || len(all[i].Messages) == first || roleOf(all[i].Messages[first]) == roleUser ||
			roleOf(all[i].Messages[first]) == roleSystem
	}
	var n int
	if isWhole {
		n = f.commonPrompt(s, sides, answers, slices.Concat(texts, lists), &all)
	} else {
		n = f.explicitPrompt(s, sides, answers, texts, lists, &all)
	}
	if f.err != nil {
		return
	}
	for i := range all {
		f.answered(s, sides[i], n, &all[i])
	}
	*out = all[0]
	out.Rejected = &all[1]
}

// answered completes a record whose first n messages are the prompt of the others.
func (f *fields) answered(s Source, key string, n int, r *Record) {
	if dropped := opening(r.Messages[:n]); s.Opening == DropOpening && dropped > 0 {
		n -= dropped
		s.open(r)
	}
	r.Tools = f.tools(s)
	r.endPrompt(r.Messages[:n])
	switch {
	case roleOf(r.Messages[n]) != roleAssistant:
		f.fail("field %q: its answer begins with a message whose role is %s: an answer to the prompt is of the assistant",
			key, roleOf(r.Messages[n]))
	case !r.isAnswered():
		f.fail("field %q has no answer of the assistant that counts", key)
	}
}

// explicitPrompt puts the prompt of the row before the answers, and returns the number of its messages.
func (f *fields) explicitPrompt(s Source, sides [2]string, answers [2][]*template.Dict, texts, lists []string,
	all *[2]Record) (n int) {
	for i := range all {
		all[i], n = f.afterPrompt(s, sides[i], answers[i], texts, lists)
	}
	return n
}

// afterPrompt makes a record of a prompt, which is one list of messages, and an answer to it.
func (f *fields) afterPrompt(s Source, side string, answer []*template.Dict, texts, lists []string) (r Record, n int) {
	r.Type = Messages
	switch {
	case len(texts) > 0:
		f.fail("field %q is a text, and %q is messages: write both as lists, or both as texts", texts[0], side)
		return r, 0
	case len(lists) > 1:
		f.fail("the row has %q and %q, each of which can be the prompt: list one of the two under ignore in the entry",
			lists[0], lists[1])
		return r, 0
	}
	f.addSystem(s, &r)
	f.inPrompt = true
	f.addSpoken(s, lists[0], f.spoken(s, lists[0]), &r)
	f.inPrompt = false
	n = len(r.Messages)
	f.addSpoken(s, side, answer, &r)
	return r, n
}

// commonPrompt finds the messages with which two whole conversations begin. A prompt under a key of its own has to
// agree.
func (f *fields) commonPrompt(s Source, sides [2]string, answers [2][]*template.Dict, prompts []string,
	all *[2]Record) (n int) {
	chosen, rejected := all[0].Messages, all[1].Messages
	for n < min(len(chosen), len(rejected))-1 && same(chosen[n], rejected[n]) {
		n++
	}
	if n == 0 {
		f.fail("%q and %q begin with different messages: both sides must answer the same prompt", sides[0], sides[1])
		return 0
	}
	for _, name := range prompts {
		if !f.agrees(s, name, chosen, rejected, n) {
			f.fail("field %q is not how %q and %q begin: correct it, or list it under ignore in the entry", name, sides[0],
				sides[1])
			return 0
		}
	}
	f.inPrompt = true // for what marks of its messages say
	f.addSpoken(s, sides[0], answers[0][:max(0, n-(len(chosen)-len(answers[0])))], &Record{})
	f.inPrompt = false
	return n
}

// agrees reports whether a prompt of its own is one of the questions in the first n messages of two conversations, or
// how one of the conversations begins.
func (f *fields) agrees(s Source, name string, chosen, rejected []template.Value, n int) bool {
	if !f.isSpoken(s, name) {
		text := strings.TrimSpace(f.maybe(name))
		return slices.ContainsFunc(chosen[:n], func(v template.Value) bool {
			said, _ := textOf(v.(*template.Dict), "content")
			return roleOf(v) == roleUser && strings.TrimSpace(said) == text
		})
	}
	own := Record{}
	f.addSystem(s, &own)
	f.addSpoken(s, name, f.spoken(s, name), &own)
	begins := func(all []template.Value) bool {
		return len(own.Messages) <= len(all) && slices.EqualFunc(own.Messages, all[:len(own.Messages)], same)
	}
	return begins(chosen) || begins(rejected)
}

// roleOf is the role of a message.
func roleOf(message template.Value) string {
	role, _ := textOf(message.(*template.Dict), "role")
	return role
}

// endPrompt makes the first messages of a record the prompt, of which nothing counts.
func (r *Record) endPrompt(prompt []template.Value) {
	r.promptMessages = len(prompt)
	for i, v := range prompt {
		if roleOf(v) == roleAssistant {
			r.leaveOut(i)
		}
	}
}
