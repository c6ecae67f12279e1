package template

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Turns says which of the assistant's turns are wanted.
type Turns uint8

const (
	AllTurns Turns = iota
	LastTurn       // the last message of the assistant
)

// FindTurns renders a conversation and finds what the assistant wrote. Spans are in order and do not overlap; each
// names its message. in.AddGenerationPrompt must be false.
//
// A template with {% generation %} blocks says itself what counts, and its blocks are the spans, as in transformers'
// return_assistant_tokens_mask.
//
// For another template the turn of message i begins where the generation prompt ends: text A, the messages before i
// with the prompt. It ends with text B, the messages up to i. Where A begins B and B begins the whole text, B adds
// the turn to A. White space at the turn's end is left out if something stands between it and the content, such
// as the line break after <|im_end|>: it belongs to the template, and no model has to write it. All text that the
// template puts between the prompt and the content is in the turn, for instance an empty <think></think>, since a model
// that is asked with that prompt has to write it.
//
// Some templates render a turn differently once more follows: they drop thoughts, or move tools to the last question.
// Then a mark replaces the content. The turn ends with the text after the mark that the whole text and B have in
// common; its beginning is found by the text of the generation prompt before the mark. Where a template drops the
// content, as next to a tool call, the turn is looked for as B has it. Thoughts, and content next to a tool call, may
// be missing there. A token that ends only the last turn counts there, if it is eos_token.
//
// A turn that begins the conversation is found as if a question came before it, by the prompt of its answer, where a
// template renders no conversation without messages. Text that a template puts after every conversation to open the
// next turn belongs to no turn.
//
// If no way finds the turn, that is an error that names the message: no part is trained by guess.
//
// A template may end turns with nothing; then a conversation is Unended, which says what the template has in such
// places.
//
// A conversation without a message of the assistant has no spans; that is no error. The Limits are those of one render,
// and n turns may take 2n+7 of them, or 7n+7 where marks are needed; ctx bounds them together.
func (t *Template) FindTurns(ctx context.Context, in Input, turns Turns) (Conversation, error) {
	if in.AddGenerationPrompt {
		return Conversation{}, errors.New("chat template: the assistant's parts are those of a conversation without a generation prompt")
	}
	out, err := t.Render(ctx, in)
	if err != nil {
		return Conversation{}, err
	}
	wanted := assistantMessages(in.Messages)
	if turns == LastTurn && len(wanted) > 1 {
		wanted = wanted[len(wanted)-1:]
	}
	if len(wanted) == 0 {
		return Conversation{Text: out.Text}, nil
	}
	if t.hasGeneration {
		spans, err := blockSpans(out, turns, wanted)
		return Conversation{Text: out.Text, Spans: spans}, err
	}
	f := newTurnFinder(t, ctx, in, out.Text)
	spans, err := f.findAll(wanted)
	if err != nil && f.findTrailer(wanted[len(wanted)-1]) {
		spans, err = f.findAll(wanted)
	}
	if err != nil {
		return Conversation{}, err
	}
	return Conversation{out.Text, spans, f.unended(spans[len(spans)-1])}, nil
}

// findAll finds the turns of messages.
func (f *turnFinder) findAll(wanted []int) ([]Span, error) {
	var spans []Span
	for _, i := range wanted {
		span, err := f.find(i)
		if err == nil && i+1 == len(f.in.Messages) {
			err = f.checkEnd(i)
		}
		if err == nil && len(spans) > 0 && span.Start < spans[len(spans)-1].End {
			err = errors.New("its part overlaps that of the turn before")
		}
		if err != nil {
			return nil, fmt.Errorf("chat template: message %d: cannot tell which part the assistant wrote: %w", i, err)
		}
		spans = append(spans, span)
	}
	return spans, nil
}

func assistantMessages(messages []Value) []int {
	var at []int
	for i, m := range messages {
		if d, ok := m.(*Dict); ok {
			if role, ok := d.Get("role"); ok && role == Value(String("assistant")) {
				at = append(at, i)
			}
		}
	}
	return at
}

// blockSpans are the generation blocks of the wanted turns.
func blockSpans(out Output, turns Turns, wanted []int) ([]Span, error) {
	if out.isHidden {
		return nil, errors.New("chat template: a generation block is in a macro, call, set or filter block, " +
			"so that its place in the text is not known: print it directly")
	}
	if len(out.Generations) == 0 {
		return nil, errors.New("chat template: there are messages of the assistant, but no generation block was reached")
	}
	if turns == AllTurns {
		return out.Generations, nil
	}
	var spans []Span
	for _, g := range out.Generations {
		if g.Message < 0 {
			return nil, errors.New("chat template: which message a generation block belongs to is not known, " +
				"so the last turn cannot be told: train all turns")
		}
		if g.Message == wanted[0] {
			spans = append(spans, g)
		}
	}
	if spans == nil {
		return nil, fmt.Errorf("chat template: message %d: no generation block was reached", wanted[0])
	}
	return spans, nil
}

// turnFinder finds turns in the text of a whole conversation by rendering parts of it.
type turnFinder struct {
	t    *Template
	ctx  context.Context
	in   Input
	text string // without the trailer
	// trailer is the generation prompt of a template that puts it after every text, asked or not, as the first template
	// of Llama 3 did. No part of it is the assistant's.
	trailer string
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
// as the templates of Command-A and Command-R7B do. The trailer is the text that follows eos_token after message i, if
// it is also between a question and its answer, and if the generation prompt follows it or equals it.
func (f *turnFinder) findTrailer(i int) bool {
	asked, err := f.render(f.in.Messages, true)
	if err != nil || f.trailer != "" || f.eos() == "" || !strings.HasPrefix(asked, f.text) {
		return false
	}
	messages, err := marked(f.in.Messages[:i+1:i+1], i)
	if err != nil {
		return false
	}
	tail, ok := f.afterMark(messages)
	_, trailer, found := strings.Cut(tail, f.eos())
	if !ok || !found || strings.TrimSpace(trailer) == "" || strings.Contains(trailer, f.eos()) || !strings.HasSuffix(f.text, trailer) {
		return false
	}
	text, err := f.render([]Value{spoken("user"), spoken("assistant")}, false)
	parts := strings.Split(text, mark)
	if err != nil || len(parts) != 3 || !strings.Contains(parts[1], trailer) {
		return false
	}
	f.trailer = trailer
	f.text = f.trim(f.text)
	return true
}

// spoken is a message that says the mark.
func spoken(role string) *Dict {
	d := NewDict(2)
	d.Set("role", String(role))
	d.Set("content", String(mark))
	return d
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
	if err != nil && i == 0 {
		return f.findFirst()
	}
	if err != nil {
		return Span{}, fmt.Errorf("the messages before it do not render: %w", err)
	}
	upTo := f.text
	if i+1 < len(f.in.Messages) {
		if upTo, err = f.render(f.in.Messages[:i+1:i+1], false); err != nil {
			return Span{}, fmt.Errorf("the messages up to it do not render: %w", err)
		}
	}
	if strings.HasPrefix(upTo, before) && strings.HasPrefix(f.text, upTo) {
		end := len(before) + len(trimTurn(upTo[len(before):], f.in.Messages[i]))
		return Span{len(before), end, i}, nil
	}
	span, err := f.findByMark(i, before)
	if err == nil {
		return span, nil
	}
	for _, keys := range [][]string{nil, reasoningKeys, append([]string{"content"}, reasoningKeys...)} {
		if span, ok := f.findVerbatim(i, keys); ok {
			return span, nil
		}
	}
	return span, err
}

// findFirst finds the turn that begins a conversation with a template that renders none without messages: as if a
// question came before it, whose prompt then must stand before the turn all the same.
func (f *turnFinder) findFirst() (Span, error) {
	question := NewDict(2)
	question.Set("role", String("user"))
	question.Set("content", String("?"))
	before, err1 := f.render([]Value{question}, true)
	plain, err2 := f.render([]Value{question}, false)
	messages, err3 := marked(f.in.Messages, 0)
	if err1 == nil && err2 == nil && err3 == nil && strings.TrimSpace(strings.TrimPrefix(before, plain)) != "" {
		if span, err := f.findMark(messages, 0, []Value{question, messages[0]}, before, plain); err == nil {
			return span, nil
		}
	}
	return Span{}, errors.New("the conversation begins with it, and what the template writes before it is not the prompt of an answer: " +
		"remove the turn, or put a question before it")
}

// reasoningKeys may have the thoughts of a message.
var reasoningKeys = []string{"reasoning_content", "thinking", "reasoning"}

// findVerbatim finds a turn that the text has, after the same prompt, exactly as at the end of a text, and only once.
// It empties the given keys of the turn's message: templates drop thoughts of the past, and some treat content next to
// a tool call as thoughts.
func (f *turnFinder) findVerbatim(i int, empty []string) (Span, bool) {
	message, ok := f.in.Messages[i].(*Dict)
	if !ok {
		return Span{}, false
	}
	messages := append(f.in.Messages[:i:i], without(message, empty))
	prompt, ok1 := f.afterMessage(messages[:i], i, true)
	promptAndTurn, ok2 := f.afterMessage(messages, i, false)
	turn, ok3 := strings.CutPrefix(promptAndTurn, prompt)
	if turn = trimTurn(turn, messages[i]); !ok1 || !ok2 || !ok3 || turn == "" {
		return Span{}, false
	}
	at := strings.Index(f.text, prompt+turn)
	if at < 0 || strings.Contains(f.text[at+1:], prompt+turn) {
		return Span{}, false
	}
	start := at + len(prompt)
	return Span{start, start + len(turn), i}, true
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

// afterMessage returns the text after the content of message i-1: with the generation prompt and without message i,
// that is the end of the turn and the header of the next.
func (f *turnFinder) afterMessage(messages []Value, i int, prompt bool) (string, bool) {
	if i == 0 {
		return "", false
	}
	messages, err := marked(messages, i-1)
	if err != nil {
		return "", false
	}
	text, err := f.render(messages, prompt)
	parts := strings.Split(text, mark)
	if err != nil || len(parts) != 2 {
		return "", false
	}
	return parts[1], parts[1] != ""
}

// trimTurn cuts white space off the end of a turn, unless nothing else ends the turn: then it follows the content
// directly.
func trimTurn(turn string, message Value) string {
	trimmed := strings.TrimRightFunc(turn, isSpace)
	content, _ := contentText(message)
	content = strings.TrimRightFunc(content, isSpace)
	if trimmed == "" || content != "" && strings.HasSuffix(trimmed, content) {
		return turn
	}
	return trimmed
}

// contentText is a message's content where it is text, or the last text of its parts.
func contentText(message Value) (string, bool) {
	d, ok := message.(*Dict)
	if !ok {
		return "", false
	}
	content, _ := d.Get("content")
	switch content := content.(type) {
	case String:
		return string(content), true
	case *List:
		for i := len(content.items) - 1; i >= 0; i-- {
			if part, ok := content.items[i].(*Dict); ok {
				if text, ok := part.Get("text"); ok {
					s, ok := text.(String)
					return string(s), ok
				}
			}
		}
	}
	return "", false
}

// mark stands for a content: private characters, which no template looks for and no text has.
const mark = "\U0010F0D1\U0010F0D2\U0010F0D3"

// marked is message i with the mark as its content.
func marked(messages []Value, i int) ([]Value, error) {
	d, ok := messages[i].(*Dict)
	if !ok {
		return nil, errors.New("it is not an object")
	}
	d = d.clone()
	content, _ := d.Get("content")
	if parts, ok := content.(*List); ok {
		d.Set("content", markedParts(parts))
	} else {
		d.Set("content", String(mark))
	}
	out := append([]Value(nil), messages...)
	out[i] = d
	return out, nil
}

// markedParts replaces the first text with the mark.
func markedParts(parts *List) Value {
	items := append([]Value(nil), parts.items...)
	for j, item := range items {
		if part, ok := item.(*Dict); ok {
			if _, ok := part.Get("text"); ok {
				part = part.clone()
				part.Set("text", String(mark))
				items[j] = part
				return &List{items}
			}
		}
	}
	return String(mark)
}

// findByMark finds a turn whose text depends on what follows it. before is the conversation up to the turn with the
// generation prompt.
func (f *turnFinder) findByMark(i int, before string) (Span, error) {
	messages, err := marked(f.in.Messages, i)
	if err != nil {
		return Span{}, err
	}
	plain, err := f.render(f.in.Messages[:i:i], false)
	if err != nil {
		return Span{}, fmt.Errorf("the messages before it do not render: %w", err)
	}
	return f.findMark(messages, i, messages[:i+1:i+1], before, plain)
}

// findMark finds the turn of message i, which has the mark. upTo are the messages up to it, before and plain those
// before it with and without the generation prompt.
func (f *turnFinder) findMark(messages []Value, i int, upTo []Value, before, plain string) (Span, error) {
	alone, err := f.render(upTo, false)
	if err != nil {
		return Span{}, fmt.Errorf("the messages up to it do not render: %w", err)
	}
	whole, err := f.render(messages, false)
	if err != nil {
		return Span{}, err
	}
	aloneHead, aloneTail, ok1 := strings.Cut(alone, mark)
	wholeHead, wholeTail, ok2 := strings.Cut(whole, mark)
	if !ok1 || !ok2 || strings.Contains(aloneTail, mark) || strings.Contains(wholeTail, mark) {
		return Span{}, errors.New("the template drops or repeats its content")
	}
	// The end: what follows the turn in the marked text follows it in the real one too.
	rest, ok := f.cutEnding(aloneTail, wholeTail)
	if !ok || !strings.HasSuffix(f.text, rest) {
		return Span{}, errors.New("its turn ends differently where more messages follow; " +
			"train the last turn only, or put {% generation %} into the template")
	}
	end := len(f.text) - len(rest)
	start, ok := 0, false
	if prompt, hasPrompt := strings.CutPrefix(before, strings.TrimSuffix(plain, f.eos())); hasPrompt {
		start, ok = turnStart(prompt, aloneHead[commonPrefix(aloneHead, before):], wholeHead)
	}
	if !ok {
		start, ok = f.startBehindMessage(messages, i, wholeHead)
	}
	if !ok || start > end || !strings.HasPrefix(f.text, wholeHead[:start]) {
		return Span{}, errors.New("the generation prompt is not found before its content: " +
			"does the message have thoughts where the prompt has none? (enable_thinking)")
	}
	return Span{start, end, i}, nil
}

// cutEnding takes from wholeTail what ends the turn: aloneTail without the white space at its end, and without the
// end-of-text token that some templates put after the last message only.
func (f *turnFinder) cutEnding(aloneTail, wholeTail string) (rest string, ok bool) {
	ending := strings.TrimRightFunc(aloneTail, isSpace)
	if ending == "" {
		return strings.CutPrefix(wholeTail, aloneTail)
	}
	if rest, ok := strings.CutPrefix(wholeTail, ending); ok {
		return rest, true
	}
	return strings.CutPrefix(wholeTail, f.trimEOS(ending))
}

func (f *turnFinder) trimEOS(text string) string {
	return strings.TrimRightFunc(strings.TrimSuffix(strings.TrimRightFunc(text, isSpace), f.eos()), isSpace)
}

// checkEnd checks that the text after the last turn would be the same if a question followed, except for the
// end-of-text token. A template that opens the next turn by itself fails here.
func (f *turnFinder) checkEnd(i int) error {
	question := NewDict(2)
	question.Set("role", String("user"))
	question.Set("content", String("?"))
	messages, err := marked(f.in.Messages[:i+1:i+1], i)
	if err != nil {
		return err
	}
	alone, err1 := f.render(messages, false)
	followed, err2 := f.render(append(messages, question), false)
	_, aloneTail, ok1 := strings.Cut(alone, mark)
	_, followedTail, ok2 := strings.Cut(followed, mark)
	if err1 == nil && err2 == nil && ok1 && ok2 && !strings.HasPrefix(followedTail, f.trimEOS(aloneTail)) {
		return errors.New("the template puts text after the last turn that does not belong to it: " +
			"put {% generation %} into the template")
	}
	return nil // what cannot be tried so is left as it was found
}

// startBehindMessage finds the prompt between the message before, marked too, and the content. What stands between the
// prompt and the content is then of this turn, whatever it is: emptied thoughts for instance.
func (f *turnFinder) startBehindMessage(messages []Value, i int, wholeHead string) (int, bool) {
	prompt, ok := f.afterMessage(f.in.Messages[:i], i, true)
	if !ok {
		return 0, false
	}
	both, err := marked(messages, i-1)
	if err != nil {
		return 0, false
	}
	text, err := f.render(both, false)
	if err != nil {
		return 0, false
	}
	parts := strings.Split(text, mark)
	if len(parts) != 3 {
		return 0, false
	}
	between := parts[1]
	if strings.HasPrefix(prompt, between) && strings.HasSuffix(wholeHead, between) {
		return len(wholeHead), true // the prompt continues with text that past turns do not have
	}
	at := strings.LastIndex(between, prompt)
	if at < 0 || !strings.HasSuffix(wholeHead, between[at:]) {
		return 0, false
	}
	return len(wholeHead) - len(between) + at + len(prompt), true
}

// turnStart returns where the turn begins in wholeHead, the text before the mark: after the prompt, or after most of
// it, since the prompts of some templates continue with text that past turns do not have, such as <think>. opening is
// the text between the prompt and the mark where the turn is the last one.
func turnStart(prompt, opening, wholeHead string) (int, bool) {
	for n := len(prompt); n > 0 && 2*n >= len(prompt); n-- {
		at := strings.LastIndex(wholeHead, prompt[:n])
		if at < 0 {
			continue
		}
		if gap := wholeHead[at+n:]; strings.HasSuffix(opening, gap) {
			return at + n, true
		}
	}
	return 0, false
}

func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
