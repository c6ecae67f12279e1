package template

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// turnFinder finds turns in the text of a whole conversation by rendering parts of it.
type turnFinder struct {
	t    *Template
	ctx  context.Context
	in   Input
	text string // without the trailer
	// trailer is the generation prompt of a template that puts it after every text, asked or not, as the first template
	// of Llama 3 did. No part of it is the assistant's.
	trailer string
	isOpen  bool // the template ends turns with nothing but white space

	otherPrompt []int // messages whose turns stand after another prompt than a generation gets
}

func newTurnFinder(t *Template, ctx context.Context, in Input, text string) *turnFinder {
	f := &turnFinder{t: t, ctx: ctx, in: in, text: text}
	with, err1 := f.render([]Value{}, true)
	without, err2 := f.render([]Value{}, false)
	if err1 == nil && err2 == nil && with == without {
		bos, _ := in.variable("bos_token").(String)
		f.trailer = strings.TrimPrefix(with, string(bos))
	}
	if !strings.HasSuffix(text, f.trailer) {
		f.trailer = "" // there is more in a text without messages
	}
	f.text = f.trim(text)
	return f
}

// findTrailer finds the trailer of a template that also writes a fixed text, such as a preamble, before all messages,
// as the templates of Command-A and Command-R7B do. The trailer is the text that follows eos_token after an answer, if
// it begins as the text between a question and its answer does, and if the generation prompt follows it or equals it.
func (f *turnFinder) findTrailer() bool {
	asked, err := f.render(f.in.Messages, true)
	if err != nil || f.trailer != "" || f.eos() == "" || !strings.HasPrefix(asked, f.text) {
		return false
	}
	text, err := f.render([]Value{spoken("user"), spoken("assistant")}, false)
	parts := strings.Split(text, mark)
	if err != nil || len(parts) != 3 {
		return false
	}
	_, trailer, found := strings.Cut(parts[2], f.eos())
	_, opening, hasEOS := strings.Cut(parts[1], f.eos())
	if !hasEOS {
		opening = parts[1]
	}
	if !found || isBlank(commonHeader(trailer, opening)) || strings.Contains(trailer, f.eos()) ||
		!strings.HasSuffix(f.text, trailer) {
		return false
	}
	f.trailer = trailer
	f.text = f.trim(f.text)
	return true
}

func (f *turnFinder) eos() string {
	eos, _ := f.in.variable("eos_token").(String)
	return string(eos)
}

func (f *turnFinder) trim(text string) string {
	if len(text) > len(f.trailer) {
		return strings.TrimSuffix(text, f.trailer)
	}
	return text
}

func (f *turnFinder) render(messages []Value, prompt bool) (string, error) {
	in := f.in
	in.Messages, in.AddGenerationPrompt = messages, prompt
	out, err := f.t.Render(f.ctx, in)
	if prompt {
		return out.Text, err
	}
	return f.trim(out.Text), err
}

// find finds the turn of message i.
func (f *turnFinder) find(i int) (Span, error) {
	before, err := f.render(f.in.Messages[:i:i], true)
	if err != nil {
		if isAsked(f.in.Messages[:i]) {
			return Span{}, fmt.Errorf("the messages before it do not render: %w", err)
		}
		return f.findUnasked(i)
	}
	upTo := f.text
	if i+1 < len(f.in.Messages) {
		if upTo, err = f.render(f.in.Messages[:i+1:i+1], false); err != nil {
			return Span{}, fmt.Errorf("the messages up to it do not render: %w", err)
		}
	}
	if strings.HasPrefix(upTo, before) && strings.HasPrefix(f.text, upTo) {
		end := len(before) + len(f.trimTurn(upTo[len(before):], f.in.Messages[i]))
		return Span{len(before), end, i}, nil
	}
	span, err := f.findByMark(i, before)
	if err != nil {
		var ok bool
		if span, ok = f.findVerbatim(i); ok {
			err = nil
		} else if !isAsked(f.in.Messages[:i]) {
			span, err = f.findUnasked(i)
		}
	}
	if err == nil && !f.isPrompted(i, before, span) {
		f.otherPrompt = append(f.otherPrompt, i)
	}
	if err == nil && f.saysElsewhere(span) {
		return Span{}, errors.New("the template writes its content after the turn: empty the content, or use a " +
			"template that writes it before what a tool returns")
	}
	return span, err
}

// isPrompted reports whether the generation prompt stands before a turn. before are the messages before it with the
// prompt.
func (f *turnFinder) isPrompted(i int, before string, span Span) bool {
	plain, err := f.render(f.in.Messages[:i:i], false)
	return err != nil || strings.HasSuffix(f.text[:span.Start], f.promptOf(before, plain))
}

// promptOf is the generation prompt of a conversation, given its texts with the prompt and without; "" where it is not
// known. Some templates put an end-of-text token after a conversation without the prompt.
func (f *turnFinder) promptOf(asked, plain string) string {
	prompt, ok := strings.CutPrefix(asked, plain)
	if !ok {
		if prompt, ok = strings.CutPrefix(asked, strings.TrimSuffix(plain, f.eos())); !ok {
			return ""
		}
	}
	return prompt
}

// findByMark finds a turn whose text depends on what follows it. before is the conversation up to the turn with the
// generation prompt.
func (f *turnFinder) findByMark(i int, before string) (Span, error) {
	plain, err := f.render(f.in.Messages[:i:i], false)
	if err != nil {
		return Span{}, fmt.Errorf("the messages before it do not render: %w", err)
	}
	// Some templates put an end-of-text token after a conversation without the generation prompt.
	prompt, ok := strings.CutPrefix(before, strings.TrimSuffix(plain, f.eos()))
	if !ok {
		prompt = ""
	}
	return f.tryMarks(i, f.in.Messages[:i:i], func(m *markedTurn) (int, bool) { return f.turnStart(m, before, prompt) })
}

// findUnasked finds a turn before the first question, as if a question came right before it: the prompt of its answer
// must then stand before the turn all the same. Where answers have no prompt, as in templates of Mistral, the content
// must stand right where the question would begin.
func (f *turnFinder) findUnasked(i int) (Span, error) {
	asked := append(f.in.Messages[:i:i], spokenBy("user", "?"))
	before, err1 := f.render(asked, true)
	plain, err2 := f.render(asked, false)
	if err1 == nil && err2 == nil {
		span, err := f.tryMarks(i, asked, func(m *markedTurn) (int, bool) {
			if before == plain {
				start := len(commonHeader(before, m.wholeHead+mark))
				return start, isBlank(m.wholeHead[start:])
			}
			prompt := strings.TrimPrefix(before, plain)
			if start, ok := f.turnStart(m, before, prompt); ok {
				return start, true
			}
			return startAfterPrompt(strings.TrimLeftFunc(prompt, isSpace), "", m.wholeHead)
		})
		if err == nil {
			return span, nil
		}
	}
	return Span{}, errors.New("no question comes before it, and what the template writes before it is not the prompt " +
		"of an answer: remove the turn, or put a question before it")
}

// tryMarks finds the turn of message i with the first marking that shows it. The error is that of the first marking.
func (f *turnFinder) tryMarks(i int, asked []Value, start func(*markedTurn) (int, bool)) (Span, error) {
	var first error
	for _, marked := range markings {
		messages, err := marked(f.in.Messages, i)
		if err == nil {
			var span Span
			if span, err = f.findMark(i, asked, messages, start); err == nil {
				return span, nil
			}
		}
		if first == nil {
			first = err
		}
	}
	return Span{}, first
}

// markedTurn is a turn that has the mark, at the end of a conversation and in the whole one.
type markedTurn struct {
	asked []Value // the messages before it
	rest  []Value // itself and those after it
	// The texts before and after the mark where the turn is the last one, and in the whole conversation.
	aloneHead, aloneTail, wholeHead, wholeTail string
}

// findMark finds the turn of message i, which has the mark in messages.
func (f *turnFinder) findMark(i int, asked, messages []Value, start func(*markedTurn) (int, bool)) (Span, error) {
	alone, err := f.render(append(slices.Clip(asked), messages[i]), false)
	if err != nil {
		return Span{}, fmt.Errorf("the messages up to it do not render: %w", err)
	}
	whole, err := f.render(messages, false)
	if err != nil {
		return Span{}, err
	}
	m := &markedTurn{asked: asked, rest: messages[i:]}
	var ok1, ok2 bool
	m.aloneHead, m.aloneTail, ok1 = strings.Cut(alone, mark)
	m.wholeHead, m.wholeTail, ok2 = strings.Cut(whole, mark)
	if !ok1 || !ok2 || strings.Contains(m.aloneTail, mark) || strings.Contains(m.wholeTail, mark) {
		return Span{}, errors.New("the template drops or repeats its content")
	}
	turn, hasTurn, err := f.upToNext(i, messages, m)
	if err != nil {
		return Span{}, err
	}
	// What follows the turn in the marked text follows it in the real one too.
	rest, ok := f.cutEnding(m.aloneTail, m.wholeTail)
	if !ok && hasTurn {
		rest, ok = f.cutEOS(turn, m.wholeTail)
	}
	if !ok || !strings.HasSuffix(f.text, rest) {
		return Span{}, errors.New("its turn ends differently where more messages follow; " +
			"train the last turn only, or put {% generation %} into the template")
	}
	at, ok := start(m)
	end := len(f.text) - len(rest)
	if !ok || at > end || !strings.HasPrefix(f.text, m.wholeHead[:at]) {
		return Span{}, errors.New("the generation prompt is not found before its content: " +
			"does the message have thoughts where the prompt has none? (enable_thinking)")
	}
	return Span{at, end, i}, nil
}

// upToNext is the text between the mark and the content of the next message, false where that is not known. It is an
// error if the content comes before the mark, since the turn would then have another's text in it.
func (f *turnFinder) upToNext(i int, messages []Value, m *markedTurn) (string, bool, error) {
	if i+1 == len(messages) {
		return "", false, nil
	}
	next, err := withContent(messages, i+1, nextMark)
	if err != nil {
		return "", false, err
	}
	text, err := f.render(next, false)
	if err != nil {
		return "", false, nil
	}
	if head, _, _ := strings.Cut(text, mark); strings.Contains(head, nextMark) {
		return "", false, errors.New("the template writes the next message before its content: empty the content, or " +
			"use a template that writes it before what a tool returns")
	}
	tail, ok1 := strings.CutPrefix(text, m.wholeHead+mark)
	turn, _, ok2 := strings.Cut(tail, nextMark)
	return turn, ok1 && ok2, nil
}

// isAsked reports whether there is a question among the messages.
func isAsked(messages []Value) bool {
	return slices.ContainsFunc(messages, func(m Value) bool { return roleOf(m) == "user" })
}

func roleOf(message Value) string {
	if d, ok := message.(*Dict); ok {
		role, _ := d.Get("role")
		s, _ := role.(String)
		return string(s)
	}
	return ""
}

// reasoningKeys may have the thoughts of a message.
var reasoningKeys = []string{"reasoning_content", "thinking", "reasoning"}

// findVerbatim finds a turn that the text has, after the same prompt, exactly as at the end of a text, and only once.
// It empties keys of the turn's message until that is so: templates drop thoughts of the past, and some treat content
// next to a tool call as thoughts.
func (f *turnFinder) findVerbatim(i int) (Span, bool) {
	message, ok := f.in.Messages[i].(*Dict)
	if !ok {
		return Span{}, false
	}
	for _, empty := range [][]string{nil, reasoningKeys, append([]string{"content"}, reasoningKeys...)} {
		changed := without(message, empty)
		prompt, ok1 := f.afterMessage(f.in.Messages[:i], true)
		promptAndTurn, ok2 := f.afterMessage(f.in.Messages[:i], false, changed)
		turn, ok3 := strings.CutPrefix(promptAndTurn, prompt)
		if turn = f.trimTurn(turn, changed); !ok1 || !ok2 || !ok3 || turn == "" {
			continue
		}
		at := strings.Index(f.text, prompt+turn)
		if at >= 0 && !strings.Contains(f.text[at+1:], prompt+turn) {
			start := at + len(prompt)
			return Span{start, start + len(turn), i}, true
		}
	}
	return Span{}, false
}

// without returns a copy of a message in which those of the keys that it has are empty.
func without(message *Dict, keys []string) *Dict {
	message = message.clone()
	for _, key := range keys {
		if _, ok := message.Get(key); ok {
			message.Set(key, String(""))
		}
	}
	return message
}

// saysElsewhere reports whether the template writes the content of a message outside of what was found as its turn.
func (f *turnFinder) saysElsewhere(span Span) bool {
	if content, _ := contentText(f.in.Messages[span.Message]); isBlank(content) {
		return false
	}
	messages, err := markedContent(f.in.Messages, span.Message)
	if err != nil {
		return false
	}
	text, err := f.render(messages, false)
	head, _, found := strings.Cut(text, mark)
	return err == nil && found && strings.HasPrefix(f.text, head) && (len(head) < span.Start || len(head) > span.End)
}
