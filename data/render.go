package data

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/data/tokenizer"
)

// Segment is a stretch of text that is tokenized by itself, so that its tokens do not depend on its neighbours: a
// prompt has the same tokens in training as when the model is asked later.
type Segment struct {
	Text   string
	Target bool // the model shall learn to produce it
}

// Rendered is a record as the model shall see it.
type Rendered struct {
	Segments []Segment
	// Begin puts what the tokenizer's template has before a text (for instance BOS) in front; it does not count.
	Begin bool
	// End closes the document with what the template has after a text, and EOS if that is not its last token. It
	// counts as a target, so that the model learns to stop.
	End bool
	// Joined makes the segments one text, as transformers encodes what a chat template returns: a token that reaches
	// over a border belongs to the segment that it ends in if that is a target.
	Joined bool
	// Unended is set where the segments have turns without an end, which Tokenize gives them.
	Unended *Unended
	// Turns are the segments that end a turn of the assistant which counts, in order. A text has none.
	Turns []int

	otherPrompt []bool  // of Turns: the turn follows another prompt than a generation gets
	endsInTurn  bool    // the last of Turns is the last turn of the record, counted or not
	left        LeftOut // by the template
}

// Renderer turns records into text. It must be safe for concurrent use.
type Renderer interface {
	Render(ctx context.Context, r Record) (Rendered, error)
	// Version identifies the rendering: tokens cached under one Version stay valid.
	Version() string
}

// Plain renders without a chat template, always with Begin and End:
//
//	text             the text
//	prompt-response  prompt + "\n", then the response
//	alpaca           the template of Stanford Alpaca with the instruction and, if not empty, the input, ending in
//	                 "### Response:\n", then the output
//
// Only text, responses and outputs are targets.
var Plain Renderer = plain{}

type plain struct{}

func (plain) Version() string { return "plain-1" }

func (plain) Render(_ context.Context, r Record) (Rendered, error) {
	out, format := Rendered{Begin: true, End: true, endsInTurn: true}, r.Type.format()
	for _, has := range []struct {
		key string
		any bool
	}{{"system", !blank(r.System)}, {"history", len(r.History) > 0}, {"tools", len(r.Tools) > 0},
		{"documents", len(r.Documents) > 0}, {"chat_template_kwargs", r.Kwargs != nil}} {
		if has.any && !format.isConversation {
			return out, fmt.Errorf("field %q is not supported without a chat template: set chat_template to model or to a file", has.key)
		}
	}
	switch {
	case format.isText:
		out.Segments = []Segment{{r.Text, true}}
	case format.prompt != nil:
		out.Segments, out.Turns = []Segment{{format.prompt(r), false}, {r.Response, true}}, []int{1}
	default:
		return out, errNoTemplate
	}
	return out, nil
}

// alpacaPrompt is the prompt of github.com/tatsu-lab/stanford_alpaca, with a line break after "Response:" as most
// trainers have it since.
func alpacaPrompt(instruction, input string) string {
	if input == "" {
		return "Below is an instruction that describes a task. " +
			"Write a response that appropriately completes the request.\n\n" +
			"### Instruction:\n" + instruction + "\n\n### Response:\n"
	}
	return "Below is an instruction that describes a task, paired with an input that provides further context. " +
		"Write a response that appropriately completes the request.\n\n" +
		"### Instruction:\n" + instruction + "\n\n### Input:\n" + input + "\n\n### Response:\n"
}

// Tokenize turns a rendered record into an example. With trainOnPrompt every segment is a target.
func Tokenize(tok tokenizer.Tokenizer, r Rendered, trainOnPrompt bool) (Example, error) {
	e, _, err := tokenizeTurns(tok, r, trainOnPrompt)
	return e, err
}

// tokenizeTurns is Tokenize, with the place after the last token of each of the record's Turns.
func tokenizeTurns(tok tokenizer.Tokenizer, r Rendered, trainOnPrompt bool) (e Example, turns []int, err error) {
	isEnded := true
	if r.Unended != nil {
		if r, isEnded, err = r.Unended.end(tok, r); err != nil {
			return Example{}, nil, err
		}
	}
	before, after := tok.Template()
	var parts [][]int32 // of each segment, or of all as one
	var joined []bool
	var ends []int // of the segments of a joined text, in tokens
	if r.Joined {
		parts = make([][]int32, 1)
		parts[0], joined, ends = encodeJoined(tok, r.Segments)
	} else {
		parts = make([][]int32, len(r.Segments))
		for i, s := range r.Segments {
			parts[i] = tok.Encode(s.Text, false)
		}
	}
	n := len(before) + len(after) + 2
	for _, ids := range parts {
		n += len(ids)
	}
	// Made at once: growing them would be most of the garbage of tokenizing.
	e = Example{make([]int32, 0, n), make([]int32, 0, n)}
	add := func(ids []int32, target bool) {
		e.InputIDs = append(e.InputIDs, ids...)
		for _, id := range ids {
			if !target {
				id = Ignore
			}
			e.Labels = append(e.Labels, id)
		}
	}
	if r.Begin {
		add(before, trainOnPrompt)
	}
	first := len(e.InputIDs)
	for i, ids := range parts {
		if !r.Joined {
			add(ids, r.Segments[i].Target || trainOnPrompt)
			ends = append(ends, len(e.InputIDs)-first)
			continue
		}
		for t := range ids {
			add(ids[t:t+1], joined[t] || trainOnPrompt)
		}
	}
	for _, segment := range r.Turns {
		turns = append(turns, first+ends[segment])
	}
	isLast := len(turns) > 0 && r.Turns[len(turns)-1] == len(r.Segments)-1
	if !isEnded {
		if tok.EOS() == tokenizer.None {
			return Example{}, nil, errNoEOS
		}
		add([]int32{tok.EOS()}, true)
	}
	if r.End {
		eos := tok.EOS()
		if eos == tokenizer.None {
			return Example{}, nil, errNoEOS
		}
		add(after, true)
		if n := len(e.InputIDs); len(after) == 0 || e.InputIDs[n-1] != eos {
			add([]int32{eos}, true)
		}
	}
	if isLast {
		turns[len(turns)-1] = len(e.InputIDs)
	}
	return e, turns, nil
}

// errNoTemplate refuses conversations without a chat template.
var errNoTemplate = errors.New("chat_template: the data are conversations and the model has no chat template: " +
	"set chat_template to a Jinja file, such as the chat_template.jinja of the model that it was tuned for")

var errNoEOS = errors.New("the tokenizer has no end-of-text token: set eos_token in tokenizer_config.json")
