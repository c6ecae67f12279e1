package stream_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/stream"
)

// Tokens that rows draw on the device follow from the logits of the same rows, of the ids below the vocabulary that is
// given, wherever weights and caches wait. Passes without draws read the text before.
func TestDrawsFollowFromLogits(t *testing.T) {
	g := modeltest.Load(t, "llama")
	out := plan.Outputs{LogitRows: 7, Caches: nn.Caches{Sequences: 7, Positions: 5}} // three chunks of rows
	var rows, last []stream.Position
	for seq := range out.Caches.Sequences {
		for at := range 4 {
			p := stream.Position{Token: g.First[0].IDs[(3*seq+at)%len(g.First[0].IDs)], Sequence: seq, At: at, Length: 5}
			if at < 3 {
				rows = append(rows, p)
			} else {
				last = append(last, p)
			}
		}
	}
	s := frozen(t, g, f32, len(rows), out)
	const vocab = 40 // of the model's tokens, as if the others were padding
	logits, err := func() ([][]float32, error) {
		r := start(t, s, setup{})
		defer r.close(t)
		if _, err := r.engine.Continue(t.Context(), rows, 1); err != nil {
			return nil, err
		}
		all, err := r.engine.Continue(t.Context(), last, len(last))
		for i := range all {
			all[i] = slices.Clone(all[i])
		}
		return all, err
	}()
	if err != nil {
		t.Fatal(err)
	}
	s.outputs.Draws = true
	var draws []device.TokenDraw
	for i := range last {
		draws = append(draws, device.TokenDraw{Key: [2]uint32{5, uint32(i)}, Text: uint64(i) << 33, At: uint32(9 * i),
			Inverse: []float32{0, 1, 2}[i%3]})
	}
	for name, place := range map[string]func(*plan.Placement){"bound": nil, "streamed": streamed(2)} {
		r := start(t, s, setup{change: place})
		if drawn, err := r.engine.Draw(t.Context(), rows, nil, vocab); err != nil || len(drawn) != 0 {
			t.Fatalf("%s: a pass without draws: %v, %v", name, drawn, err)
		}
		drawn, err := r.engine.Draw(t.Context(), last, draws, vocab)
		if err != nil {
			t.Fatal(err)
		}
		for i, got := range drawn {
			d, best, most, sum := draws[i], 0, math.Inf(-1), 0.0
			scale := float64(max(d.Inverse, 1))
			for id, x := range logits[i][:vocab] {
				score := float64(x) * scale
				sum += math.Exp(score)
				if d.Inverse != 0 {
					n := rng.Counter{uint32(id / 4), d.At, uint32(d.Text), uint32(d.Text >> 32)}
					score += rng.Gumbel(rng.Philox4x32(d.Key, n)[id%4])
				}
				if score > most {
					best, most = id, score
				}
			}
			want := float64(logits[i][best])*scale - math.Log(sum)
			if int(got.ID) != best || math.Abs(float64(got.LogProb)-want) > 1e-6 {
				t.Errorf("%s: row %d draws %+v, want %d with %v", name, i, got, best, want)
			}
		}
		for what, err := range map[string]error{
			"call Draw": func() error { _, err := r.engine.Continue(t.Context(), last, 1); return err }(),
			"logits stay on the device": func() error {
				_, err := r.engine.Logits(t.Context(), &stream.Batch{}, 0)
				return err
			}(),
			"and the plan is for 7": func() error {
				_, err := r.engine.Draw(t.Context(), rows, make([]device.TokenDraw, 8), vocab)
				return err
			}(),
			"of 0 tokens": func() error { _, err := r.engine.Draw(t.Context(), last, draws, 0); return err }(),
			"and the model has": func() error {
				_, err := r.engine.Draw(t.Context(), last, draws, s.model.Vocab+1)
				return err
			}(),
		} {
			if err == nil || !strings.Contains(fmt.Sprint(err), what) {
				t.Errorf("%s: error %v, want %q", name, err, what)
			}
		}
		r.close(t)
	}
}
