package generate

import (
	"context"
	"fmt"
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
// before it in its place did, or as another one did that has blocks of caches, it computes the rest alone. A
// conversation and a text that grows by a token therefore cost what is new of them, and the answers to a prompt cost it
// once. A model that cannot go back ([model.Model.CanGoBack]) does so where a text begins with all of the one before
// it, and else reads it from its start. Where the model has no caches, it computes all of a text each time.
type texts struct {
	*session.Session
	read  [][]int32 // by place: the tokens whose positions are in caches; nil where there are no caches
	pool  *pool     // of the places' blocks
	asked []int     // by place: the number of the latest pass that it had a text in
	round int       // number of passes
}

// newTexts has the caches of a session, of which nothing is read.
func newTexts(s *session.Session, of nn.Caches) *texts {
	return &texts{Session: s, read: make([][]int32, of.Sequences), pool: newPool(of), asked: make([]int, of.Sequences)}
}

// Sizes of passes that continue texts.
const (
	mostTexts   = session.MostPassRows / 2 // texts that grow together at most
	mostSamples = 32                       // the same in training, where caches take memory from the steps
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
	r.Numerics.SequenceLen = prompt
	r.Outputs.Draws = draws
	return session.FitTexts(ctx, plan.Fitting{Request: r, Rows: 1}, min(count, mostTexts), positions)
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
	if p.Outputs.Continues() {
		return newTexts(s, p.Outputs.Caches), nil
	}
	return &texts{Session: s}, nil
}

// places is the number of texts that grow together.
func (t *texts) places() int { return max(len(t.read), 1) }

// next returns by place the logits of the token that follows a text; those of nil are not asked for. They are good
// until the next call. There are blocks for all texts.
func (t *texts) next(ctx context.Context, ids [][]int32) ([][]float32, error) {
	return t.logits(ctx, ids, make([]bool, len(ids)))
}

// logits is next without the texts that are read alone.
func (t *texts) logits(ctx context.Context, ids [][]int32, alone []bool) ([][]float32, error) {
	if t.read == nil {
		logits, err := t.recompute(ctx, ids[0])
		return [][]float32{logits}, err
	}
	all := make([][]float32, len(ids))
	err := t.advance(ctx, ids, alone, func(rows []stream.Position, asked []int) error {
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
	all := make([]stream.Drawn, len(at))
	ids, alone := toRead(at)
	err := t.advance(ctx, ids, alone, func(rows []stream.Position, asked []int) error {
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
		if w != nil && !w.readsPrompt && w.read.IsZero() {
			w.read = time.Now()
		}
	}
	return all, err
}

// pick is draw from logits on the host.
func (t *texts) pick(ctx context.Context, at []*writing) ([]stream.Drawn, error) {
	ids, alone := toRead(at)
	logits, err := t.logits(ctx, ids, alone)
	if err != nil {
		return nil, err
	}
	all := make([]stream.Drawn, len(at))
	for place, w := range at {
		if w != nil && !alone[place] {
			all[place] = w.token(logits[place], w.number, w.place())
		}
	}
	return all, nil
}

// toRead has by place the tokens of texts, and whether they are read alone: then no token is chosen after them.
func toRead(at []*writing) (ids [][]int32, alone []bool) {
	ids, alone = make([][]int32, len(at)), make([]bool, len(at))
	for place, w := range at {
		if w != nil {
			ids[place], alone[place] = w.toRead(), w.readsPrompt
		}
	}
	return ids, alone
}

// advance runs passes over what is new of texts by place. run gets the rows of each pass, and the places of the texts
// whose last tokens are its last rows, of those that are not read alone.
func (t *texts) advance(ctx context.Context, ids [][]int32, alone []bool,
	run func(rows []stream.Position, asked []int) error) error {
	t.round++
	// New tokens come first, except the last one of each text: these share the last pass.
	var rows, last []stream.Position
	var asked []int
	for place, text := range ids {
		if text == nil {
			continue
		}
		from := t.known(place, text)
		if err := t.begin(place, from, len(text)); err != nil {
			return err
		}
		if !t.Plan.Model.CanGoBack() {
			t.read[place] = t.read[place][:0] // a pass that fails leaves all of such a model's undefined
		}
		for at := from; at < len(text); at++ {
			rows = append(rows, stream.Position{Token: text[at], Sequence: place, At: at, Length: len(text)})
		}
		if t.asked[place] = t.round; !alone[place] {
			last, rows = append(last, rows[len(rows)-1]), rows[:len(rows)-1]
			asked = append(asked, place)
		}
	}
	for place, table := range t.pool.tables {
		if err := t.Engine.SetBlocks(place, table); err != nil {
			return err
		}
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
	for place, text := range ids {
		if text != nil {
			t.read[place] = append(t.read[place], text[len(t.read[place]):]...)
		}
	}
	return nil
}

// begin has a place have blocks of its own for the positions [from, to) of a text, whose first ones it keeps.
func (t *texts) begin(place, from, to int) error {
	t.trim(place, from)
	copies, ok := t.pool.fit(place, from, to)
	if !ok {
		return fmt.Errorf("caches of %d blocks have no room for a text of %d positions more", t.pool.of.Blocks, to-from)
	}
	return t.Engine.TakeOver(nn.Takeover{Blocks: copies})
}

// trim leaves a place the first positions of its text.
func (t *texts) trim(place, positions int) {
	t.read[place] = t.read[place][:positions] // a pass that fails leaves the rest undefined
	t.pool.keep(place, positions)
}

// known counts the first positions of a text that are in the caches of its place. Its last one never counts, since its
// logits are not there.
func (t *texts) known(place int, text []int32) int {
	n := t.common(place, text)
	if n < len(t.read[place]) && !t.Plan.Model.CanGoBack() {
		return 0
	}
	return n
}

// common counts the first positions of a text, except its last one, that the text of a place has as well.
func (t *texts) common(place int, text []int32) int {
	read, rope := t.read[place], t.Plan.Model.Rotary()
	if rope.IsLong(len(text)) != rope.IsLong(len(read)) {
		return 0 // the positions turn otherwise
	}
	n := 0
	for n < min(len(read), len(text)-1) && read[n] == text[n] {
		n++
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
