// To add an operation:
//
//  1. Declare it in an interface of device/ops.go, with its formula, its shapes and its source, and write the check of
//     its operands in device/operands.go. If its gradient is an operation, that one gets the same.
//  2. Carry it out in float64 in reference_ops.go, as plainly as the formula: numbers reads an operand, put writes a
//     result. Pass it through in faulty_ops.go. Tests of single kernels (workshop/kerneltest) use it too.
//  3. Write its test in operations.go, and list the test in Suite.Run. A case places operands (normal, filled and ints
//     make inputs; output and stat are full of poison), runs the operation on the device and on the reference, compares
//     each output, and makes sure that nothing else changed:
//
//	x, y := r.normal("x", d, s.rows, s.cols), r.output("y", d, s.rows, s.cols)
//	r.run(func(st device.Stream) { st.Cast(y.Mat, x.Mat) })
//	r.exact(what, y) // or r.near, with the magnitude of the terms that were summed
//	r.finish(what)
//
//  4. If it is a gradient, add it to TestReferenceGradients, which compares it with differences.
//  5. Break it in broken_test.go as a driver might, and see that the suite notices.
//  6. Add it to the drivers: device/null with its costs, device/cpu, device/cuda.

package devicetest

import (
	"slices"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Tolerance bounds the distance of a result from the reference: by Rel of the reference's magnitude, plus Abs of the
// scale of what was summed to get it.
type Tolerance struct{ Rel, Abs float64 }

// ToleranceOf returns that of the CPU device for results of a type.
func ToleranceOf(d tensor.DType) Tolerance {
	if d == tensor.BF16 {
		return Tolerance{Rel: 1.0 / 256, Abs: 1.0 / 1024}
	}
	return Tolerance{Rel: 4e-6, Abs: 2e-6}
}

// Suite configures the suite for one driver. Open is required.
type Suite struct {
	// Open makes a device; the suite closes it.
	Open func() device.Device
	// OpenPeer makes another device, from which the first one copies; the suite closes it. nil: the driver opens one
	// alone.
	OpenPeer func() device.Device
	// F32 and BF16 are the tolerances of results of these types, where the contract does not define their bits. The zero
	// value stands for those of the CPU device.
	F32, BF16 Tolerance
	// Only names the tests to run; nil: all. It is for a driver's second configuration, where most of the first one's
	// proof holds.
	Only []string
	// Without names tests that do not run.
	Without []string
	// Align is a number n: matrices begin at multiples of n bytes, with strides of multiples of n elements, as those of
	// an engine do. 0: they begin wherever their elements may. With it, shapes of real models come as well: sizes that
	// are round, heads of 64, 128 and 256 columns.
	Align int
	// Brief has operands of the costly tests take turns, so that each size meets half of the ways to call an operation,
	// and the next size the others: for a device that is interpreted.
	Brief bool
	// Fail makes the stream fail with err in its order, as an operation would. nil: the driver has no such hook.
	Fail func(s device.Stream, err error)
	// MostFailures bounds the cases of a test that fail before it ends; 0: one. More tell more where a run is rare.
	MostFailures int
	// Observe sees all that operations wrote, for comparisons between configurations of a driver. May be nil.
	Observe func(test string, written []byte)
}

// test is a part of the suite.
type test struct {
	name string
	run  func(*rig)
}

// Run holds the driver that open makes against the contract, with the CPU device's tolerances.
func Run(t *testing.T, open func() device.Device) { Suite{Open: open}.Run(t) }

// Run holds the driver against the contract.
func (s Suite) Run(t *testing.T) {
	if s.F32 == (Tolerance{}) {
		s.F32 = ToleranceOf(tensor.F32)
	}
	if s.BF16 == (Tolerance{}) {
		s.BF16 = ToleranceOf(tensor.BF16)
	}
	tests := []test{
		{"MatMul", testMatMul}, {"CutRows", testCutRows}, {"Bias", testBias}, {"Add", testAdd},
		{"Scale", testScale}, {"Cast", testCast},
		{"RMSNorm", testRMSNorm}, {"RMSNormGrad", testRMSNormGrad}, {"LayerNorm", testLayerNorm},
		{"LayerNormGrad", testLayerNormGrad}, {"RoPE", testRoPE},
		{"Attention", testAttention}, {"Heads", testHeads}, {"GLU", testGLU}, {"CrossEntropy", testCrossEntropy},
		{"PickedLogits", testPickedLogits}, {"DrawTokens", testDrawTokens},
		{"Gather", testGather}, {"ScatterAdd", testScatterAdd},
		{"AdamW", testAdamW}, {"AdamW8", testAdamW8}, {"Sums", testSums},
		{"Memory", testMemory}, {"Copy", testCopy}, {"PeerCopy", testPeerCopy}, {"InPlace", testInPlace},
		{"StreamOrder", testStreamOrder}, {"Events", testEvents}, {"EventTimes", testEventTimes},
		{"StickyErrors", testStickyErrors}, {"BadCalls", testBadCalls},
	}
	tests = slices.Concat(tests, expertTests, cacheTests, recurrentTests)
	for _, test := range tests {
		if s.Only != nil && !slices.Contains(s.Only, test.name) || slices.Contains(s.Without, test.name) {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, s)
			defer r.tell()
			test.run(r)
		})
	}
}

// shape has the rows and columns of a case.
type shape struct{ rows, cols int }

// shapes returns small odd ones, and one that is large enough to be cut among workers; with Align, round ones as well.
func (s *Suite) shapes() []shape {
	all := []shape{{1, 1}, {1, 17}, {3, 1}, {17, 37}, {37, 100}, {100, 131}, {259, 262}}
	if s.Align > 0 {
		all = append(all, shape{64, 128}, shape{130, 1024})
	}
	return all
}

// tolerance returns that of results of a type.
func (s *Suite) tolerance(d tensor.DType) Tolerance {
	if d == tensor.BF16 {
		return s.BF16
	}
	return s.F32
}
