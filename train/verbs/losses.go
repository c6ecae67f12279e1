package verbs

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/reference"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
)

// TokenLosses are a loss in nats for each token of an example: NaN for the first one, which nothing predicts, and for
// those beyond a row. As JSON these are null.
type TokenLosses []float32

// MarshalJSON writes an array.
func (l TokenLosses) MarshalJSON() ([]byte, error) {
	all := make([]*float32, len(l))
	for i := range l {
		if x := float64(l[i]); !math.IsNaN(x) && !math.IsInf(x, 0) {
			all[i] = &l[i]
		}
	}
	return json.Marshal(all)
}

// losses has the losses of a data set's tokens by a model.
type losses struct {
	data   *data.Dataset
	set    *reference.Set
	rowLen int
}

// openLosses evaluates all of the data once, or finds the figures of an evaluation before.
func openLosses(ctx context.Context, env *session.Env, c *runfile.Config, name string, as *source.Source,
	d *data.Dataset) (l *losses, err error) {
	src, err := source.OpenTrained(ctx, env, name)
	if err != nil {
		return nil, err
	}
	if err := src.CheckWrites(); err != nil {
		return nil, err
	}
	if err := src.CheckSameTokens(as, c.Tokenizer); err != nil {
		return nil, err
	}
	o := reference.Options{Model: src, Init: "pretrained", Memory: c.Budgets()}
	if o.Weights, err = src.Fingerprint(ctx); err != nil {
		return nil, err
	}
	if src.From != nil {
		sum, err := src.From.Manifest.Sum()
		if err != nil {
			return nil, err
		}
		o.Weights += fmt.Sprintf(" checkpoint %x", sum)
	}
	if o.Numerics, err = c.Types(); err != nil {
		return nil, err
	}
	o.Numerics.SequenceLen = c.SequenceLen
	dev, err := env.OpenFirst(string(c.Device))
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	l = &losses{data: d, rowLen: c.SequenceLen}
	l.set, err = reference.Open(ctx, env, dev, o, d.Parts())
	return l, err
}

func (l *losses) close() error { return l.set.Close() }

// of are the losses of an example's tokens, and their mean over those that count.
func (l *losses) of(i int, e data.Example) (all TokenLosses, mean float64, err error) {
	all = slices.Repeat(TokenLosses{float32(math.NaN())}, len(e.InputIDs))
	n := min(len(all), l.rowLen)
	if n < 2 {
		return all, math.NaN(), nil
	}
	part, document := l.data.Origin(i)
	read := make([]byte, 4*(n-1))
	if err := l.set.Read(read, part, document); err != nil {
		return nil, 0, err
	}
	sum, counted := 0.0, 0
	for t, logp := range hostmem.F32(read) {
		all[t+1] = -logp
		if e.Labels[t+1] != data.Ignore {
			sum, counted = sum-float64(logp), counted+1
		}
	}
	return all, sum / float64(counted), nil
}

// worst are the documents in the order of their losses, the greatest first: of pairs both sides, by the chosen one's.
func (l *losses) worst(ctx context.Context) (order []int, err error) {
	each := 1
	if l.data.HasPairs() {
		each = 2
	}
	means := make([]float64, l.data.Len())
	for i := 0; i < len(means); i += each {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		e, err := l.data.Example(i)
		if err != nil {
			return nil, err
		}
		if _, means[i], err = l.of(i, e); err != nil {
			return nil, err
		}
		if math.IsNaN(means[i]) { // nothing counts
			means[i] = math.Inf(-1)
		}
		order = append(order, i)
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case means[a] > means[b]:
			return -1
		case means[a] < means[b]:
			return 1
		}
		return 0
	})
	if each == 1 {
		return order, nil
	}
	pairs := make([]int, 0, 2*len(order))
	for _, i := range order {
		pairs = append(pairs, i, i+1)
	}
	return pairs, nil
}
