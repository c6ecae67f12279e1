package store_test

import (
	"testing"

	"github.com/millrace/millrace/internal/hostmem"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/store/storetest"
	"github.com/millrace/millrace/tensor"
)

func TestRAM(t *testing.T) {
	storetest.Run(t, func(t testing.TB, specs []store.Spec) store.Store {
		s, err := store.NewRAM(hostmem.New(), specs)
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

func TestPartSpecsLeaveFrozenTensorsOut(t *testing.T) {
	l, err := tensor.NewLayout(
		tensor.Field{Name: "a", Shape: tensor.Shape{3, 5}, Trainable: true},
		tensor.Field{Name: "b", Shape: tensor.Shape{100, 7}})
	if err != nil {
		t.Fatal(err)
	}
	types := [store.Kinds]tensor.DType{tensor.BF16, tensor.I16, tensor.BF16, tensor.F32, tensor.F32, tensor.Invalid}
	got := map[store.Kind]int64{}
	for _, s := range store.PartSpecs(3, l, types, 512) {
		got[s.Kind] = s.Bytes
	}
	want := map[store.Kind]int64{store.Weights: 2 * (256 + 768), store.Low: 512, store.Grad: 512,
		store.FirstMoment: 1024, store.SecondMoment: 1024}
	for k, n := range want {
		if got[k] != n {
			t.Errorf("%v: %d bytes, want %d", k, got[k], n)
		}
	}
}
