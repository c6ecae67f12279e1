package stream_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/millrace/millrace/plan"
)

// droppable asks TestStepWithoutAWait to drop waits; the test below sets it for a run in a process of its own.
const droppable = "MILLRACE_TEST_DROP_WAITS"

// wait is an entry of After.
type wait struct{ op, index int }

// neededWaits lists the waits between two streams of the device that no other waits imply. Waits for the update lane
// are left out: a lane holds a lock between operations of the host, which can order them by accident, and the store
// panics at what is out of order.
func neededWaits(ops []plan.Op) []wait {
	type reached [plan.Lanes]int // by lane: index plus one of its latest operation that comes before
	before := func(skip wait) []reached {
		all := make([]reached, len(ops))
		var last [plan.Lanes]int
		for i, op := range ops {
			join := func(d int) {
				for l, n := range all[d] {
					all[i][l] = max(all[i][l], n)
				}
				all[i][ops[d].Lane] = max(all[i][ops[d].Lane], d+1)
			}
			if n := last[op.Lane]; n > 0 {
				join(n - 1)
			}
			for j, d := range op.After {
				if (wait{i, j}) != skip {
					join(d)
				}
			}
			last[op.Lane] = i + 1
		}
		return all
	}
	var needed []wait
	for i, op := range ops {
		for j, d := range op.After {
			if op.Lane == plan.LaneUpdate || ops[d].Lane == plan.LaneUpdate {
				continue
			}
			if w := (wait{i, j}); before(w)[i][ops[d].Lane] < d+1 {
				needed = append(needed, w)
			}
		}
	}
	return needed
}

// waitSubject is a small step with every kind of wait.
func waitSubject(t *testing.T) *subject {
	s := least(false)
	s.Layers, s.Micro = 3, 2
	return s.subject(t, 2)
}

// TestStepWithoutAWait runs two steps for each needed wait, without it if the environment says so.
func TestStepWithoutAWait(t *testing.T) {
	drop := os.Getenv(droppable) != ""
	if !drop && (!raceEnabled || testing.Short()) {
		t.Skip("TestMissingWaitsAreFound runs it")
	}
	s := waitSubject(t)
	dev := newCPU(t)
	defer dev.Close()
	ops := newPlan(t, s, dev.Info(), streamed(2)).Schedule(plan.Prologue).Ops
	for _, w := range neededWaits(ops) {
		t.Run(fmt.Sprintf("%d.%d", w.op, w.index), func(t *testing.T) {
			r := start(t, s, setup{change: streamed(2), device: dev})
			defer r.close(t)
			if drop {
				if err := r.engine.DropWait(plan.Prologue, w.op, w.index); err != nil {
					t.Fatal(err)
				}
			}
			train(t, r, s, 1)
		})
	}
}

// The race detector finds a wait that is missing from a schedule: it is what holds the engine to the plan. It misses
// the few that the lanes order by accident: one that has seen a copy end, to give back what it borrowed, tells the
// others of it by the lock that they share.
func TestMissingWaitsAreFound(t *testing.T) {
	if !raceEnabled {
		t.Skip("needs the race detector")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestStepWithoutAWait$", "-test.v")
	cmd.Env = append(os.Environ(), droppable+"=1", "GORACE=suppress_equal_stacks=0 suppress_equal_addresses=0")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatal("steps without their waits pass")
	}
	s := waitSubject(t)
	dev := newCPU(t)
	defer dev.Close()
	ops := newPlan(t, s, dev.Info(), streamed(2)).Schedule(plan.Prologue).Ops
	needed := neededWaits(ops)
	if len(needed) < 20 {
		t.Errorf("only %d waits are needed", len(needed))
	}
	found := 0
	for _, w := range needed {
		if strings.Contains(string(out), fmt.Sprintf("--- FAIL: TestStepWithoutAWait/%d.%d ", w.op, w.index)) {
			found++
			continue
		}
		d := ops[w.op].After[w.index]
		t.Logf("not found: %d %v after %d %v", w.op, ops[w.op], d, ops[d])
	}
	t.Logf("%d of %d dropped waits", found, len(needed))
	if found < len(needed)*4/5 {
		t.Errorf("the race detector finds %d of %d missing waits", found, len(needed))
	}
}
