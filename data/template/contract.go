package template

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Contract describes how a template treats turns of the assistant, whatever they say. It is found with made-up texts,
// and so holds for all conversations that have the same variables besides messages and tools.
//
// Two things are in it. One is how a turn ends: with text after what the assistant says, or with nothing (GLM, Apertus,
// Apriel, Falcon). That must not be read off a row, whose content the template may have moved, cut or repeated. The
// other one is what the template writes of a turn that is the last one: thoughts, in a key or in the content, content,
// and one call or several, alone and together. The parts that it leaves out of a turn that others follow, such as the thoughts of
// the past, can then be told from what it does not know at all.
type Contract struct {
	t *Template
	// isOpen says that a turn ends with nothing but white space.
	isOpen bool
	// ends has what follows a turn that is open, without and with calls.
	ends [2]Unended
	err  error // why it is not known how turns end
	// written has the parts of a last turn that the template writes; a form that does not render is missing.
	written map[form]map[Part]bool
	// prompt is the generation prompt after a question, "" where there is none.
	prompt string
}

// form is the shape of a turn of the assistant.
type form struct {
	thoughts int // noThoughts and the others
	calls    int // 0, 1, or 2 for several
	content  bool
}

const (
	noThoughts = iota
	keyThoughts
	contentThoughts // between tags in the content
	thoughtForms
)

// formOf is the form of a message.
func formOf(message *Dict) form {
	var f form
	content, _ := contentText(message)
	if before, after, ok := cutThoughts(content); ok {
		f.thoughts, content = contentThoughts, before+after
	}
	for _, key := range reasoningKeys {
		if v, _ := message.Get(key); v != nil {
			if s, ok := v.(String); ok && !isBlank(string(s)) {
				f.thoughts = keyThoughts
			}
		}
	}
	f.content = !isBlank(content)
	f.calls = min(len(callsOf(message)), 2)
	return f
}

// cutThoughts takes the thoughts out of a content that has them between tags.
func cutThoughts(content string) (before, after string, ok bool) {
	at := strings.LastIndex(content, endOfThoughts)
	if at < 0 {
		return content, "", false
	}
	before, _, _ = strings.Cut(content[:at], beginOfThoughts)
	return before, content[at+len(endOfThoughts):], true
}

// beginOfThoughts is the tag that begins thoughts which stand in the content.
const beginOfThoughts = "<think>"

// callsOf are the tool calls of a message.
func callsOf(message *Dict) []Value {
	calls, _ := message.Get("tool_calls")
	list, ok := calls.(*List)
	if !ok {
		return nil
	}
	return list.items
}

// Made-up texts. No word of them is one that templates look for.
const (
	madeUpQuestion = "zquestion"
	madeUpThoughts = "zthoughts"
	madeUpTool     = "zlookup"
	madeUpID       = "c0ffee123" // nine letters and digits, as Mistral's templates want
)

// madeUp is a turn of a form with a content that is not empty if the form has one.
func madeUp(f form, content string) *Dict {
	d := spokenBy("assistant", "")
	if f.content {
		d.Set("content", String(content))
	}
	switch f.thoughts {
	case keyThoughts:
		d.Set("reasoning_content", String(madeUpThoughts))
		d.Set("thinking", String(madeUpThoughts))
	case contentThoughts:
		c, _ := d.Get("content")
		d.Set("content", String(beginOfThoughts+"\n"+madeUpThoughts+"\n"+endOfThoughts+"\n\n")+c.(String))
	}
	var calls []Value
	for i := range f.calls {
		arguments, function, call := NewDict(1), NewDict(2), NewDict(3)
		arguments.Set("zkey", String(fmt.Sprintf("zvalue%d", i)))
		function.Set("name", String(madeUpTool))
		function.Set("arguments", arguments)
		call.Set("id", String(fmt.Sprintf("%s%d", madeUpID[:8], i)))
		call.Set("type", String("function"))
		call.Set("function", function)
		calls = append(calls, call)
	}
	if calls != nil {
		d.Set("tool_calls", &List{calls})
	}
	return d
}

// madeUpTools is one tool.
func madeUpTools() []Value {
	property, properties, parameters, function, tool := NewDict(2), NewDict(1), NewDict(2), NewDict(3), NewDict(2)
	property.Set("type", String("string"))
	property.Set("description", String("zmeaning"))
	properties.Set("zkey", property)
	parameters.Set("type", String("object"))
	parameters.Set("properties", properties)
	parameters.Set("required", &List{[]Value{String("zkey")}})
	function.Set("name", String(madeUpTool))
	function.Set("description", String("zpurpose"))
	function.Set("parameters", parameters)
	tool.Set("type", String("function"))
	tool.Set("function", function)
	return []Value{tool}
}

// Contract probes a template. Of in, the messages have no meaning, and of the tools counts whether there are any.
func (t *Template) Contract(ctx context.Context, in Input) (*Contract, error) {
	c := &Contract{t: t, written: map[form]map[Part]bool{}}
	if in.Tools != nil {
		in.Tools = madeUpTools()
	}
	in.AddGenerationPrompt = false
	var first error
	for _, before := range [][]Value{
		{spokenBy("user", madeUpQuestion)},
		{spokenBy("system", "zsystem"), spokenBy("user", madeUpQuestion)},
	} {
		in.Messages = append(before[:len(before):len(before)], madeUp(form{content: true}, mark))
		out, err := t.Render(ctx, in)
		if err == nil {
			f := newTurnFinder(t, ctx, in, out.Text)
			if _, err := f.find(len(before)); err != nil && !f.findTrailer() {
				f.trailer, f.text = "", out.Text
			}
			c.probe(f, before)
			return c, ctx.Err()
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if first == nil {
			first = err
		}
	}
	return nil, fmt.Errorf("the chat template does not render a question and an answer: %w", first)
}

// probe finds the contract, given messages after which an answer renders.
func (c *Contract) probe(f *turnFinder, before []Value) {
	turn := func(message *Dict) []Value { return append(before[:len(before):len(before)], message) }
	known := false
	for thoughts := range thoughtForms {
		tail, ok := f.afterLast(turn(madeUp(form{thoughts, 0, true}, mark)), mark)
		switch {
		case !ok:
		case !known:
			c.isOpen, known = isBlank(tail), true
		case c.isOpen != isBlank(tail):
			c.err = errors.New("the chat template ends turns with thoughts in another way than turns without: " +
				"put {% generation %} into the template")
		}
	}
	if !known {
		c.err = errors.New("the chat template does not write what the assistant says, so that it is not known how it " +
			"ends a turn: put {% generation %} into the template")
	}
	if c.isOpen {
		c.ends[0] = f.following(turn(madeUp(form{content: true}, mark)), spoken("user"))
		for _, marked := range []func([]Value, int) ([]Value, error){markedCall, markedCallName, markedContent} {
			calls, err := marked(turn(madeUp(form{calls: 1}, "")), len(before))
			if err != nil {
				continue
			}
			c.ends[1] = f.following(calls, toolAnswer(calls[len(before)].(*Dict)), spoken("user"))
			if c.ends[1].Next != "" {
				break
			}
		}
	}
	if asked, err := f.render(before, true); err == nil {
		if plain, err := f.render(before, false); err == nil {
			c.prompt = f.promptOf(asked, plain)
		}
	}
	for thoughts := range thoughtForms {
		for calls := range 3 {
			for _, content := range []bool{true, false} {
				c.tryForm(f, turn, form{thoughts, calls, content})
			}
		}
	}
}

// following finds what comes after a turn that has the mark: the text after the mark where the turn is the last one,
// and the text up to the content of the first message of next that renders after it.
func (f *turnFinder) following(messages []Value, next ...*Dict) (u Unended) {
	tail, ok := f.afterLast(messages, mark)
	if !ok {
		return u
	}
	u.Tail = tail
	for _, message := range next {
		message = message.clone()
		message.Set("content", String(nextMark))
		text, err := f.render(append(messages[:len(messages):len(messages)], message), false)
		if err != nil {
			continue
		}
		if at := strings.LastIndex(text, mark); at >= 0 {
			between, _, ok := strings.Cut(text[at+len(mark):], nextMark)
			if !ok {
				continue
			}
			if u.Next, ok = strings.CutPrefix(between, tail); !ok {
				u.Next = strings.TrimPrefix(between, strings.TrimRightFunc(tail, isSpace))
			}
			break
		}
	}
	if text, err := f.render([]Value{spoken("user")}, false); err == nil {
		u.Header, _, _ = strings.Cut(text, mark)
	}
	return u
}

// afterLast returns the text after the last place of a mark in a rendered conversation.
func (f *turnFinder) afterLast(messages []Value, mark string) (string, bool) {
	text, err := f.render(messages, false)
	at := strings.LastIndex(text, mark)
	if err != nil || at < 0 {
		return "", false
	}
	return text[at+len(mark):], true
}

// unended describes the missing end of a turn of a message; nil if the turn has an end.
func (c *Contract) unended(message Value) *Unended {
	d, ok := message.(*Dict)
	if !c.isOpen || !ok {
		return nil
	}
	u := c.ends[0]
	if len(callsOf(d)) > 0 {
		u = c.ends[1]
	}
	return &u
}

// HasBlocks reports whether the template says itself what counts, with {% generation %} blocks.
func (c *Contract) HasBlocks() bool { return c.t.hasGeneration }
