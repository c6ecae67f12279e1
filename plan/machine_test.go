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
	for _, bad := range [][]plan.AttentionRate{rates(0, 1), rates(8, 0), rates(8, math.NaN()), rates(8, 1, 8, 1), rates(8, 1, 4, 1)} {
		m.AttentionByLength = bad
		oneLine(t, m.Check(), "attention_flops_per_sec_by_length")
	}
}
