package cuda_test

import (
	"bytes"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

// Tuning changes the algorithm and with it the bits of a product. A device that takes over the choice computes the
// same bits, and a device that has neither does not. Scratch is zeros after it.
func TestTuneProducts(t *testing.T) {
	const n, scratchBytes = 48, 1 << 16
	accounts := hostmem.New()
	product := func(prepare func(r *rig, p device.Product, scratch device.Mem)) []byte {
		r := open(t, standin.Options{}, library)
		defer func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}()
		buf, err := r.Alloc("arena", scratchBytes)
		if err != nil {
			t.Fatal(err)
		}
		defer buf.Close()
		arena := device.Whole(buf)
		at := func(off int64, d tensor.DType) device.Mat {
			return device.NewMat(arena.Slice(off, n*n*d.Bytes()), d, n, n)
		}
		p := device.Product{C: at(0, tensor.F32), A: at(16<<10, tensor.BF16), B: at(24<<10, tensor.BF16),
			MatMulFlags: device.MatMulFlags{Onto: at(32<<10, tensor.F32)}}
		if !r.Info().TunesProducts {
			t.Error("the device does not say that its library can be tuned")
		}
		prepare(r, p, arena)

		region, err := accounts.Reserve("test", scratchBytes)
		if err != nil {
			t.Fatal(err)
		}
		defer region.Close()
		host, err := r.Register(region)
		if err != nil {
			t.Fatal(err)
		}
		defer host.Close()
		s, err := r.NewStream("test")
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		s.Copy(device.Whole(host), arena)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(region.Bytes(), make([]byte, scratchBytes)) {
			t.Error("tuning leaves something in the memory that it was lent")
		}
		numbers := hostmem.U16(region.Bytes())
		for i := range numbers {
			numbers[i] = tensor.BF16FromF32(float32(i*i%1009)/997 - 0.5)
		}
		s.Copy(arena, device.Whole(host))
		s.MatMul(p.C, p.A, p.B, p.MatMulFlags)
		s.Copy(device.Whole(host), arena)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		return bytes.Clone(region.Bytes()[:4*n*n])
	}
	var lines []string
	tuned := product(func(r *rig, p device.Product, scratch device.Mem) {
		for range 2 { // the second time there is nothing to choose
			if err := r.TuneProducts([]device.Product{p}, scratch); err != nil {
				t.Fatal(err)
			}
		}
		lines = r.Algorithms()
	})
	if len(lines) != 1 {
		t.Fatalf("the choices are %q", lines)
	}
	again := product(func(r *rig, p device.Product, _ device.Mem) {
		if err := r.UseAlgorithms(lines); err != nil {
			t.Fatal(err)
		}
	})
	if !bytes.Equal(tuned, again) {
		t.Error("a device that takes over the choice computes other bits")
	}
	if bytes.Equal(tuned, product(func(*rig, device.Product, device.Mem) {})) {
		t.Error("both algorithms compute the same bits: the test sees nothing")
	}
}

// Without a library nothing is tuned.
func TestTuneWithoutLibrary(t *testing.T) {
	r := open(t, standin.Options{}, ownProducts)
	defer r.Close()
	if r.Info().TunesProducts || r.TuneProducts([]device.Product{{}}, device.Mem{}) != nil || r.Algorithms() != nil ||
		r.UseAlgorithms([]string{"x"}) != nil {
		t.Error("own products are tuned")
	}
}
