package reference

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
	"pgregory.net/rapid"
)

// sorted lists all tokens by their logits, of equal ones the lower number first, and the logarithm of the sum of
// exponentials at a temperature.
func sorted(logits []float32, temperature float64) (ids []int32, log float64) {
	sum := 0.0
	for id, x := range logits {
		ids, sum = append(ids, int32(id)), sum+math.Exp(float64(x)/temperature)
	}
	slices.SortFunc(ids, func(a, b int32) int { return cmp.Or(cmp.Compare(logits[b], logits[a]), cmp.Compare(a, b)) })
	return ids, math.Log(sum)
}

// TestTopOf: the likeliest tokens are those of a sort, also where many are equal.
func TestTopOf(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		logits := make([]float32, rapid.IntRange(1, 200).Draw(rt, "vocabulary"))
		for i := range logits {
			logits[i] = float32(rapid.IntRange(-40, 40).Draw(rt, "logit")) / 2
		}
		k := rapid.IntRange(1, 210).Draw(rt, "k")
		temperature := rapid.SampledFrom([]float64{1, 0.25, 3, 50}).Draw(rt, "temperature")
		ids, logProbs := make([]int32, k), make([]float32, k)
		if err := topOf(logits, ids, logProbs, temperature); err != nil {
			rt.Fatal(err)
		}
		want, log := sorted(logits, temperature)
		for i, id := range ids {
			if i >= len(want) {
				if id != -1 {
					rt.Fatalf("token %d is %d, and the vocabulary has %d", i, id, len(logits))
				}
				continue
			}
			if logProb := float64(logits[id])/temperature - log; id != want[i] || math.Abs(logProb-float64(logProbs[i])) > 1e-5 {
				rt.Fatalf("token %d is %d with %v, want %d with %v", i, id, logProbs[i], want[i], logProb)
			}
		}
	})
	for _, bad := range []float64{math.NaN(), math.Inf(1)} {
		if err := topOf([]float32{1, 2, float32(bad), 0}, make([]int32, 2), make([]float32, 2), 1); err == nil {
			t.Errorf("logits with %v are taken", bad)
		}
	}
}

// The likeliest tokens are those of a pass over each document alone, also where logits of a row come in several passes.
func TestTopIsThatOfDocumentsAlone(t *testing.T) {
	for _, bytes := range []int{logitBytes, 4 * 5 * 257} {
		r := newRig(t)
		r.o.TopK = 4
		r.o.logitBytes = bytes
		s, err := r.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		n := r.o.Numerics
		p, err := r.env.FitForward(t.Context(), r.o.Model.Model.Frozen(), n, 1, r.dev, r.o.Memory,
			plan.Outputs{LogitRows: n.SequenceLen})
		if err != nil {
			t.Fatal(err)
		}
		alone, err := source.OpenModelSession(t.Context(), r.env, p, r.dev, nil, r.o.Model)
		if err != nil {
			t.Fatal(err)
		}
		defer alone.Close()
		for d := 0; d < r.data.Len(); d += 183 {
			e, err := r.data.Example(d)
			if err != nil {
				t.Fatal(err)
			}
			length := min(len(e.InputIDs), n.SequenceLen)
			e.InputIDs, e.Labels = e.InputIDs[:length], e.InputIDs[:length]
			b, err := session.Unpacked([]data.Example{e}, p.Numerics)
			if err != nil {
				t.Fatal(err)
			}
			logits, err := alone.Engine.Logits(t.Context(), b, 0)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 8*r.o.TopK*(length-1))
			if err := s.Read(got, 0, d); err != nil {
				t.Fatal(err)
			}
			for i := range length - 1 {
				want, _ := sorted(logits[0][i*p.Model.Vocab:][:p.Model.Vocab], 1)
				if ids := hostmem.I32(got[8*r.o.TopK*i:][:4*r.o.TopK]); !slices.Equal(ids, want[:r.o.TopK]) {
					t.Fatalf("document %d, token %d: %v, and %v alone", d, i+1, ids, want[:r.o.TopK])
				}
			}
		}
	}
}

// BenchmarkTopOf takes the 64 likeliest of 128256 tokens, as many as Llama 3 has: one position, on one core.
func BenchmarkTopOf(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	logits := make([]float32, 128256)
	for i := range logits {
		logits[i] = float32(3 * rng.NormFloat64())
	}
	ids, logProbs := make([]int32, 64), make([]float32, 64)
	for b.Loop() {
		if err := topOf(logits, ids, logProbs, 1); err != nil {
			b.Fatal(err)
		}
	}
}
