package data

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/budget"
)

// Asked is a row of type prompts: what a policy is to answer, and what the row has besides, for those who judge the
// answers.
type Asked struct {
	Prompt Prompt                     `json:"prompt"`
	Row    map[string]json.RawMessage `json:"row"` // all other keys; Parquet's are those of the JSON that it is read as
}

// asked has rows of prompts one after the other, each as Asked in JSON, outside of the Go heap once all are there.
type asked struct {
	rows   []byte
	ends   []int64
	region *hostmem.Region // that has both; nil: the heap has them
}

// ErrRendersNothing is of messages without a token.
var ErrRendersNothing = errors.New("the chat template makes an empty text of it: name another one in chat_template")

// asks reads a row of type prompts.
func (f *fields) asks(s Source, out *Record) {
	raw, ok := f.object[s.Prompt]
	if !ok {
		f.missing(s.Prompt)
		return
	}
	of := &Asked{}
	if string(raw) == "null" || budget.Unmarshal(raw, &of.Prompt) != nil {
		f.fail("field %q is no prompt: write a text, or a list of messages with the keys role and content, which are texts",
			s.Prompt)
		return
	}
	if err := of.Prompt.Check(); err != nil {
		f.fail("field %q: %w", s.Prompt, err)
		return
	}
	of.Row = maps.Clone(f.object)
	delete(of.Row, s.Prompt)
	out.asked = of
}

// document has the tokens of the prompt, none of which counts.
func (a *Asked) document(ctx context.Context, o Options) (d document, err error) {
	if d.InputIDs, err = PromptTokens(ctx, o.Tokenizer, o.Renderer, a.Prompt); err != nil {
		return d, err
	}
	d.Labels = make([]int32, len(d.InputIDs))
	for i := range d.Labels {
		d.Labels[i] = Ignore
	}
	d.asked, err = json.Marshal(a)
	return d, err
}

// PromptTokens returns the tokens of a prompt, after those that the model expects before a text: of a list of messages
// those of the chat template, up to where the assistant speaks.
func PromptTokens(ctx context.Context, tok tokenizer.Tokenizer, r Renderer, p Prompt) (ids []int32, err error) {
	if p.Messages == nil {
		before, _ := tok.Template()
		ids = append(append(ids, before...), tok.Encode(p.Text, false)...)
		if len(ids) == 0 {
			if tok.BOS() == tokenizer.None {
				return nil, errors.New("it is empty, and the tokenizer has no token to begin with; write something")
			}
			ids = append(ids, tok.BOS())
		}
		return ids, nil
	}
	chat, ok := r.(*Chat)
	if !ok {
		return nil, errors.New("it is a list of messages, and the model has no chat template: write a text, or name a " +
			"template in chat_template")
	}
	text, err := chat.Prompt(ctx, p.Messages)
	if err != nil {
		return nil, err
	}
	if ids = tok.Encode(text, false); len(ids) == 0 {
		return nil, ErrRendersNothing
	}
	return ids, nil
}

// AnsweredTokens returns the tokens of a prompt with an answer to it, as rows of pairs have them for a reward model: a
// text is a question to a chat template, too.
func AnsweredTokens(ctx context.Context, tok tokenizer.Tokenizer, r Renderer, p Prompt, answer string) (ids []int32,
	err error) {
	of := Record{Type: PromptResponse, Prompt: p.Text, Response: answer}
	if p.Messages != nil {
		of = Record{Type: Messages}
		for _, m := range append(slices.Clip(p.Messages), Message{Assistant, answer}) {
			of.Messages = append(of.Messages, message(m.Role, m.Content))
		}
	}
	text, err := r.Render(ctx, of)
	if err != nil {
		return nil, err
	}
	e, err := Tokenize(tok, text, true)
	return e.InputIDs, err
}

func (a *asked) append(row []byte) {
	a.rows = append(a.rows, row...)
	a.ends = append(a.ends, int64(len(a.rows)))
}

// keep moves the rows out of the Go heap.
func (a *asked) keep(accounts *hostmem.Accounts) error {
	n := 8 * int64(len(a.ends))
	r, err := reserveAs(TokensPurpose, accounts, n+int64(len(a.rows)))
	if err != nil {
		return err
	}
	ends, rows := hostmem.I64(r.Bytes()[:n]), r.Bytes()[n:]
	copy(ends, a.ends)
	copy(rows, a.rows)
	*a = asked{rows, ends, r}
	return nil
}

func (a *asked) close() error {
	if a.region == nil {
		return nil
	}
	return a.region.Close()
}

// row is the JSON of a row.
func (a *asked) row(i int) []byte {
	first := int64(0)
	if i > 0 {
		first = a.ends[i-1]
	}
	return a.rows[first:a.ends[i]]
}

// HasPrompts reports whether documents are prompts that are to be answered.
func (d *Dataset) HasPrompts() bool { return len(d.runs) > 0 && d.runs[0].asked.region != nil }

// AskedBytes is the length of the row of document i as JSON; 0: it is no prompt.
func (d *Dataset) AskedBytes(i int) int64 {
	r, at := d.documentRun(i)
	if r.asked.region == nil {
		return 0
	}
	return int64(len(r.asked.row(at)))
}

// Asked returns the row of the prompt that document i is.
func (d *Dataset) Asked(i int) (a Asked, err error) {
	r, at := d.documentRun(i)
	if r.asked.region == nil {
		return a, errors.New("the document is no prompt")
	}
	if err := budget.Unmarshal(r.asked.row(at), &a); err != nil { // this program wrote it
		return a, fmt.Errorf("prompt %d: %w", i, err)
	}
	return a, nil
}

// DocumentLen is the number of tokens of document i.
func (d *Dataset) DocumentLen(i int) int { return int(d.length(i)) }
