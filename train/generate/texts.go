package generate

import (
	"context"
	"time"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
)

// texts computes what a model expects to follow texts. It remembers what it has read: of a text that begins as the one
// before it in its place did, it computes the rest alone. A conversation and a text that grows by a token therefore
// cost what is new of them. A model that cannot go back ([model.Model.CanGoBack]) does so where a text begins with all
// of the one before it, and else reads it from its start. Where the model has no caches, it computes all of a text each
// time.
type texts struct {
	*session.Session
	read [][]int32 // by place: the tokens whose positions are in caches; nil where there are no caches
}

// Sizes of passes that continue texts.
const (
	mostPassRows = 512 // positions of prompts that one pass takes at most; not fewer than mostTexts
	mostTexts    = 32  // texts that grow together at most
)

// planTexts plans for a number of texts that grow together, or for fewer where memory has no room for them, of as many
// positions at most. prompt is the length of the longest prompt. With draws the device chooses their tokens, where the
// model has caches.
func planTexts(ctx context.Context, e *session.Env, src *source.Source, n plan.Numerics, dev *session.Devices,
	mem runfile.Memory, draws bool,
	count, positions, prompt int) (*plan.Plan, error) {
	m := src.Model.Frozen()
	if !plan.CanContinue(m) {
		return planWholeText(ctx, e, src, n, dev, mem, positions)
	}
	r, err := e.PlanRequest(m, n, dev.Info(), 1, mem)
	if err != nil {
		return nil, err
	}
	f := plan.Fitting{Request: r, Rows: 1}
	for count = min(count, mostTexts); ; count /= 2 {
		f.Outputs = plan.Outputs{LogitRows: count, Draws: draws, Caches: nn.Caches{Sequences: count, Positions: positions}}
		f.Numerics.SequenceLen = min(count*prompt, mostPassRows)
		f.Cuts = plan.Cuts{MicroBatch: 1, HeadChunk: count} // the head has no other rows than those that are wanted
		if count == 1 || f.Fits(ctx) == nil {
			return f.Fit(ctx)
		}
	}
}

// planWholeText plans for passes over all of a text of as many positions at most.
func planWholeText(ctx context.Context, e *session.Env, src *source.Source, n plan.Numerics, dev *session.Devices,
	mem runfile.Memory,
	positions int) (*plan.Plan, error) {
	n.SequenceLen = positions
	return e.FitPlan(ctx, src.Model.Frozen(), n, 1, runfile.Sizes{}, dev.Info(), mem,
		func(plan.Numerics) plan.Outputs { return plan.Outputs{LogitRows: 1} })
}

// openTexts loads the model for a plan of planTexts.
func openTexts(ctx context.Context, e *session.Env, p *plan.Plan, dev *session.Devices, stateDirs []string,
	src *source.Source) (*texts, error) {
	s, err := source.OpenModelSession(ctx, e, p, dev, stateDirs, src)
	if err != nil {
		return nil, err
	}
	t := &texts{Session: s}
	if p.Outputs.Continues() {
		t.read = make([][]int32, p.Outputs.Caches.Sequences)
	}
	return t, nil
}

// places is the number of texts that grow together.
func (t *texts) places() int { return max(len(t.read), 1) }

// next returns by place the logits of the token that follows a text; those of nil are not asked for. They are good
// until the next call.
func (t *texts) next(ctx context.Context, ids [][]int32) ([][]float32, error) {
	if t.read == nil {
		logits, err := t.recompute(ctx, ids[0])
		return [][]float32{logits}, err
	}
	all := make([][]float32, len(ids))
	err := t.advance(ctx, ids, func(rows []stream.Position, asked []int) error {
		logits, err := t.Engine.Continue(ctx, rows, max(len(asked), 1))
		for i, place := range asked {
			if err == nil {
				all[place] = logits[i]
			}
		}
		return err
	})
	return all, err
}

// draw is next, but the device draws the tokens, of the texts in at.
func (t *texts) draw(ctx context.Context, at []*writing) ([]stream.Drawn, error) {
	ids, all := make([][]int32, len(at)), make([]stream.Drawn, len(at))
	for place, w := range at {
		if w != nil {
			ids[place] = w.ids
		}
	}
	err := t.advance(ctx, ids, func(rows []stream.Position, asked []int) error {
		var draws []device.TokenDraw
		vocab := 1
		for _, place := range asked {
			draws, vocab = append(draws, at[place].draw()), at[place].vocab
		}
		drawn, err := t.Engine.Draw(ctx, rows, draws, min(vocab, t.Plan.Model.Vocab))
		for i, d := range drawn {
			all[asked[i]] = d
		}
		return err
	})
	return all, err
}

// choose returns by place the token that follows each text of at.
func (t *texts) choose(ctx context.Context, at []*writing) ([]stream.Drawn, error) {
	var all []stream.Drawn
	var err error
	if t.Plan.Outputs.Draws {
		all, err = t.draw(ctx, at)
	} else {
		all, err = t.pick(ctx, at)
	}
	for _, w := range at {
		if w != nil && w.read.IsZero() {
			w.read = time.Now()
		}
	}
	return all, err
}

// pick is draw from logits on the host.
func (t *texts) pick(ctx context.Context, at []*writing) ([]stream.Drawn, error) {
	ids, all := make([][]int32, len(at)), make([]stream.Drawn, len(at))
	for place, w := range at {
		if w != nil {
			ids[place] = w.ids
		}
	}
	logits, err := t.next(ctx, ids)
	if err != nil {
		return nil, err
	}
	for place, w := range at {
		if w != nil {
			all[place] = w.token(logits[place], w.number, w.place())
		}
	}
	return all, nil
}

// advance runs passes over what is new of texts by place. run gets the rows of each pass, and the places of the texts
// whose last tokens are its last rows.
func (t *texts) advance(ctx context.Context, ids [][]int32, run func(rows []stream.Position, asked []int) error) error {
	// New tokens come first, except the last one of each text: these share the last pass.
	var rows, last []stream.Position
	var asked []int
	for place, text := range ids {
		if text == nil {
			continue
		}
		from := t.known(place, text)
		t.read[place] = t.read[place][:from] // a pass that fails leaves the rest undefined
		if !t.Plan.Model.CanGoBack() {
			t.read[place] = t.read[place][:0] // and all of such a model's
		}
		for at := from; at < len(text); at++ {
			rows = append(rows, stream.Position{Token: text[at], Sequence: place, At: at, Length: len(text)})
		}
		last, rows = append(last, rows[len(rows)-1]), rows[:len(rows)-1]
		asked = append(asked, place)
	}
	most := t.Plan.Numerics.Positions()
	for len(rows)+len(last) > most {
		n := min(most, len(rows))
		if err := run(rows[:n], nil); err != nil {
			return err
		}
		rows = rows[n:]
	}
	if err := run(append(rows, last...), asked); err != nil {
		return err
	}
	for _, place := range asked {
		t.read[place] = append(t.read[place], ids[place][len(t.read[place]):]...)
	}
	return nil
}

// known counts the first positions of a text that are in the caches of its place. Its last one never counts, since its
// logits are not there.
func (t *texts) known(place int, text []int32) int {
	read, rope := t.read[place], t.Plan.Model.Rotary()
	if rope.IsLong(len(text)) != rope.IsLong(len(read)) {
		return 0 // the positions turn otherwise
	}
	n := 0
	for n < min(len(read), len(text)-1) && read[n] == text[n] {
		n++
	}
	if n < len(read) && !t.Plan.Model.CanGoBack() {
		return 0
	}
	return n
}

// recompute returns the logits of the token that follows a text, of which it computes all.
func (t *texts) recompute(ctx context.Context, ids []int32) ([]float32, error) {
	labels := make([]int32, len(ids))
	for i := range labels {
		labels[i] = data.Ignore
	}
	b, err := data.NewBatch([]data.Example{{InputIDs: ids, Labels: labels}}, t.Plan.Numerics.SequenceLen)
	if err != nil {
		return nil, err
	}
	logits, err := t.Engine.Logits(ctx, session.BatchOf([]data.MicroBatch{b}), len(ids)-1)
	if err != nil {
		return nil, err
	}
	return logits[0], nil
}
