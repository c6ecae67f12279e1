package stream_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/stream"
)

// frozen is a golden variant for passes of some rows, without training.
func frozen(t *testing.T, g *modeltest.Golden, n plan.Numerics, rows int, out plan.Outputs) *subject {
	t.Helper()
	s := golden(t, g, n)
	s.model, s.outputs = s.model.Frozen(), out
	s.numerics.SequenceLen, s.numerics.MicroBatches, s.numerics.HeadChunk = rows, 1, 3
	return s
}

// wholeLogits returns the logits of all positions of a document that is computed at once.
func wholeLogits(t *testing.T, g *modeltest.Golden, n plan.Numerics, dev device.Device, tokens []int32) [][]float32 {
	t.Helper()
	s := frozen(t, g, n, len(tokens), plan.Outputs{LogitRows: len(tokens)})
	r := start(t, s, setup{device: dev})
	defer r.close(t)
	mb := batch.New(len(tokens))
	mb.SetDocument(0, tokens)
	got, err := r.engine.Logits(t.Context(), &stream.Batch{Micro: []batch.Micro{mb}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]float32
	for row := range slices.Chunk(got[0], s.model.Vocab) {
		rows = append(rows, slices.Clone(row))
	}
	return rows
}

// inPasses computes the logits of the sequences' positions in passes of at most some rows, cut at random; the last
// positions of sequences may come in one pass.
func inPasses(t *testing.T, r *rig, rng *rand.Rand, sequences [][]int32, most int) [][][]float32 {
	t.Helper()
	all, done := make([][][]float32, len(sequences)), make([]int, len(sequences))
	for {
		var pass []stream.Position
		for _, seq := range rng.Perm(len(sequences)) {
			n := min(rng.IntN(most)+1, len(sequences[seq])-done[seq], most-len(pass))
			for range n {
				at := done[seq]
				pass = append(pass, stream.Position{Token: sequences[seq][at], Sequence: seq, At: at,
					Length: len(sequences[seq])})
				done[seq]++
			}
		}
		if len(pass) == 0 {
			return all
		}
		got, err := r.engine.Continue(t.Context(), pass, len(pass))
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range pass {
			all[p.Sequence] = append(all[p.Sequence], slices.Clone(got[i]))
		}
	}
}

// distance is the greatest difference of logits, over the greatest logit.
func distance(got, want [][]float32) float64 {
	var diff, largest float64
	for i := range want {
		for j, x := range want[i] {
			largest = max(largest, math.Abs(float64(x)))
			if d := math.Abs(float64(got[i][j] - x)); d > diff || d != d {
				diff = d
			}
		}
	}
	return diff / largest
}

// Logits of passes that continue sequences are those of one pass over all of each sequence, for every kind of model: to
// the bit, but where gated delta nets go from row to row in one and from chunk to chunk in the other.
// Their bits do not depend on how sequences are cut into passes, on which of them share a pass, on where caches wait,
// in which blocks they are, or on whether the engine trains the model as well.
func TestContinuedPassesAgreeWithWholeOnes(t *testing.T) {
	dev := newCPU(t)
	t.Cleanup(func() { dev.Close() })
	for i, variant := range modeltest.Variants(t) {
		g := modeltest.Load(t, variant)
		for name, n := range map[string]plan.Numerics{"f32": f32, "bf16": bf16} {
			if testing.Short() && (name == "f32") != (i%2 == 0) {
				continue // every second variant has one type, the others have the other one
			}
			t.Run(variant+" "+name, func(t *testing.T) {
				sequences := [][]int32{g.First[0].IDs, g.First[1].IDs[:len(g.First[1].IDs)*2/3], g.First[0].IDs[3:8]}
				const most = 9
				out := plan.Outputs{LogitRows: most, Caches: nn.Caches{Sequences: 3, Positions: len(sequences[0]) + 2}}
				rng := rand.New(rand.NewPCG(1, uint64(len(variant))))
				var s *subject
				var first [][][]float32
				for i, place := range []func(*plan.Placement){nil, streamed(2), func(p *plan.Placement) {
					streamed(1)(p)
					for b := range p.Where.Inputs {
						p.Where.Caches = append(p.Where.Caches, []plan.Place{plan.Device, plan.Host}[b%2])
					}
					p.Where.Weights[s.model.BlockParts[0]] = plan.Device
				}} {
					out.Caches.BlockRows = []int{0, out.Caches.Positions, 5}[i]
					out.Caches.Blocks = 3*out.Caches.BlocksEach() + 2*min(i, 1)
					s = frozen(t, g, n, most, out)
					r := start(t, s, setup{device: dev, change: place})
					if i > 0 {
						inAnyBlocks(t, r, rng)
					}
					got := inPasses(t, r, rng, sequences, most)
					r.close(t)
					if first == nil {
						first = got
					}
					if fmt.Sprint(got) != fmt.Sprint(first) {
						t.Errorf("placement %d, in other passes: other logits", i)
					}
				}
				trained := golden(t, g, n)
				trained.outputs = out // in blocks, each sequence in its own
				r := start(t, trained, setup{device: dev, change: streamed(1)})
				if got := inPasses(t, r, rng, sequences, most); fmt.Sprint(got) != fmt.Sprint(first) {
					t.Error("the engine of a model that is trained: other logits")
				}
				r.close(t)
				limit := map[string]float64{"f32": 1e-5, "bf16": 3e-2}[name]
				if !slices.Contains(modeltest.DeltaVariants(t), variant) {
					limit = 0
				}
				for seq, tokens := range sequences {
					if d := distance(first[seq], wholeLogits(t, g, n, dev, tokens)); !(d <= limit) {
						t.Errorf("sequence %d: logits differ by %.2g of the largest", seq, d)
					}
				}
			})
		}
	}
}

// inAnyBlocks gives each sequence blocks for all its positions, in any order.
func inAnyBlocks(t *testing.T, r *rig, rng *rand.Rand) {
	t.Helper()
	of := r.plan.Outputs.Caches
	order := rng.Perm(of.Blocks)
	for seq := range of.Sequences {
		var own []int32
		for _, b := range order[seq*of.BlocksEach():][:of.BlocksEach()] {
			own = append(own, int32(b))
		}
		if err := r.engine.SetBlocks(seq, own); err != nil {
			t.Fatal(err)
		}
	}
}

// Sequences that begin alike can share the blocks of their beginning, and copy what they share of the last one; and
// the states of gated delta nets. Each has the logits that it has alone, to the bit.
func TestSequencesShareBlocks(t *testing.T) {
	const shared, block = 10, 4 // two blocks, and half of one
	for _, variant := range []string{"llama", "gpt_oss", "qwen3_5"} {
		g := modeltest.Load(t, variant)
		var sequences [][]int32
		for i := range 3 {
			tokens := slices.Clone(g.First[0].IDs[:16])
			for at := shared; at < len(tokens); at++ {
				tokens[at] = (tokens[at] + int32(i)) % 50
			}
			sequences = append(sequences, tokens)
		}
		alone := func(out plan.Outputs) *rig {
			return start(t, frozen(t, g, f32, 16, out), setup{change: streamed(1)})
		}
		out := plan.Outputs{LogitRows: 16, Caches: nn.Caches{Sequences: 3, Positions: 16}}
		r := alone(out)
		want := inPasses(t, r, rand.New(rand.NewPCG(1, 2)), sequences, 16)
		r.close(t)
		out.Caches.BlockRows, out.Caches.Blocks = block, 2+3*2 // alone they would have 12
		r = alone(out)
		set := func(sequence int, blocks ...int32) {
			t.Helper()
			if err := r.engine.SetBlocks(sequence, blocks); err != nil {
				t.Fatal(err)
			}
		}
		pass := func(from, to int, of ...int) (all [][][]float32) {
			t.Helper()
			var rows []stream.Position
			for _, seq := range of {
				for at := from; at < to; at++ {
					rows = append(rows, stream.Position{Token: sequences[seq][at], Sequence: seq, At: at, Length: 16})
				}
			}
			got, err := r.engine.Continue(t.Context(), rows, len(rows))
			if err != nil {
				t.Fatal(err)
			}
			for rows := range slices.Chunk(got, to-from) {
				all = append(all, nil)
				for _, row := range rows {
					all[len(all)-1] = append(all[len(all)-1], slices.Clone(row))
				}
			}
			return all
		}
		set(1, 7, 1, 6)
		pass(0, shared, 1)
		set(0, 7, 1, 0, 2)
		set(2, 7, 1, 5, 4)
		set(1, 7, 1, 6, 3)
		one := []stream.Position{{Sequence: 1, At: 5, Length: 16}}
		if _, err := r.engine.Continue(t.Context(), one, 1); err == nil ||
			!strings.Contains(err.Error(), "give it a copy") {
			t.Errorf("%s: a position that sequences share: %v", variant, err)
		}
		takeover := nn.Takeover{Blocks: []nn.BlockCopy{{From: 6, To: 0, Rows: shared % block},
			{From: 6, To: 5, Rows: shared % block}}, Latest: [][2]int{{1, 0}, {1, 2}}}
		if err := r.engine.TakeOver(takeover); err != nil {
			t.Fatal(err)
		}
		for i, got := range [][][][]float32{pass(shared, 13, 0, 1), pass(shared, 14, 2), pass(13, 16, 0, 1)} {
			for j, rows := range got {
				seq, from := []int{0, 1}[j], shared
				if i == 1 {
					seq = 2
				} else if i == 2 {
					from = 13
				}
				if fmt.Sprint(rows) != fmt.Sprint(want[seq][from:from+len(rows)]) {
					t.Errorf("%s: sequence %d after what it shares: other logits than alone", variant, seq)
				}
			}
		}
		r.close(t)
	}
}

// Blocks and takeovers that leave caches are refused.
func TestCachesRefuse(t *testing.T) {
	out := plan.Outputs{LogitRows: 2, Caches: nn.Caches{Sequences: 2, Positions: 6, BlockRows: 3, Blocks: 3}}
	r := start(t, frozen(t, modeltest.Load(t, "llama"), f32, 4, out), setup{})
	defer r.close(t)
	for _, blocks := range [][]int32{{3}, {-1}, {0, 1, 2}} {
		if r.engine.SetBlocks(0, blocks) == nil {
			t.Errorf("blocks %v: no error", blocks)
		}
	}
	if r.engine.SetBlocks(2, nil) == nil {
		t.Error("a sequence that there is not: no error")
	}
	for _, o := range []nn.Takeover{{Blocks: []nn.BlockCopy{{From: 0, To: 3, Rows: 1}}}, {Latest: [][2]int{{0, 2}}},
		{Blocks: []nn.BlockCopy{{From: 0, To: 1, Rows: 4}}}, {Blocks: []nn.BlockCopy{{From: 1, To: 1, Rows: 1}}}} {
		if r.engine.TakeOver(o) == nil {
			t.Errorf("%+v: no error", o)
		}
	}
	_, err := r.engine.Continue(t.Context(), []stream.Position{{Length: 1}}, 1)
	if err == nil || !strings.Contains(err.Error(), "has no block") {
		t.Errorf("a position without a block: %v", err)
	}
}

// A sequence may be taken up again at an earlier position, with other tokens.
func TestSequenceIsTakenUpAgain(t *testing.T) {
	g := modeltest.Load(t, "llama")
	tokens := g.First[0].IDs[:12]
	s := frozen(t, g, f32, 12, plan.Outputs{LogitRows: 12, Caches: nn.Caches{Sequences: 1, Positions: 12}})
	r := start(t, s, setup{})
	defer r.close(t)
	rng := rand.New(rand.NewPCG(1, 2))
	other := slices.Clone(tokens)
	for i := 7; i < len(other); i++ {
		other[i] = (other[i] + 1) % int32(s.model.Vocab)
	}
	inPasses(t, r, rng, [][]int32{other}, 5)
	var pass []stream.Position
	for at := 7; at < len(tokens); at++ {
		pass = append(pass, stream.Position{Token: tokens[at], At: at, Length: len(tokens)})
	}
	got, err := r.engine.Continue(t.Context(), pass, len(pass))
	if err != nil {
		t.Fatal(err)
	}
	again := slices.Clone(got)
	for i := range again {
		again[i] = slices.Clone(again[i])
	}
	if want := inPasses(t, r, rng, [][]int32{tokens}, 12); fmt.Sprint(again) != fmt.Sprint(want[0][7:]) {
		t.Error("logits after other tokens differ from those of the sequence by itself")
	}
}

// A sequence of a model with gated delta nets continues, or begins again; after a pass that failed, it begins again.
func TestSequenceOfStatesBeginsAgain(t *testing.T) {
	g := modeltest.Load(t, "qwen3_5")
	tokens := g.First[0].IDs[:12]
	s := frozen(t, g, f32, 12, plan.Outputs{LogitRows: 12, Caches: nn.Caches{Sequences: 2, Positions: 12}})
	r := start(t, s, setup{})
	defer r.close(t)
	pass := func(ctx context.Context, sequence, from, to int) ([][]float32, error) {
		var all []stream.Position
		for at := from; at < to; at++ {
			all = append(all, stream.Position{Token: tokens[at], Sequence: sequence, At: at, Length: len(tokens)})
		}
		got, err := r.engine.Continue(ctx, all, len(all))
		for i := range got {
			got[i] = slices.Clone(got[i])
		}
		return got, err
	}
	must := func(sequence, from, to int) [][]float32 {
		t.Helper()
		got, err := pass(t.Context(), sequence, from, to)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	refused := func(what string, sequence, from, to int) {
		t.Helper()
		_, err := pass(t.Context(), sequence, from, to)
		if err == nil || !strings.Contains(err.Error(), "begin again at 0") {
			t.Errorf("%s: %v", what, err)
		}
	}
	want := must(0, 0, 12)
	refused("an earlier position", 0, 7, 9)
	refused("a position that leaves one out", 1, 1, 3)
	got := append(must(1, 0, 5), must(0, 0, 4)...)[:5] // 0 begins again meanwhile
	got = append(got, must(1, 5, 12)...)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Error("logits of a sequence in passes differ from those of one pass")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := pass(ctx, 0, 4, 6); err == nil {
		t.Fatal("a pass of a context that is over: no error")
	}
	refused("a position after a pass that failed", 0, 4, 6)
	if got := must(0, 0, 12); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Error("logits of a sequence that begins again differ")
	}
}

// Passes that leave their bounds are refused, and the engine continues.
func TestContinueRefuses(t *testing.T) {
	g := modeltest.Load(t, "llama")
	s := frozen(t, g, f32, 4, plan.Outputs{LogitRows: 2, Caches: nn.Caches{Sequences: 2, Positions: 6}})
	r := start(t, s, setup{})
	defer r.close(t)
	good := stream.Position{Length: 1}
	for name, pass := range map[string][]stream.Position{
		"none": {}, "too many": slices.Repeat([]stream.Position{good}, 5),
		"token": {{Token: int32(s.model.Vocab), Length: 1}}, "sequence": {{Sequence: 2, Length: 1}},
		"place": {{At: 3, Length: 3}}, "length": {{At: 3, Length: 7}}, "negative": {{At: -1, Length: 7}},
	} {
		if _, err := r.engine.Continue(t.Context(), pass, 1); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := r.engine.Continue(t.Context(), []stream.Position{good}, 2); err == nil {
		t.Error("more logits than positions: no error")
	}
	if _, err := r.engine.Continue(t.Context(), []stream.Position{good}, 1); err != nil {
		t.Error(err)
	}
	if _, err := r.engine.Draw(t.Context(), []stream.Position{good}, nil, 1); err == nil {
		t.Error("draws of a plan without: no error")
	}
}
