package plan_test

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/millrace/millrace/plan"
)

var byLength = []plan.AttentionRate{{SequenceLen: 2048, FLOPsPerSec: 100e9}, {SequenceLen: 8192, FLOPsPerSec: 300e9}, {SequenceLen: 32768, FLOPsPerSec: 340e9}}

// Between two lengths the rate is on a line over the logarithm of the length; beyond them, and without a list, it is a constant.
func TestAttentionByLength(t *testing.T) {
	m := machine
	if got := m.AttentionFLOPsPerSecAt(4096); got != machine.AttentionFLOPsPerSec {
		t.Errorf("%v without a list", got)
	}
	m.AttentionByLength = byLength
	for length, want := range map[int]float64{1: 100e9, 2048: 100e9, 4096: 200e9, 8192: 300e9, 16384: 320e9, 32768: 340e9, 1 << 20: 340e9} {
		if got := m.AttentionFLOPsPerSecAt(length); math.Abs(got/want-1) > 1e-12 {
			t.Errorf("%v at a length of %d, want %v", got, length, want)
		}
	}
}

// The simulation takes the rate of the plan's sequences.
func TestSimulationTakesTheRateOfTheLength(t *testing.T) {
	p := newPlan(t, tiny.model(t), numerics(2, true))
	alone := func(m plan.Machine) float64 { return p.Simulate(m, gpu).LaneSeconds[plan.LaneCompute] }
	m, one := machine, machine
	m.AttentionByLength = []plan.AttentionRate{{SequenceLen: 3, FLOPsPerSec: 1e6}, {SequenceLen: 48, FLOPsPerSec: 3e6}}
	one.AttentionFLOPsPerSec = 2e6 // of 12 positions, half-way between 3 and 48
	if got, want := alone(m), alone(one); math.Abs(got/want-1) > 1e-12 || got < 2*alone(machine) {
		t.Errorf("%v s, want %v", got, want)
	}
}

// The file keeps the list, is read without it, and is refused with one that makes no sense.
func TestMachineFileOfLengths(t *testing.T) {
	path := filepath.Join(t.TempDir(), "machine.json")
	m := machine
	m.AttentionByLength = byLength
	if err := plan.WriteMachine(path, m); err != nil {
		t.Fatal(err)
	}
	if got, err := plan.ReadMachine(path); err != nil || !cmp.Equal(got, m) {
		t.Errorf("%v: %s", err, cmp.Diff(m, got))
	}
	if err := plan.WriteMachine(path, machine); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || strings.Contains(string(text), "by_length") {
		t.Errorf("%v: %s", err, text)
	}
	for _, bad := range [][]plan.AttentionRate{{{SequenceLen: 0, FLOPsPerSec: 1}}, {{SequenceLen: 8, FLOPsPerSec: 0}}, {{SequenceLen: 8, FLOPsPerSec: math.NaN()}},
		{{SequenceLen: 8, FLOPsPerSec: 1}, {SequenceLen: 8, FLOPsPerSec: 1}}} {
		m.AttentionByLength = bad
		oneLine(t, m.Check(), "attention_flops_per_sec_by_length")
	}
}
