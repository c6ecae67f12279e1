package model_test

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

var documentRows = flag.Int("documentrows", 0, "rows in which each model computes a document, at places drawn at random; "+
	"0: one, for each model in one of the types, with the best instructions alone")

// A document's bits do not depend on its place: alone it has the losses, the logits and the gradients of its inputs
// that it has at any offset of any row, among whatever documents. For all models, with chunks that end within it.
func TestDocumentsHaveTheirOwnBits(t *testing.T) {
	types, levels := []tensor.DType{tensor.F32, tensor.BF16}, isa.Available()
	for i, variant := range modeltest.Variants(t) {
		g := modeltest.Load(t, variant)
		for _, level := range levels {
			for _, dtype := range types {
				if *documentRows == 0 && (level != isa.Best() || dtype != types[i%len(types)]) {
					continue
				}
				t.Run(fmt.Sprint(variant, " ", level, " ", dtype), func(t *testing.T) {
					t.Parallel()
					r := newReference(t, g.Dir, dtype, level)
					rng := rand.New(rand.NewPCG(uint64(*documentRows), uint64(i)))
					for range max(1, *documentRows) {
						r.moveDocument(rng)
					}
				})
			}
		}
	}
}

// moveDocument compares a document alone with the same one in a row.
func (r *reference) moveDocument(rng *rand.Rand) {
	r.t.Helper()
	longest := 330
	if r.m.LearnsPositions() {
		longest = r.m.MaxPositions
	}
	tokens := func(n int) []int32 {
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = rng.Int32N(int32(r.m.Vocab))
		}
		return ids
	}
	own := tokens(min(longest, []int{1, 60, 190, 255}[rng.IntN(4)]+rng.IntN(75)))
	before, after := r.others(rng, tokens, longest), r.others(rng, tokens, longest)
	r.cut.Chunk = []int{0, 7, 64}[rng.IntN(3)]
	r.m.Head.ChunkTokens = []int{5, 64, 512}[rng.IntN(3)]

	alone, first := r.packed(own), len(slices.Concat(before...))
	row := r.packed(slices.Concat(before, [][]int32{own}, after)...)
	for _, of := range []struct {
		what      string
		got, want []float32
	}{
		{"losses", row.losses, alone.losses},
		{"logits", row.logits, alone.logits},
		{"gradients of inputs", row.inputs, alone.inputs},
		{"gradients of lookups", row.lookups, alone.lookups},
	} {
		each := len(of.want) / len(own)
		differ, most, at := 0, 0.0, -1
		for i, want := range of.want {
			got := of.got[first*each+i]
			if math.Float32bits(got) != math.Float32bits(want) || want != want {
				if differ++; at < 0 {
					at = i / each
				}
				most = max(most, math.Abs(float64(got-want)))
			}
		}
		if differ > 0 {
			r.t.Errorf("a document of %d at %d of %d rows, chunks of %d: %d of %d %s differ, by %.2g at most, the first at position %d",
				len(own), first, len(row.losses), r.cut.Chunk, differ, len(of.want), of.what, most, at)
		}
	}
}

// others are documents that stand before or after another one.
func (r *reference) others(rng *rand.Rand, tokens func(n int) []int32, longest int) (all [][]int32) {
	for range rng.IntN(4) {
		all = append(all, tokens(1+rng.IntN(min(longest, []int{1, 20, 150}[rng.IntN(3)]))))
	}
	return all
}

// packed computes a micro-batch of documents.
func (r *reference) packed(documents ...[]int32) positions {
	m := batch.New(len(slices.Concat(documents...)))
	first := 0
	for _, tokens := range documents {
		m.SetDocument(first, tokens)
		copy(m.Targets[first:], tokens[1:])
		first += len(tokens)
	}
	mark := r.arena.Mark()
	defer r.arena.Release(mark)
	return r.microBatch(m, 1, nn.KeepAttention)
}
