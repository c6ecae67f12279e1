package devicetest

import (
	"slices"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Tolerance is how far a result may be from the reference: Rel of the reference's magnitude, and Abs of the scale of what
// was summed to get it.
type Tolerance struct{ Rel, Abs float64 }

// Suite is the suite for one driver. Open is required.
type Suite struct {
	// Open makes a device; the suite closes it.
	Open func() device.Device
	// F32 and BF16 are the tolerances of results of these types, where the contract does not define their bits. The zero
	// value stands for those of the CPU device.
	F32, BF16 Tolerance
	// Only names the tests to run; nil: all. It is for a driver's second configuration, where most of the first one's proof holds.
	Only []string
	// Align is a number n: matrices begin at multiples of n bytes, with strides of multiples of n elements, as those of an engine do. 0: they
	// begin wherever their elements may. With it, shapes of real models come as well: sizes that are round, heads of 64, 128 and 256 columns.
	Align int
	// Fail makes the stream fail with err in its order, as an operation would. nil: the driver has no such hook.
	Fail func(s device.Stream, err error)
	// MostFailures is how many cases of a test may fail before it ends; 0: one. More tell more where a run is rare.
	MostFailures int
	// Observe sees all that operations wrote, for comparisons between configurations of a driver. May be nil.
	Observe func(test string, written []byte)
}

// Run holds the driver that open makes against the contract, with the CPU device's tolerances.
func Run(t *testing.T, open func() device.Device) { Suite{Open: open}.Run(t) }

// Run holds the driver against the contract.
func (s Suite) Run(t *testing.T) {
	if s.F32 == (Tolerance{}) {
		s.F32 = Tolerance{Rel: 4e-6, Abs: 2e-6}
	}
	if s.BF16 == (Tolerance{}) {
		s.BF16 = Tolerance{Rel: 1.0 / 256, Abs: 1.0 / 1024}
	}
	for _, test := range []struct {
		name string
		run  func(*rig)
	}{
		{"MatMul", testMatMul}, {"Bias", testBias}, {"Add", testAdd}, {"Cast", testCast},
		{"RMSNorm", testRMSNorm}, {"RMSNormGrad", testRMSNormGrad}, {"RoPE", testRoPE},
		{"Attention", testAttention}, {"SwiGLU", testSwiGLU}, {"CrossEntropy", testCrossEntropy},
		{"Gather", testGather}, {"ScatterAdd", testScatterAdd},
		{"AdamW", testAdamW}, {"AdamW8", testAdamW8}, {"Sums", testSums},
		{"Memory", testMemory}, {"Copy", testCopy}, {"InPlace", testInPlace},
		{"StreamOrder", testStreamOrder}, {"Events", testEvents}, {"EventTimes", testEventTimes},
		{"StickyErrors", testStickyErrors}, {"BadCalls", testBadCalls},
	} {
		if s.Only != nil && !slices.Contains(s.Only, test.name) {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, s)
			defer r.tell()
			test.run(r)
		})
	}
}

// shape is rows and columns of a case.
type shape struct{ rows, cols int }

// shapes are small odd ones, and one that is large enough to be cut among workers; with Align, round ones as well.
func (s *Suite) shapes() []shape {
	all := []shape{{1, 1}, {1, 17}, {3, 1}, {17, 37}, {37, 100}, {100, 131}, {259, 262}}
	if s.Align > 0 {
		all = append(all, shape{64, 128}, shape{130, 1024})
	}
	return all
}

// tolerance is that of results of a type.
func (s *Suite) tolerance(d tensor.DType) Tolerance {
	if d == tensor.BF16 {
		return s.BF16
	}
	return s.F32
}
