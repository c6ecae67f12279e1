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
// Then a mark replaces the content, or an argument of the last call where the template drops content next to calls.
// The turn ends with the text after the mark that the whole text and B have in common, or else with the first
// eos_token. Its beginning is found by the text of the generation prompt before the mark. Where the prompt continues
// with text that the turn does not have, such as a thought that is begun, the turn begins where the two part. If that
// fails, the turn is looked for as B has it. Thoughts, and content next to a tool call, may be missing there. A token
// that ends only the last turn counts there, if it is eos_token.
//
// A turn before the first question is found as if a question came before it, by the prompt of its answer. Text that a
// template puts after every conversation to open the next turn belongs to no turn. Nothing of a message that a template
// writes inside of a turn, or of a turn that it writes elsewhere, is trained: that is an error.
//
// If no way finds the turn, that is an error that names the message: no part is trained by guess.
//
// A template may end turns with nothing; then a conversation is Unended, which says what the template has in such
// places. Whether it does is found with made-up texts, see [Contract], and not by what a turn says.
//
// A conversation without a message of the assistant has no spans; that is no error.
//
// The Limits are those of one render; ctx bounds all of them together. A turn takes 2 renders, or some 12 where marks
// are needed, and at most 31; one that no question comes before takes some 24 with marks, and at most 54. Besides, a
// conversation takes at most 22. Twice as many are possible for a template that opens the next turn after every text,
// which is tried after all else. A contract takes at most 80.
func (t *Template) FindTurns(ctx context.Context, in Input, turns Turns) (Conversation, error) {
	if t.hasGeneration { // which says what counts
		return (&Contract{t: t}).FindTurns(ctx, in, turns)
	}
	c, err := t.Contract(ctx, in)
	if err != nil {
		return Conversation{}, err
	}
	return c.FindTurns(ctx, in, turns)
}

// FindTurns is [Template.FindTurns] by a contract that is known.
func (c *Contract) FindTurns(ctx context.Context, in Input, turns Turns) (Conversation, error) {
	t := c.t
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
		return Conversation{Text: out.Text, Spans: spans, OtherPrompt: c.otherPrompts(out.Text, spans, in.Messages)}, err
	}
	if c.err != nil {
		return Conversation{}, c.err
	}
	f := newTurnFinder(t, ctx, in, out.Text)
	f.isOpen = c.isOpen
	spans, err := f.findAll(wanted)
	if err != nil && f.findTrailer() {
		f.otherPrompt = nil
		spans, err = f.findAll(wanted)
	}
	if err != nil {
		return Conversation{}, err
	}
	return Conversation{out.Text, spans, c.unended(in.Messages[spans[len(spans)-1].Message]), f.otherPrompt}, nil
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

// otherPrompts are the messages of blocks that answer a question and stand after another prompt than a generation gets.
// A block may begin in the prompt.
func (c *Contract) otherPrompts(text string, spans []Span, messages []Value) (others []int) {
	for i, s := range spans {
		if c.prompt == "" || s.Message < 1 || roleOf(messages[s.Message-1]) != "user" || i > 0 && spans[i-1].Message == s.Message {
			continue
		}
		from := max(s.Start-len(c.prompt), 0)
		to := min(s.Start+len(c.prompt), len(text))
		if !strings.Contains(text[from:to], c.prompt) {
			others = append(others, s.Message)
		}
	}
	return others
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
