package cpu_test

import (
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/cores"
	"github.com/millrace/millrace/tensor"
)

// Workers with cores of their own compute what others do, also where a core is not to be had.
func TestOwnCores(t *testing.T) {
	const n = 1 << 20
	sum := func(o cpu.Options) float64 {
		d := open(t, o)
		if len(o.Cores) > 0 && d.Info().Workers != len(o.Cores) {
			t.Errorf("%d workers on %d cores", d.Info().Workers, len(o.Cores))
		}
		defer func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}()
		r, err := hostmem.New().Reserve("numbers", 4*n+8)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		b, err := d.Register(r)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		x := hostmem.F32(r.Bytes()[8:])
		for i := range x {
			x[i] = float32(i%1000) / 7
		}
		s, err := d.NewStream("sum")
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for range 3 {
			s.Add(device.NewVec(device.Whole(b).Slice(8, 4*n), tensor.F32, n), device.NewVec(device.Whole(b).Slice(8, 4*n), tensor.F32, n),
				device.NewVec(device.Whole(b).Slice(8, 4*n), tensor.F32, n))
		}
		s.SumSquares(device.Whole(b).Slice(0, 8), device.NewVec(device.Whole(b).Slice(8, 4*n), tensor.F32, n))
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		return hostmem.F64(r.Bytes()[:8])[0]
	}
	want := sum(cpu.Options{Workers: 1})
	own := [][]int{{1 << 30}, nil} // neither can be had
	for _, c := range cores.Divide(1).All {
		own = append(own, c.Processors)
	}
	if got := sum(cpu.Options{Cores: own}); got != want || want == 0 {
		t.Errorf("on cores of their own: %v, want %v", got, want)
	}
}
