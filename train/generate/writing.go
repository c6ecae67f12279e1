package generate

import (
	"cmp"
	"context"
	"io"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/device"
)

// writing is a text that grows.
type writing struct {
	*picker
	number int            // of the text, which sets the choices with the seed
	before int            // tokens that were chosen before, of the same text
	ids    []int32        // of the prompt and the text
	ends   map[int32]bool // tokens that end a text
	most   int            // positions that there are for it
	text   writer

	logProb float32 // of the token that was chosen last, by the distribution that it was drawn from
	endedBy int32   // the token that ended the text, where one did
	asked   [2]int  // of an answer: the number of its prompt, and of the answer among those to it

	made  Generated // with PromptTokens, and FinishLength until the text ends otherwise
	begun time.Time // when the prompt was first computed with; zero until then
	read  time.Time // when there were logits after the prompt

	prompt      string // as a key: of texts with the same one
	order       int    // among texts that have begun
	readsPrompt bool   // all but its last token, for itself and others with the same one, before it grows
}

func (w *writing) hasBegun() bool { return !w.begun.IsZero() }

// toRead are the tokens that the model is to read of it.
func (w *writing) toRead() []int32 {
	if w.readsPrompt {
		return w.ids[:len(w.ids)-1]
	}
	return w.ids
}

// place is the place of the next token in the text.
func (w *writing) place() int { return w.before + len(w.made.Tokens) }

// draw names the choice of the next token.
func (w *writing) draw() device.TokenDraw { return w.drawFor(w.number, w.place()) }

// add takes the next token. It reports whether the text ends.
func (w *writing) add(id int32) (ended bool, err error) {
	if w.ends[id] {
		w.made.Finish, w.endedBy = FinishStop, id
		return true, nil
	}
	w.ids, w.made.Tokens = append(w.ids, id), append(w.made.Tokens, id)
	w.made.LogProbs = append(w.made.LogProbs, w.logProb)
	isFull := len(w.made.Tokens) >= w.MaxTokens || len(w.ids) > w.most
	return isFull, w.text.add(id)
}

// end completes what was made. err is why the text ends too soon, if it does.
func (w *writing) end(err error) (*Generated, error) {
	if !w.read.IsZero() {
		w.made.PromptSeconds = w.read.Sub(w.begun).Seconds()
		if n := len(w.made.Tokens); n > 1 {
			w.made.TokensPerSec = float64(n-1) / time.Since(w.read).Seconds()
		}
	}
	w.made.Text = w.text.tok.Decode(w.made.Tokens, true)
	if err = cmp.Or(err, w.text.end()); err != nil {
		return nil, err
	}
	return &w.made, nil
}

// newWriting is a text with a prompt, which grows by picker's most tokens or up to a number of positions.
func newWriting(p *picker, number int, prompt []int32, ends map[int32]bool, decoder tokenizer.Decoder,
	most int) *writing {
	return &writing{picker: p, number: number, ids: prompt, ends: ends, most: most, text: writer{tok: decoder},
		made: Generated{PromptTokens: len(prompt), Finish: FinishLength}}
}

// positionsOf is the most positions that a text takes which has a prompt, grows by some tokens at most, and is of a
// model that was made for most. Those of its last token are never computed.
func positionsOf(prompt []int32, maxTokens, most int) int {
	return min(len(prompt)+min(maxTokens, most)-1, most)
}

// agreement is asked before the first pass and after each one, with the tokens that were picked by place. It returns
// those to take, and whether the texts are to end.
type agreement func(picked []int32) (taken []int32, stop bool, err error)

// noToken stands for the token of logits that are not finite, as in [stream.Drawn].
const noToken = -1

// write has texts grow together, as many at a time as there are places and blocks of caches, and calls done with each
// that ends. If agree stops them, those under way end, and no other one begins; nil: nothing stops them.
func (t *texts) write(ctx context.Context, queue []*writing, agree agreement, done func(*writing) error) error {
	if agree == nil {
		agree = func(picked []int32) ([]int32, bool, error) { return picked, false, nil }
	}
	return newGrowing(t, queue).write(ctx, agree, done)
}

func (g *growing) write(ctx context.Context, agree agreement, done func(*writing) error) error {
	picked := make([]int32, len(g.at))
	_, stopped, err := agree(nil)
	if err != nil {
		return err
	}
	for {
		busy, err := g.arrange()
		if err != nil || !busy {
			return err
		}
		if stopped {
			return g.end(done)
		}
		if err := g.choices(ctx, picked); err != nil {
			return err
		}
		taken, stop, err := agree(picked)
		if err != nil {
			return err
		}
		if err := g.take(taken, done); err != nil {
			return err
		}
		stopped = stop
	}
}

// choices has the model read what is new of all texts that have a place, and picks the next token of each by place.
func (g *growing) choices(ctx context.Context, picked []int32) error {
	chosen, err := g.choose(ctx, g.at)
	if err != nil {
		return err
	}
	for place, w := range g.at {
		if picked[place] = noToken; w != nil && !w.readsPrompt {
			picked[place], w.logProb = chosen[place].ID, chosen[place].LogProb
		}
	}
	return nil
}

// take adds tokens by place, and ends the texts that are complete with them.
func (g *growing) take(taken []int32, done func(*writing) error) error {
	for place, w := range g.at {
		if w == nil {
			continue
		}
		if w.readsPrompt {
			w.readsPrompt = false
			continue
		}
		if taken[place] == noToken {
			return ErrNotFinite
		}
		ended, err := w.add(taken[place])
		if err != nil {
			return err
		}
		if ended {
			g.at[place] = nil
			if err := done(w); err != nil {
				return err
			}
		}
	}
	return nil
}

// end ends all texts that have begun.
func (g *growing) end(done func(*writing) error) error {
	for _, w := range slices.Concat(g.at, g.begunBefore()) {
		if w == nil {
			continue
		}
		w.made.Finish = FinishStopped
		if err := done(w); err != nil {
			return err
		}
	}
	return nil
}

func isClosed(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}

// writer prints tokens as text, whole characters at a time: a character may take several tokens.
type writer struct {
	out  io.Writer
	tok  tokenizer.Decoder
	left []byte // of a character that is not complete
}

func (w *writer) add(id int32) error {
	if w.out == nil {
		return nil
	}
	w.left = w.tok.AppendBytes(w.left, id, true)
	n := len(w.left)
	for back := 1; back <= min(utf8.UTFMax-1, len(w.left)); back++ {
		if at := len(w.left) - back; utf8.RuneStart(w.left[at]) {
			if !utf8.FullRune(w.left[at:]) {
				n = at
			}
			break
		}
	}
	_, err := w.out.Write(w.left[:n])
	w.left = append(w.left[:0], w.left[n:]...)
	return err
}

func (w *writer) end() error {
	if w.out == nil {
		return nil
	}
	_, err := w.out.Write(w.left)
	w.left = w.left[:0]
	return err
}
