package cuda_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

// The products of a block of 7B width: what cuBLASLt thinks best, and what is fastest. A second device that takes
// over the choices computes the same bits.
func TestGPUTuning(t *testing.T) {
	needGPU(t)
	const rows, hidden, inner, qkv = 8192, 3584, 18944, 4608
	accounts := hostmem.New()
	region, err := accounts.Reserve("test", 2*rows*hidden)
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, region)
	var lines []string
	var first []byte
	for _, second := range []bool{false, true} {
		d := openGPU(t, library)
		defer mustClose(t, d)
		if !d.Info().TunesProducts {
			t.Skip(d.Info().Warning)
		}
		buf, err := d.Alloc("arena", 3<<30)
		if err != nil {
			t.Fatal(err)
		}
		defer mustClose(t, buf)
		arena, used := device.Whole(buf), int64(0)
		mat := func(t tensor.DType, r, c int) device.Mat {
			m := device.NewMat(arena.Slice(used, arena.Len-used), t, r, c)
			used += (m.Len + device.ArenaAlign - 1) / device.ArenaAlign * device.ArenaAlign
			return m
		}
		x, y := mat(tensor.BF16, rows, hidden), mat(tensor.BF16, rows, hidden)
		wide, act := mat(tensor.BF16, rows, 2*inner), mat(tensor.BF16, rows, inner)
		qkvs, wQKV := mat(tensor.BF16, rows, qkv), mat(tensor.BF16, qkv, hidden)
		wWide, wDown := mat(tensor.BF16, 2*inner, hidden), mat(tensor.BF16, hidden, inner)
		gWide := mat(tensor.F32, 2*inner, hidden)
		nt, tn := device.MatMulFlags{TransB: true}, device.MatMulFlags{TransA: true, Accumulate: true}
		onto := nt
		onto.Onto = x
		products := []device.Product{{C: qkvs, A: x, B: wQKV, MatMulFlags: nt}, {C: wide, A: x, B: wWide, MatMulFlags: nt},
			{C: y, A: act, B: wDown, MatMulFlags: onto}, {C: act, A: x, B: wDown}, {C: gWide, A: wide, B: x, MatMulFlags: tn}}
		if second {
			if err := d.UseAlgorithms(lines); err != nil {
				t.Fatal(err)
			}
		} else {
			before := productTime(t, d, products)
			if err := d.TuneProducts(products, arena); err != nil {
				t.Fatal(err)
			}
			lines = d.Algorithms()
			fmt.Printf("SUMMARY %d products of a 7B block: %v with cuBLASLt's first choice for each, %v with the fastest\n",
				len(products), before, productTime(t, d, products))
			for _, line := range lines {
				t.Log(line)
			}
		}
		host, err := d.Register(region)
		if err != nil {
			t.Fatal(err)
		}
		defer mustClose(t, host)
		for i, numbers := 0, hostmem.U16(region.Bytes()); i < len(numbers); i++ {
			numbers[i] = tensor.BF16FromF32(float32(i*i%1009)/997 - 0.5)
		}
		s, err := d.NewStream("test")
		if err != nil {
			t.Fatal(err)
		}
		defer mustClose(t, s)
		for _, m := range []device.Mat{x, act, wDown} {
			n := min(m.Len, region.Len())
			s.Copy(m.Mem.Slice(0, n), device.Whole(host).Slice(0, n))
		}
		s.MatMul(y, act, wDown, onto)
		s.Copy(device.Whole(host), y.Mem)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		if !second {
			first = slices.Clone(region.Bytes())
		} else if !slices.Equal(first, region.Bytes()) || !slices.Equal(lines, d.Algorithms()) {
			t.Error("a device that takes over the choices computes other bits")
		}
	}
}

// productTime is how long the device takes for products, the fastest of three times.
func productTime(t *testing.T, d *cuda.Device, products []device.Product) time.Duration {
	t.Helper()
	s, err := d.NewStream("time")
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, s)
	var events [2]device.Event
	for i := range events {
		if events[i], err = d.NewEvent(); err != nil {
			t.Fatal(err)
		}
		defer mustClose(t, events[i])
	}
	best := time.Duration(0)
	for i := range 4 { // the first one loads kernels
		s.Record(events[0])
		for _, p := range products {
			s.MatMul(p.C, p.A, p.B, p.MatMulFlags)
		}
		s.Record(events[1])
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		if took := events[1].Since(events[0]); i == 1 || i > 1 && took < best {
			best = took
		}
	}
	return best
}
