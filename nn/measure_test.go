package nn_test

import (
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// The account of a block's forward visit is what one counts by hand: 8 positions in documents of 3 and 5, a width of 8,
// two query heads and one key head of 4, and 12 columns of gate.
func TestMeasureForward(t *testing.T) {
	for window, pairs := range map[int]int64{0: 6 + 15, 2: 5 + 9, 3: 6 + 12, 5: 6 + 15} {
		b := &nn.Block{Hidden: 8, Norm: nn.Norm{Eps: 1e-5}, FeedForward: nn.GLU{Inner: 12},
			Mixer: nn.Attention{Heads: 2, KVHeads: 1, HeadDim: 4,
				Rope: nn.RopeFrequencies{HeadDim: 4, Theta: 1e4}, Scale: 0.5, Window: window}}
		layout, err := tensor.NewLayout(b.Fields()...)
		if err != nil {
			t.Fatal(err)
		}
		want := nn.Account{
			Work: [nn.Classes]int64{
				nn.OfProducts:  2 * 8 * (16*8 + 8*8 + 24*8 + 8*12), // qkv, output, gate and up, down
				nn.OfAttention: 2 * 2 * pairs * 2 * 4,
				nn.OfElements:  2 * 8 * (2*8 + 2*8 + 2*12 + 12 + 24)}, // norms, rotation of queries and keys, SwiGLU; 2 bytes each
			Ops:     9, // two norms, four products, rotation, attention, SwiGLU
			HeadDim: 4,
		}
		products, attention := want.Work[nn.OfProducts], want.Work[nn.OfAttention]
		for _, level := range []nn.Keep{nn.KeepInput, nn.KeepAll} {
			m := nn.Shape{Docs: []int{3, 5}, DType: tensor.BF16, Level: level}
			got := b.Measure(b.Stages(nn.Forward, false)[0][0], m, layout)
			if got != want || got.FLOPs() != products+attention {
				t.Errorf("window %d, level %v: %+v, want %+v", window, level, got, want)
			}
		}
		// Backward has two products for each of forward's, and what it computes again; the gradient of attention has five
		// products where attention has two.
		back := func(level nn.Keep) nn.Account {
			return b.Measure(b.Stages(nn.Backward, false)[0][0], nn.Shape{Docs: []int{3, 5}, DType: tensor.BF16, Level: level}, layout)
		}
		all, none := back(nn.KeepAll), back(nn.KeepInput)
		if all.Work[nn.OfProducts] != 2*products || all.Work[nn.OfAttentionGrad] != 5*attention/2 ||
			all.Widest != (nn.AttentionShape{Heads: 2, HeadDim: 4}) {
			t.Errorf("window %d: backward %+v", window, all)
		}
		if again := none.Work[nn.OfProducts] - all.Work[nn.OfProducts]; again != 2*8*(16*8+8*8+24*8) ||
			none.Work[nn.OfAttention] != attention {
			t.Errorf("window %d: backward computes %d again, and %+v", window, again, none)
		}
	}
}

// Accounts add up, and the wider attention stays.
func TestAccountPlus(t *testing.T) {
	work := func(products, attention, bytes int64) [nn.Classes]int64 {
		return [nn.Classes]int64{nn.OfProducts: products, nn.OfAttention: attention, nn.OfElements: bytes}
	}
	a := nn.Account{Work: work(1, 2, 4), Ops: 3, Widest: nn.AttentionShape{Heads: 2, HeadDim: 8}, HeadDim: 8, DeltaDim: 5,
		DeltaHeads: 6}
	b := nn.Account{Work: work(10, 20, 40), Ops: 30, Widest: nn.AttentionShape{Heads: 1, HeadDim: 15}, HeadDim: 15,
		ExpertRows: 7}
	want := nn.Account{Work: work(11, 22, 44), Ops: 33, Widest: a.Widest, HeadDim: 15, DeltaDim: 5, DeltaHeads: 6,
		ExpertRows: 7}
	if a.Plus(b) != want || b.Plus(a) != want {
		t.Errorf("%+v and %+v, want %+v", a.Plus(b), b.Plus(a), want)
	}
}

// Clearing leaves out what a product overwrites: it writes vectors, and the elements between tensors.
func TestClearedBetween(t *testing.T) {
	layout, err := tensor.NewLayout(tensor.Field{Name: "a", Shape: tensor.Shape{3, 100}, Trainable: true},
		tensor.Field{Name: "b", Shape: tensor.Shape{10}, Trainable: true}, tensor.Field{Name: "frozen", Shape: tensor.Shape{7, 7}},
		tensor.Field{Name: "c", Shape: tensor.Shape{2, 128}, Trainable: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := nn.ClearedBytes(layout); got != 4*(768-300) {
		t.Errorf("%d bytes, want %d: from the end of a to the beginning of c", got, 4*(768-300))
	}
}

// A delta net remembers a state before each chunk of rows, the last one included, which may have a single row.
func TestStatesOfDeltaNets(t *testing.T) {
	d := &nn.Block{Hidden: 8, FeedForward: nn.GLU{Inner: 8},
		Mixer: nn.GatedDelta{KeyHeads: 1, Heads: 2, KeyDim: 64, ValueDim: 64}}
	kept := func(rows int) int64 {
		a := device.NewArena(device.Mem{})
		d.NewKept(a, tensor.F32, rows, nn.KeepAll)
		return a.Peak()
	}
	const state = 2 * 64 * 64 * 4
	for chunks := range 3 {
		n := device.DeltaChunk * (1 + chunks)
		if more, then := kept(n+1)-kept(n), kept(n+2)-kept(n+1); more < state || then >= state {
			t.Errorf("row %d takes %d bytes, and the next one %d; a state has %d", n+1, more, then, state)
		}
	}
}
