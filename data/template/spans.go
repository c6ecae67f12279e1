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

// AssistantSpans renders a conversation and finds what the assistant wrote. Spans are in order and do not overlap; each
// names its message. in.AddGenerationPrompt must be false.
//
// A template with {% generation %} blocks says itself what counts, and its blocks are the spans, as in transformers'
// return_assistant_tokens_mask.
//
// For another template the turn of message i begins where the generation prompt ends: text A, the messages before i
// with the prompt. It ends with text B, the messages up to i. Where A begins B and B begins the whole text, the turn
// is what B adds to A. White space at the end of that is left out if something stands between it and the content, such
// as the line break behind <|im_end|>: it is the template's, no model has to write it. All that the template puts
// between the prompt and the content is in the turn, for instance an empty <think></think>, since a model that is asked
// with that prompt has to write it.
//
// Some templates render a turn differently once more follows: they drop thoughts, or move tools to the last question.
// Then a mark takes the place of the content, and the turn's end is what all of the text behind the mark has in common
// with B; its beginning is found by the text of the generation prompt before the mark. If neither way finds it, that is
// an error that names the message: no part is trained by guess.
//
// A conversation without a message of the assistant has no spans; that is no error.
func (t *Template) AssistantSpans(ctx context.Context, in Input, turns Turns) (string, []Span, error) {
	if in.AddGenerationPrompt {
		return "", nil, errors.New("chat template: the assistant's parts are those of a conversation without a generation prompt")
	}
	out, err := t.Render(ctx, in)
	if err != nil {
		return "", nil, err
	}
	wanted := assistantMessages(in.Messages)
	if turns == LastTurn && len(wanted) > 1 {
		wanted = wanted[len(wanted)-1:]
	}
	if len(wanted) == 0 {
		return out.Text, nil, nil
	}
	if t.hasGeneration {
		spans, err := blockSpans(out, turns, wanted)
		return out.Text, spans, err
	}
	f := &turnFinder{t: t, ctx: ctx, in: in, text: out.Text}
	var spans []Span
	for _, i := range wanted {
		span, err := f.find(i)
		if err == nil && len(spans) > 0 && span.Start < spans[len(spans)-1].End {
			err = errors.New("its part overlaps that of the turn before")
		}
		if err != nil {
			return "", nil, fmt.Errorf("chat template: message %d: cannot tell which part the assistant wrote: %w", i, err)
		}
		spans = append(spans, span)
	}
	return out.Text, spans, nil
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
	text string
}

func (f *turnFinder) render(messages []Value, prompt bool) (string, error) {
	in := f.in
	in.Messages, in.AddGenerationPrompt = messages, prompt
	out, err := f.t.Render(f.ctx, in)
	return out.Text, err
}

// find finds the turn of message i.
func (f *turnFinder) find(i int) (Span, error) {
	before, err := f.render(f.in.Messages[:i:i], true)
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
	return f.findByMark(i, before)
}

// trimTurn cuts white space off the end of a turn, unless it is the content's or all that ends the turn.
func trimTurn(turn string, message Value) string {
	trimmed := strings.TrimRightFunc(turn, isSpace)
	if text, ok := contentText(message); ok {
		if body := strings.TrimRightFunc(text, isSpace); strings.HasSuffix(trimmed, body) && !endsInMark(trimmed, body) {
			return turn
		}
	}
	return trimmed
}

// endsInMark is for a content that happens to be empty: what a turn ends in is then not the content.
func endsInMark(_, body string) bool { return body == "" }

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

// markedParts puts the mark in the place of the first text.
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
	alone, err := f.render(messages[:i+1:i+1], false)
	if err != nil {
		return Span{}, fmt.Errorf("the messages up to it do not render: %w", err)
	}
	whole, err := f.render(messages, false)
	if err != nil {
		return Span{}, err
	}
	plain, err := f.render(f.in.Messages[:i:i], false)
	if err != nil {
		return Span{}, fmt.Errorf("the messages before it do not render: %w", err)
	}
	aloneHead, aloneTail, ok1 := strings.Cut(alone, mark)
	wholeHead, wholeTail, ok2 := strings.Cut(whole, mark)
	if !ok1 || !ok2 || strings.Contains(aloneTail, mark) || strings.Contains(wholeTail, mark) {
		return Span{}, errors.New("the template drops or repeats its content")
	}
	// The end: what follows the turn in the marked text follows it in the real one too.
	ending := strings.TrimRightFunc(aloneTail, isSpace)
	if ending == "" {
		ending = aloneTail
	}
	rest, ok := strings.CutPrefix(wholeTail, ending)
	if !ok || !strings.HasSuffix(f.text, rest) {
		return Span{}, errors.New("its turn ends differently where more messages follow")
	}
	end := len(f.text) - len(rest)
	start, ok := turnStart(promptOf(plain, before), before, aloneHead, wholeHead)
	if !ok || start > end || !strings.HasPrefix(f.text, wholeHead[:start]) {
		return Span{}, errors.New("the generation prompt is not found before its content")
	}
	return Span{start, end, i}, nil
}

// promptOf is what the generation prompt adds; a template that has none ends in its last message.
func promptOf(plain, before string) string {
	if prompt, ok := strings.CutPrefix(before, plain); ok && prompt != "" {
		return prompt
	}
	const tail = 24
	return before[max(0, len(before)-tail):]
}

// turnStart is where in wholeHead, the text before the mark, the turn begins: behind the prompt, or behind most of it,
// since some templates' prompts go on with what turns of the past do not have, such as <think>.
func turnStart(prompt, before, aloneHead, wholeHead string) (int, bool) {
	opening, _ := strings.CutPrefix(aloneHead, before)
	for n := len(prompt); n > 0 && 2*n >= len(prompt); n-- {
		at := strings.LastIndex(wholeHead, prompt[:n])
		if at < 0 {
			continue
		}
		gap := wholeHead[at+n:]
		if gap == "" || gap == opening || strings.HasSuffix(opening, gap) {
			return at + n, true
		}
	}
	return 0, false
}
