package plan_test

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/plan"
)

// cohortSum is the sum of a cohort of the step in host memory.
func cohortSum(part, cohort int) content { return content{"sum of cohort", part, cohort} }

// sumAt is the slot that has such a sum.
func sumAt(o plan.Operand) place { return place{"sum", o.Slot, 0} }

// drainSum takes the sum of one of the host's cohorts from the device.
func (c *checker) drainSum(i int, op plan.Op) {
	to, from := op.Writes[0], c.gradAt(op, op.Part)
	if c.p.Numerics.NarrowSums() {
		from = narrowed
	}
	c.read(i, from, c.exchanged(op.Part, c.local(to)))
	c.write(i, sumAt(to), cohortSum(op.Part, to.Cohort))
}

// narrowed returns the place of a cohort's sum in bf16 on a device.
var narrowed = place{"narrowed", 0, 0}

// exchanged is the sum of one of the host's cohorts, rounded to bf16 if it is to be.
func (c *checker) exchanged(part, cohort int) content {
	sum := c.wholeOf(part, cohort)
	if c.p.Numerics.NarrowSums() {
		sum.what = fmt.Sprintf("gradient in cohort %d, rounded", cohort)
	}
	return sum
}

// narrow rounds the sum of a cohort: with several hosts that which the visits before have made, in any slot.
func (c *checker) narrow(i int, op plan.Op) {
	cohort := cohortOf(op)
	if c.p.Cluster.Several() {
		cohort = c.cleared[op.Part] - 1
	}
	c.read(i, c.gradAt(op, op.Part), c.wholeOf(op.Part, cohort))
	c.write(i, narrowed, c.exchanged(op.Part, cohort))
	if back := len(op.Writes) > 1; back == c.p.Cluster.Several() {
		c.errorf(i, "widens the sum, or does not, wrongly")
	} else if back {
		c.write(i, c.gradAt(op, op.Part), c.exchanged(op.Part, cohort))
	}
}

// local is the number on the host of a sum's cohort.
func (c *checker) local(sum plan.Operand) int {
	return sum.Cohort - c.p.Cluster.Host*c.p.Numerics.CohortCount()
}

// scatterSum makes the sum of a cohort of a tile that was looked up.
func (c *checker) scatterSum(i int, op plan.Op) {
	to := op.Writes[0]
	cohort := c.local(to)
	for m := cohort * c.p.Numerics.CohortMicros(); m < c.endOf(cohort); m++ {
		c.readLookedUp(i, op, m)
	}
	if c.p.Tied(op.Part) {
		c.read(i, place{"embedding sum", op.Part, cohort}, c.wholeOf(op.Part, cohort))
	}
	if c.p.Numerics.NarrowSums() { // it is made where totals are
		c.write(i, place{"total", 0, 0}, content{"scratch", 0, 0})
	}
	c.write(i, sumAt(to), cohortSum(op.Part, to.Cohort))
}

// network executes the operations that only several hosts have.
func (c *checker) network(i int, op plan.Op) bool {
	weights := place{"host weights", op.Part, 0}
	switch op.Name() {
	case "send-sum":
		sum := op.Reads[0]
		c.read(i, sumAt(sum), cohortSum(op.Part, sum.Cohort))
		if op.Host != c.p.Owner(op.Part) {
			c.errorf(i, "goes to a host that does not own the part")
		}
	case "receive-sum":
		if sum := op.Writes[0]; c.arrives != cohortSum(op.Part, sum.Cohort) {
			c.errorf(i, "gets %v", c.arrives)
		}
		c.write(i, sumAt(op.Writes[0]), c.arrives)
	case "send-balance":
		for _, layer := range c.balanced() {
			c.read(i, place{"host balance", layer, op.Reads[0].Cohort}, choices(layer, op.Reads[0].Cohort))
		}
	case "receive-balance":
		cohort := op.Writes[0].Cohort
		if c.arrives != choices(0, cohort) {
			c.errorf(i, "gets %v", c.arrives)
		}
		for _, layer := range c.balanced() {
			c.write(i, place{"host balance", layer, cohort}, choices(layer, cohort))
		}
	case "send-weights":
		c.read(i, weights, fresh(op.Part))
	case "receive-weights":
		if c.arrives != fresh(op.Part) {
			c.errorf(i, "gets %v", c.arrives)
		}
		c.write(i, weights, c.arrives)
	case "total":
		sum, total := op.Reads[0], place{"total", 0, 0}
		c.read(i, sumAt(sum), cohortSum(op.Part, sum.Cohort))
		c.write(i, sumAt(sum), content{"scratch", 0, 0})
		if op.First != (sum.Cohort == 0) {
			c.errorf(i, "overwrites or adds, wrongly")
		}
		if sum.Cohort > 0 {
			c.read(i, total, content{"total", op.Part, sum.Cohort})
		}
		c.write(i, total, content{"total", op.Part, sum.Cohort + 1})
		last := sum.Cohort+1 == c.p.Whole.CohortCount()
		if rounds := len(op.Writes) > 1 && op.Writes[1].What == plan.Rounded; rounds != last {
			c.errorf(i, "rounds, or does not, wrongly")
		}
		if last {
			c.write(i, c.hostGradient(op.Part), content{"new gradient", op.Part, 0})
			c.homes[op.Part]++
		}
	default:
		return false
	}
	return true
}

// sends returns the content of a message.
func (c *checker) sends(op plan.Op) content {
	switch o := op.Reads[0]; o.What {
	case plan.CohortSum:
		return c.mem[sumAt(o)]
	case plan.Balance:
		return choices(0, o.Cohort) // of all layers
	}
	return c.mem[place{"host weights", op.Part, 0}]
}

// meet reports whether an operation of host `from` sends what one of host `to` waits for.
func meet(from, to int, a, b *plan.Op) bool {
	return a.Do == plan.DoSend && b.Do == plan.DoReceive && a.Host == to && b.Host == from
}

// checkHosts returns what is wrong with the schedules of all hosts of a cluster. Each host walks its list from the
// first operation to the last, and one that sends waits until the other one receives.
func checkHosts(plans []*plan.Plan, mode plan.Mode, schedules []*plan.Schedule) (errs []string) {
	hosts := make([]*checker, len(plans))
	for h, p := range plans {
		hosts[h] = newChecker(p, mode, schedules[h])
	}
	at := make([]int, len(hosts)) // by host: its next operation
	next := func(h int) *plan.Op {
		if at[h] == len(hosts[h].ops) {
			return &plan.Op{Do: plan.DoMove}
		}
		return &hosts[h].ops[at[h]]
	}
	for moved := true; moved; {
		moved = false
		for h, c := range hosts {
			for at[h] < len(c.ops) && next(h).Do != plan.DoSend && next(h).Do != plan.DoReceive {
				c.step(at[h])
				at[h]++
				moved = true
			}
			op := next(h)
			if op.Do != plan.DoSend || !meet(h, op.Host, op, next(op.Host)) {
				continue
			}
			to := op.Host
			hosts[to].arrives = c.sends(*op)
			c.step(at[h])
			hosts[to].step(at[to])
			at[h], at[to], moved = at[h]+1, at[to]+1, true
		}
	}
	for h, c := range hosts {
		if at[h] < len(c.ops) {
			errs = append(errs, fmt.Sprintf("host %d waits forever at %d %v", h, at[h], c.ops[at[h]]))
			continue
		}
		if c.updating() {
			for part := range c.m.Parts {
				if got := c.mem[place{"host weights", part, 0}]; got != fresh(part) {
					c.errs = append(c.errs, fmt.Sprintf("part %d ends as %v", part, got))
				}
			}
		}
		for _, err := range c.end() {
			errs = append(errs, fmt.Sprintf("host %d: %s", h, err))
		}
	}
	return errs
}

// checkLanes walks the lanes of all hosts, each of which begins its next operation when those that it waits for are
// done, and returns the operations at which lanes wait forever. None takes from another what it needs, so that there is
// one end, whichever lane goes first.
func checkLanes(plans []*plan.Plan, schedules []*plan.Schedule) (errs []string) {
	type lanes struct {
		queues [][]int // of operations, by worker
		done   []bool
	}
	hosts := make([]lanes, len(plans))
	lane := func(h int, of plan.Worker) int { return plans[h].Crew().Index(of) }
	for h, p := range plans {
		ops := schedules[h].Ops
		hosts[h] = lanes{make([][]int, len(p.Workers())), make([]bool, len(ops))}
		for i := range ops {
			w := lane(h, ops[i].Worker)
			hosts[h].queues[w] = append(hosts[h].queues[w], i)
		}
	}
	ready := func(h, w int) (*plan.Op, bool) {
		if len(hosts[h].queues[w]) == 0 {
			return nil, false
		}
		op := &schedules[h].Ops[hosts[h].queues[w][0]]
		return op, !slices.ContainsFunc(op.After, func(i int) bool { return !hosts[h].done[i] })
	}
	finish := func(h, w int) {
		of := &hosts[h]
		of.done[of.queues[w][0]], of.queues[w] = true, of.queues[w][1:]
	}
	for moved := true; moved; {
		moved = false
		for h := range hosts {
			for w := range hosts[h].queues {
				op, ok := ready(h, w)
				switch {
				case !ok || op.Do == plan.DoReceive:
					continue
				case op.Do == plan.DoSend:
					receiver := lane(op.Host, plan.LaneReceive.Of(0))
					other, ok := ready(op.Host, receiver)
					if !ok || !meet(h, op.Host, op, other) {
						continue
					}
					a, b := op.Reads[0], other.Writes[0]
					if a.What != b.What || a.Index != b.Index || a.Cohort != b.Cohort {
						errs = append(errs, fmt.Sprintf("%v of host %d meets %v of host %d", op, h, other, op.Host))
					}
					finish(op.Host, receiver)
				}
				finish(h, w)
				moved = true
			}
		}
	}
	for h := range hosts {
		for _, queue := range hosts[h].queues {
			if len(queue) > 0 {
				errs = append(errs, fmt.Sprintf("host %d waits forever at %v", h, schedules[h].Ops[queue[0]]))
			}
		}
	}
	return errs
}
