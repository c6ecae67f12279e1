package plan_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
)

// hostPlans are the plans of all hosts of a cluster.
func hostPlans(t errorer, m *model.Model, n plan.Numerics, hosts int) (all []*plan.Plan) {
	t.Helper()
	for h := range hosts {
		p, err := plan.New(context.Background(), plan.Request{Model: m, Numerics: n, Machine: machine,
			Cluster: plan.Cluster{Host: h, Hosts: hosts}, Device: device.Info{Name: "test", Unified: true}})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

// Whatever the model, and whatever the placement of each host: the hosts of a cluster come to the end of their
// schedules, each total has the sums of all groups in their order, and all compute with the weights as updated.
func TestSchedulesOfHostsAreSound(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := drawModel(rt)
		n := numerics(rapid.IntRange(1, 2).Draw(rt, "micro-batches"), rapid.Bool().Draw(rt, "split"))
		hosts := rapid.IntRange(2, 4).Draw(rt, "hosts")
		n.Cohorts = hosts * rapid.IntRange(1, 2).Draw(rt, "groups of each")
		n.MicroBatches *= n.Cohorts
		n.Exchange = drawExchange(rt)
		plans := hostPlans(rt, m, n, hosts)
		noClip := rapid.Bool().Draw(rt, "not clipped")
		drawForwardOnly(rt, plans...)
		for h := range plans {
			plans[h].Outputs.NoClip = noClip
			plans[h] = plans[h].With(drawPlacement(rt, m, true))
		}
		for _, pass := range append(usualPasses, plan.Nothing) {
			for _, saves := range []bool{false, true} {
				mode := plan.Mode{Pass: pass, Saves: saves}
				mode.Loaded = pass == plan.Steady || pass == plan.Flush || rapid.Bool().Draw(rt, "loaded")
				schedules := schedulesOf(plans, mode)
				for _, err := range append(checkHosts(plans, mode, schedules), checkLanes(plans, schedules)...) {
					rt.Errorf("%+v: %s", mode, err)
				}
				if rt.Failed() {
					for h, s := range schedules {
						rt.Logf("host %d\n%s", h, s)
					}
					rt.Fatalf("%+v", mode)
				}
			}
		}
	})
}

func schedulesOf(plans []*plan.Plan, mode plan.Mode) (all []*plan.Schedule) {
	for _, p := range plans {
		all = append(all, p.ScheduleOf(mode))
	}
	return all
}

// The checker finds a wait that is missing, a message that is, messages in two orders, and sums that are added in
// another order.
func TestCheckerOfHostsFindsErrors(t *testing.T) {
	shape := tiny
	shape.Tied = true
	m := shape.model(t)
	n := numerics(4, true)
	n.Cohorts = 4
	plans := hostPlans(t, m, n, 2)
	for h := range plans {
		plans[h] = plans[h].With(moving(m, 2))
	}
	mode := plan.Mode{Pass: plan.Steady, Loaded: true}
	good := schedulesOf(plans, mode)
	ops := good[0].Ops
	// changed returns the errors that the checker finds after a change of the schedule of host 0.
	changed := func(change func(ops []plan.Op) []plan.Op) string {
		bad := slices.Clone(good)
		bad[0] = &plan.Schedule{Ops: change(slices.Clone(ops))}
		return strings.Join(checkHosts(plans, mode, bad), "\n")
	}
	isMessage := func(op plan.Op) bool { return op.Do == plan.DoSend || op.Do == plan.DoReceive }
	waits, found := 0, 0
	for i, op := range ops {
		if !isMessage(op) && op.Do != plan.DoTotal {
			continue
		}
		for j := range op.After {
			waits++
			if changed(func(ops []plan.Op) []plan.Op {
				ops[i].After = slices.Delete(slices.Clone(op.After), j, j+1)
				return ops
			}) != "" {
				found++
			}
		}
	}
	t.Logf("%d of %d waits are needed", found, waits)
	if found < waits*2/3 {
		t.Errorf("of %d waits, the checker misses only %d", waits, found)
	}

	is := func(do plan.Do) func(plan.Op) bool { return func(op plan.Op) bool { return op.Do == do } }
	first := func(of func(plan.Op) bool) int { return slices.IndexFunc(ops, of) }
	crossing := first(func(op plan.Op) bool { return isMessage(op) && op.Name() == "receive-weights" }) // after a send
	total := first(is(plan.DoTotal))
	for name, c := range map[string]struct {
		want   string
		change func([]plan.Op) []plan.Op
	}{
		"no change": {"", func(ops []plan.Op) []plan.Op { return ops }},
		"a message less": {"waits forever", func(ops []plan.Op) []plan.Op {
			for i := range slices.Backward(ops) {
				if isMessage(ops[i]) {
					return ops[:i]
				}
			}
			return ops
		}},
		"a message of another part": {"gets", func(ops []plan.Op) []plan.Op {
			send := first(func(op plan.Op) bool { return op.Name() == "send-weights" })
			ops[send].Part++
			return ops
		}},
		"messages in another order": {"waits forever", func(ops []plan.Op) []plan.Op {
			for i := crossing - 1; i >= 0; i-- {
				if isMessage(ops[i]) {
					ops[i], ops[crossing] = ops[crossing], ops[i]
					break
				}
			}
			return ops
		}},
		"sums in another order": {"holds", func(ops []plan.Op) []plan.Op {
			for i := total + 1; ; i++ {
				if ops[i].Do == plan.DoTotal && ops[i].Part == ops[total].Part {
					ops[i].Reads, ops[total].Reads = ops[total].Reads, ops[i].Reads
					return ops
				}
			}
		}},
	} {
		if got := changed(c.change); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: the checker says %q", name, got)
		}
	}
}
