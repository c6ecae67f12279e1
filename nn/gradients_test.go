package nn_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// A fresh gradient ends with the same bits as a cleared one, although only the elements that no product writes are
// cleared. This holds for any earlier contents, for one chunk or many, and where tensors are frozen.
func TestFreshGradients(t *testing.T) {
	for name, d := range variants() {
		for _, frozen := range []string{"none", "gate up", "bias norm"} {
			for _, rows := range []int{0, 4} {
				t.Run(fmt.Sprint(name, ", frozen ", frozen, ", chunks of ", rows), func(t *testing.T) {
					t.Parallel()
					k := newBlock(t, d, tensor.F32, func(field string) bool {
						for part := range strings.FieldsSeq(frozen) {
							if strings.Contains(field, part) {
								return true
							}
						}
						return false
					})
					k.rows = rows
					_, _, want := k.run(nn.KeepInput)
					k.g.Fresh = true
					_, _, got := k.run(nn.KeepInput)
					equalFloats(t, got, want)
				})
			}
		}
	}
}

// So does that of the vocabulary's tiles, in both schedules of the head.
func TestFreshTiles(t *testing.T) {
	for name, h := range heads() {
		for _, visit := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", all tiles at once ", visit), func(t *testing.T) {
				t.Parallel()
				e := newEnding(t, h, tensor.F32)
				e.run(visit)
				var want [][]float32
				for _, d := range e.dTiles {
					want = append(want, e.get(d))
				}
				e.fresh = true
				e.run(visit)
				for i, d := range e.dTiles {
					equalFloats(t, e.get(d), want[i])
				}
			})
		}
	}
}

// equalFloats compares numbers: a product that is written and one that is added to zeros differ in the sign of zeros.
func equalFloats(t *testing.T, got, want []float32) {
	t.Helper()
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("element %d is %v, want %v", i, got[i], want[i])
		}
	}
}

// What Clear leaves out is just the matrices.
func TestClearedBytes(t *testing.T) {
	l, err := tensor.NewLayout(tensor.Field{Name: "a", Shape: tensor.Shape{7}, Trainable: true},
		tensor.Field{Name: "b", Shape: tensor.Shape{300, 2}, Trainable: true}, tensor.Field{Name: "c", Shape: tensor.Shape{64, 8}, Trainable: false},
		tensor.Field{Name: "d", Shape: tensor.Shape{16, 16}, Trainable: true})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := nn.ClearedBytes(l), 4*(l.StateElems-300*2-16*16); got != want {
		t.Errorf("%d bytes are cleared, want %d", got, want)
	}
	var frozen nn.Params
	frozen.Clear(device.Stream(nil))
}
