package cuda_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/devicetest"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

// Operations of the suite that take longest in the interpreter of PTX: their tests have a test of their own.
var (
	costlyExperts     = []string{"ExpertGLU", "ExpertCalls"}
	costlyRecurrences = []string{"GatedDelta", "CausalConv"}
)

func suite(t *testing.T, p products, align int, only ...string) devicetest.Suite {
	return devicetest.Suite{Open: func() device.Device { return open(t, standin.Options{}, p) }, Fail: fail,
		Align: align, Brief: true, Only: only}
}

// The suite of all drivers, on the kernels that the program carries.
func TestConformance(t *testing.T) {
	if raceEnabled {
		t.Skip("the interpreter of PTX is slow under the race detector; TestStandInTraining looks for missing waits")
	}
	t.Parallel()
	own := suite(t, ownProducts, 0)
	own.Without = slices.Concat(costlyExperts, costlyRecurrences)
	t.Run("own products", own.Run)
	// What differs with the library, and what shares its workspace. It takes aligned operands alone.
	t.Run("library", suite(t, library, 0, "MatMul", "Bias", "StreamOrder", "Events").Run)
	t.Run("library, aligned", suite(t, library, 16, "MatMul").Run)
}

// The costly operations, at all shapes and places of operands. kerneltest runs their kernels on aligned operands, so a
// commit has a share of these.
func TestConformanceOfExperts(t *testing.T) {
	costly(t)
	suite(t, ownProducts, 0, costlyExperts...).Run(t)
}

func TestConformanceOfRecurrences(t *testing.T) {
	costly(t)
	suite(t, ownProducts, 0, costlyRecurrences...).Run(t)
}

// The kernels that aligned operands reach, which kerneltest runs, too.
func TestConformanceAligned(t *testing.T) {
	costly(t)
	suite(t, ownProducts, 16, "MatMul", "Bias", "RMSNorm", "RMSNormGrad", "LayerNorm", "LayerNormGrad", "RoPE",
		"Attention", "Heads", "GLU", "ExpertMatMul", "ExpertWeightGrad", "CausalConv", "Gate", "GatedDelta", "AttendCache",
		"Put", "ContinueConv", "ExpertCalls").Run(t)
}

func costly(t *testing.T) {
	t.Helper()
	if raceEnabled || testing.Short() {
		t.Skip("-short leaves out operations that the interpreter of PTX takes a minute for: make long runs them, and " +
			"kerneltest runs their kernels with every commit")
	}
	t.Parallel()
}

// Long vectors are summed in rounds, with the bits of one round.
func TestSumRounds(t *testing.T) {
	if raceEnabled {
		t.Skip("one stream, and the interpreter of PTX is slow under the race detector")
	}
	const n, chunk = 300_001, 65536
	d := open(t, standin.Options{}, ownProducts)
	defer mustClose(t, d)
	r, err := hostmem.New().Reserve("numbers", 4*n+16)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	x := hostmem.F32(r.Bytes()[16:])
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	host, err := d.Register(r)
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, host)
	b, err := d.Alloc("numbers", r.Len())
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, b)
	s, err := d.NewStream("sum")
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, s)
	mem := device.Whole(b)
	v := device.NewVec(mem.Slice(16, 4*n), tensor.F32, n)
	var sums [3][2]float64
	for i, chunks := range []int{100, 1, 2} {
		d.SetRound(chunks)
		s.Copy(mem, device.Whole(host))
		s.SumSquares(mem.Slice(0, 8), v)
		s.Sum(mem.Slice(8, 8), v)
		s.Copy(device.Whole(host).Slice(0, 16), mem.Slice(0, 16))
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		copy(sums[i][:], hostmem.F64(r.Bytes()[:16]))
	}
	if sums[1] != sums[0] || sums[2] != sums[0] || sums[0][0] < n/2 {
		t.Errorf("sums in one round, in rounds of 1 and of 2 chunks of %d: %v", chunk, sums)
	}
}
