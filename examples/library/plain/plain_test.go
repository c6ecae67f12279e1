package plain

import (
	"slices"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/devicetest"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

// The driver keeps the contract, as every driver must.
func TestContract(t *testing.T) {
	devicetest.Suite{
		Open: func() device.Device { return New(64<<20, 0) },
		Fail: func(s device.Stream, err error) { s.(*stream).Stream.(interface{ Fail(error) }).Fail(err) },
	}.Run(t)
}

// A query that sees itself only takes its own value, and a product of [3, 2] and [2, 3] has 2*3*3*2 operations.
func TestOverrides(t *testing.T) {
	d := New(1<<20, 1)
	region, err := hostmem.New().Reserve("operands", 4096)
	if err != nil {
		t.Fatal(err)
	}
	buffer, _ := d.Register(region)
	s, _ := d.NewStream("test")
	arena, x := device.NewArena(device.Whole(buffer)), hostmem.F32(region.Bytes())
	mat := func(t tensor.DType, rows, cols int) device.Mat { return arena.Mat(t, rows, cols) }
	qkv, out, lse, c := mat(tensor.F32, 3, 6), mat(tensor.F32, 3, 2), mat(tensor.F32, 3, 1), mat(tensor.F32, 3, 3)
	for i := range 18 {
		x[i] = float32(i)
	}
	docs := mat(tensor.I32, 1, 3).Mem // zeros: one document
	s.Attention(out, lse, qkv.ColRange(0, 2), qkv.ColRange(2, 2), qkv.ColRange(4, 2), device.AttentionSpec{Heads: 1,
		KVHeads: 1, HeadDim: 2, Scale: 1, Docs: device.Docs{Positions: docs, Start: docs, End: docs}})
	s.MatMul(c, out, out, device.MatMulFlags{TransB: true})
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	if got := x[out.Off/4:][:6]; !slices.Equal(got, []float32{4, 5, 10, 11, 16, 17}) {
		t.Errorf("the attention with a window of one key is %v", got)
	}
	if d.FLOPs() != 36 {
		t.Errorf("%d operations in the product", d.FLOPs())
	}
}
