package nn_test

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// The block in one piece is the reference for chunks of rows. The values of a position have the same bits for every
// cut; gradients of parameters are sums over chunks and differ in their rounding only. The choice of kept activations
// changes no bit of either.
func TestBlockChunks(t *testing.T) {
	for name, d := range variants() {
		for _, dtype := range []tensor.DType{tensor.F32, tensor.BF16} {
			t.Run(fmt.Sprint(name, " ", dtype), func(t *testing.T) {
				t.Parallel()
				k := newBlock(t, d, dtype, nil)
				y, dx, g := k.run(nn.KeepInput)
				for _, k.rows = range []int{1, 4, 7, positions - 1, positions, positions + 1} {
					what := fmt.Sprintf("chunks of %d: ", k.rows)
					y2, dx2, g2 := k.run(nn.KeepInput)
					sameBits(t, what+"y", y2, y)
					sameBits(t, what+"dx", dx2, dx)
					if k.rows >= positions {
						sameBits(t, what+"gradients", g2, g)
					}
					close32(t, k.layout, what, g2, g)
					for keep := nn.KeepAttention; keep <= nn.KeepAll; keep++ {
						y3, dx3, g3 := k.run(keep)
						sameBits(t, what+fmt.Sprint("y, keep ", keep), y3, y)
						sameBits(t, what+fmt.Sprint("dx, keep ", keep), dx3, dx)
						sameBits(t, what+fmt.Sprint("gradients, keep ", keep), g3, g2)
					}
				}
			})
		}
	}
}

// close32 compares each tensor of a gradient with another sum of the same fp32 terms.
func close32(t *testing.T, l *tensor.Layout, what string, got, want []float32) {
	t.Helper()
	for _, f := range l.Fields {
		a, b := got[f.State:f.State+f.Elems], want[f.State:f.State+f.Elems]
		var most, size float64
		for i := range b {
			most = max(most, math.Abs(float64(a[i]-b[i])))
			size = max(size, math.Abs(float64(b[i])))
		}
		if !(most <= 1e-6*size+1e-9) {
			t.Errorf("%s%s: off by %g where the largest element is %g", what, f.Name, most, size)
		}
	}
}

// Chunks bound what grows with the MLP: twice the positions take no more of it, and never more than without chunks.
func TestChunksBoundWork(t *testing.T) {
	bytes := func(d *nn.Block, positions, rows int, keep nn.Keep) (forward, backward int64) {
		f, b := device.NewArena(device.Mem{}), device.NewArena(device.Mem{})
		d.NewForwardWork(f, tensor.BF16, positions, nn.Cut{Chunk: rows}, keep)
		d.NewBackwardWork(b, tensor.BF16, positions, nn.Cut{Chunk: rows}, keep)
		return f.Peak(), b.Peak()
	}
	rapid.Check(t, func(rt *rapid.T) {
		heads := rapid.IntRange(1, 4).Draw(rt, "heads")
		hidden, inner := rapid.IntRange(1, 300).Draw(rt, "hidden"), rapid.IntRange(1, 2000).Draw(rt, "inner")
		a := nn.Attention{Heads: heads, KVHeads: heads, HeadDim: 2 * rapid.IntRange(1, 16).Draw(rt, "half a head"),
			QKNorm: rapid.Bool().Draw(rt, "qk norm")}
		d := &nn.Block{Hidden: hidden, Mixer: a, FeedForward: nn.GLU{Inner: inner}}
		n, rows := rapid.IntRange(1, 500).Draw(rt, "positions"), rapid.IntRange(1, 600).Draw(rt, "rows")
		keep := nn.Keep(rapid.IntRange(0, nn.Keeps-1).Draw(rt, "keep"))
		wholeF, wholeB := bytes(d, n, 0, keep)
		f, b := bytes(d, n, rows, keep)
		if f > wholeF || b > wholeB {
			rt.Errorf("%d and %d bytes in chunks, %d and %d without", f, b, wholeF, wholeB)
		}
		// Per position there is what attention reads and writes, and its gradients.
		qkv, q := 3*heads*a.HeadDim, heads*a.HeadDim
		per := int64(2*(qkv+q)+4*heads)*2 + 4*int64(heads)
		if a.QKNorm {
			per += int64(2*2*q + 2*4*heads)
		}
		chunk := int64(min(rows, n)) * int64(2*(2*hidden+3*inner)+4)
		if limit := int64(n)*per + chunk + 20*device.ArenaAlign; b > limit {
			rt.Errorf("backward takes %d bytes, more than %d", b, limit)
		}
	})
}
