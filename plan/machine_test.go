package plan_test

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
)

// rates are pairs of a length and a rate.
func rates(pairs ...float64) (list []plan.AttentionRate) {
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, plan.AttentionRate{SequenceLen: int(pairs[i]), FLOPsPerSec: pairs[i+1]})
	}
	return list
}

var byLength = rates(2048, 100e9, 8192, 300e9, 32768, 340e9)

// Between two lengths the rate is on a line over the logarithm of the length; beyond them, and without a list, it is a constant.
func TestAttentionByLength(t *testing.T) {
	m := machine
	if got := m.AttentionFLOPsPerSecAt(tensor.BF16, 4096); got != machine.AttentionFLOPsPerSec {
		t.Errorf("%v without a list", got)
	}
	m.AttentionByLength = byLength
	for length, want := range map[int]float64{1: 100e9, 2048: 100e9, 4096: 200e9, 8192: 300e9, 16384: 320e9, 32768: 340e9, 1 << 20: 340e9} {
		if got := m.AttentionFLOPsPerSecAt(tensor.BF16, length); math.Abs(got/want-1) > 1e-12 {
			t.Errorf("%v at a length of %d, want %v", got, length, want)
		}
	}
}

// fp32 has rates of its own where they are known, and those of bf16 where they are not: in files of older probes.
func TestRatesOfTypes(t *testing.T) {
	m := machine
	m.AttentionByLength = byLength
	if got := m.AttentionFLOPsPerSecAt(tensor.F32, 4096); got != 200e9 {
		t.Errorf("attention in fp32 without a rate of its own: %v", got)
	}
	if got := m.ElementBytesPerSec(tensor.F32); got != m.DeviceBytesPerSec {
		t.Errorf("operations in fp32 without a rate of their own: %v", got)
	}
	m.F32AttentionFLOPsPerSec, m.F32DeviceBytesPerSec = 60e9, 7e9
	if got := m.AttentionFLOPsPerSecAt(tensor.F32, 4096); got != 60e9 {
		t.Errorf("attention in fp32, with one rate: %v", got)
	}
	m.F32AttentionByLength = rates(2048, 50e9, 8192, 150e9)
	for dtype, want := range map[tensor.DType]float64{tensor.F32: 100e9, tensor.BF16: 200e9} {
		if got := m.AttentionFLOPsPerSecAt(dtype, 4096); math.Abs(got/want-1) > 1e-12 {
			t.Errorf("attention in %v: %v, want %v", dtype, got, want)
		}
	}
	f32, bf16 := m.ElementBytesPerSec(tensor.F32), m.ElementBytesPerSec(tensor.BF16)
	if f32 != 7e9 || bf16 != m.DeviceBytesPerSec {
		t.Errorf("operations: %v in fp32, %v in bf16", f32, bf16)
	}

	p := newPlan(t, tiny.model(t), numerics(2, true))
	p.Numerics.Compute = tensor.F32
	alone := func(m plan.Machine) float64 { return p.Simulate(m, gpu).LaneSeconds[plan.LaneCompute] }
	slow := machine
	slow.F32AttentionFLOPsPerSec = machine.AttentionFLOPsPerSec / 1e5
	if got, want := alone(slow), alone(machine); got < 2*want {
		t.Errorf("a step in fp32 with slow attention takes %v s, with fast %v", got, want)
	}
	slow = machine
	slow.F32DeviceBytesPerSec = machine.DeviceBytesPerSec / 1e5
	if got, want := alone(slow), alone(machine); got < 2*want {
		t.Errorf("a step in fp32 with slow operations takes %v s, with fast %v", got, want)
	}
}

func TestFasterType(t *testing.T) {
	for _, c := range []struct {
		f32, bf16, attentionF32, attentionBF16 float64
		want                                   tensor.DType
		products, attention                    float64
		ok                                     bool
	}{
		{100, 200, 80, 120, tensor.BF16, 2, 1.5, true},
		{300, 150, 160, 100, tensor.F32, 2, 1.6, true},
		{100, 104, 80, 120, tensor.BF16, 1.04, 1.5, false},
		{100, 200, 0, 120, tensor.BF16, 2, math.Inf(1), false}, // an old file
	} {
		m := plan.Machine{F32FLOPsPerSec: c.f32, BF16FLOPsPerSec: c.bf16, F32AttentionFLOPsPerSec: c.attentionF32,
			AttentionFLOPsPerSec: c.attentionBF16}
		got, products, attention, ok := m.FasterType()
		if got != c.want || products != c.products || attention != c.attention || ok != c.ok {
			t.Errorf("%+v: %v, %v, %v, %v", c, got, products, attention, ok)
		}
	}
}

// The simulation takes the rate of the plan's sequences.
func TestSimulationTakesTheRateOfTheLength(t *testing.T) {
	p := newPlan(t, tiny.model(t), numerics(2, true))
	alone := func(m plan.Machine) float64 { return p.Simulate(m, gpu).LaneSeconds[plan.LaneCompute] }
	m, one := machine, machine
	m.AttentionByLength = rates(3, 1e6, 48, 3e6)
	one.AttentionFLOPsPerSec = 2e6 // of 12 positions, half-way between 3 and 48
	if got, want := alone(m), alone(one); math.Abs(got/want-1) > 1e-12 || got < 2*alone(machine) {
		t.Errorf("%v s, want %v", got, want)
	}
}

// The file keeps the list, is read without it, and is refused with one that makes no sense.
func TestMachineFileOfLengths(t *testing.T) {
	path := filepath.Join(t.TempDir(), "machine.json")
	m := machine
	m.AttentionByLength, m.F32AttentionByLength = byLength, rates(2048, 50e9)
	m.F32AttentionFLOPsPerSec, m.F32DeviceBytesPerSec = 50e9, 7e9
	if err := plan.WriteMachine(path, m); err != nil {
		t.Fatal(err)
	}
	if got, err := plan.ReadMachine(path); err != nil || !cmp.Equal(got, m) {
		t.Errorf("%v: %s", err, cmp.Diff(m, got))
	}
	if err := plan.WriteMachine(path, machine); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(text), "by_length") || strings.Contains(string(text), "f32_a") {
		t.Errorf("%v: %s", err, text)
	}
	for _, bad := range [][]plan.AttentionRate{rates(0, 1), rates(8, 0), rates(8, math.NaN()), rates(8, 1, 8, 1), rates(8, 1, 4, 1)} {
		one := machine
		one.AttentionByLength = bad
		oneLine(t, one.Check(), " attention_flops_per_sec_by_length")
		one.AttentionByLength, one.F32AttentionByLength = nil, bad
		oneLine(t, one.Check(), "f32_attention_flops_per_sec_by_length")
	}
}

// Updates of masters of 24 bits move fewer bytes, at a rate that arithmetic bounds: a share of that with moments in 8
// bits.
func TestSimulationTakesTheRateOfTheMaster(t *testing.T) {
	fast, slow := machine, machine
	fast.AdamW8BytesPerSec, slow.AdamW8BytesPerSec = machine.AdamWBytesPerSec, machine.AdamWBytesPerSec/5
	for moments, want := range map[optim.Moments][2]float64{
		optim.MomentsF32: {24. / 26, 24. / 26 / 0.4},
		optim.Dynamic8:   {12.0625 / 14.0625 / 0.82, 12.0625 / 14.0625 / 0.82},
	} {
		for i, m := range []plan.Machine{fast, slow} {
			n := numerics(2, true)
			n.Moments = moments
			updates := func(master optim.Master) float64 {
				n.Master = master
				return newPlan(t, tiny.model(t), n).Simulate(m, gpu).LaneSeconds[plan.LaneUpdate]
			}
			got := updates(optim.Split24) / updates(optim.Split)
			t.Logf("%v, machine %d: %.3f times as long, of the updates alone %.3f", moments, i, got, want[i])
			if math.Abs(got/want[i]-1) > 0.05 {
				t.Errorf("%v, machine %d: %.3f times as long, want about %.3f", moments, i, got, want[i])
			}
		}
	}
}

// Updates with moments in 8 bits have the rate that was measured for them, or a share of that of other updates.
func TestSimulationTakesTheRateOfTheMoments(t *testing.T) {
	apart := machine
	apart.AdamW8BytesPerSec = machine.AdamWBytesPerSec / 4
	for moments, slower := range map[optim.Moments]bool{optim.MomentsF32: false, optim.Dynamic8: true,
		optim.Dynamic8Root4: true} {
		n := numerics(2, true)
		n.Moments = moments
		p := newPlan(t, tiny.model(t), n)
		updates := func(m plan.Machine) float64 { return p.Simulate(m, gpu).LaneSeconds[plan.LaneUpdate] }
		assumed := machine
		assumed.AdamW8BytesPerSec = 0.35 * machine.AdamWBytesPerSec
		one, other := updates(machine), updates(apart)
		if (other > 1.3*one) != slower || !slower && other != one || updates(assumed) != one {
			t.Errorf("%v: %v s, and %v s where updates in 8 bits have a rate of their own", moments, one, other)
		}
	}
}
