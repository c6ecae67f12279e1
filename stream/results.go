package stream

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
)

// gather returns the results of this host's schedule: what the host's lane wrote, with what came from the devices. The
// tally of a device is of this schedule only if it has updated there.
func (e *Engine) gather(p *program) []byte {
	all := e.bytes(plan.ResultsPurpose, e.host.Home(plan.HostResults, 0))
	if e.host.Here(plan.Results, 0, 0).IsZero() {
		return all // devices have written there, too
	}
	devices := make([][]byte, len(e.ranks))
	own := tallyOf(all, e.Plan.TallyAt())
	for rank := range devices {
		dev := e.bytes(plan.ResultsPurpose, e.host.Home(plan.Results, rank))
		devices[rank] = dev
		if p.counts[rank] {
			own.add(tallyOf(dev, e.Plan.TallyAt()))
		}
		// Each of these is zero in all but one.
		for at := e.Plan.LossAt(0); at < e.Plan.LoadsAt(0, 0); at += 8 {
			putFloat(all, at, float(all, at)+float(dev, at))
		}
	}
	own.put(all, e.Plan.TallyAt())
	blocks := len(e.Plan.Model.Blocks)
	for block := range blocks {
		first, end := e.Plan.LoadsAt(block, 0), e.Plan.LoadsAt(block+1, 0)
		copy(all[first:end], devices[p.loads[block]][first:end])
	}
	copy(all[e.Plan.LoadsAt(blocks, 0):], devices[p.losses][e.Plan.LoadsAt(blocks, 0):])
	return all
}

// clearResults has all results be zero before a schedule. The second half of a step still needs the choices of experts
// that the first one has gathered in the same memory, and squares of gradients that it does not compute again: those
// that devices have summed in memory of their own are still there.
func (e *Engine) clearResults(half plan.Half) {
	if half != plan.ForUpdates {
		clear(e.regions[plan.ResultsPurpose].Bytes())
		return
	}
	all, at := e.bytes(plan.ResultsPurpose, e.host.Home(plan.HostResults, 0)), int64(0)
	shared := e.host.Here(plan.Results, 0, 0).IsZero()
	for part := range e.Plan.Model.Parts {
		if e.Plan.GradWaits(part) && (shared || e.Plan.SummedOnHost(part)) {
			clear(all[at:e.Plan.SquaresAt(part)])
			at = e.Plan.SquaresAt(part + 1)
		}
	}
	clear(all[at:])
	for rank := range e.ranks {
		if mem := e.host.Home(plan.Results, rank); !mem.IsZero() {
			clear(e.bytes(plan.ResultsPurpose, mem))
		}
	}
}

// exchange hands this host's results to the others, and takes theirs: e.results, by host. It does so again while others
// have none yet (see finish).
func (e *Engine) exchange(own []byte) (err error) {
	for lack := true; lack; {
		if e.results, err = e.Peers.Exchange(own); err != nil {
			return err // which names the host that is lost
		}
		lack = slices.ContainsFunc(e.results, func(of []byte) bool { return len(of) == 0 })
	}
	for host, of := range e.results {
		if len(of) != len(own) {
			return fmt.Errorf("host %d has %d bytes of results, and host %d has %d: they do not run the same program "+
				"on the same run file; give all of them the same", host, len(of), e.Plan.Cluster.Host, len(own))
		}
	}
	return nil
}

func float(results []byte, at int64) float64 {
	return math.Float64frombits(binary.NativeEndian.Uint64(results[at:]))
}

func putFloat(results []byte, at int64, x float64) {
	binary.NativeEndian.PutUint64(results[at:], math.Float64bits(x))
}

// tally has what updates tell: device.OptimizerOps.
type tally struct{ bad, longest uint64 }

func tallyOf(results []byte, at int64) tally {
	return tally{binary.NativeEndian.Uint64(results[at:]), binary.NativeEndian.Uint64(results[at+8:])}
}

func (t *tally) add(o tally) { t.bad, t.longest = t.bad+o.bad, max(t.longest, o.longest) }

func (t *tally) put(results []byte, at int64) {
	binary.NativeEndian.PutUint64(results[at:], t.bad)
	binary.NativeEndian.PutUint64(results[at+8:], t.longest)
}

// collect adds up the scalars of all hosts, of a schedule with an update or nil, in fp64: figures of micro-batches by
// cohort, of a step those that are trained, and squares of parts and their pieces in order, each of which one host has.
func (e *Engine) collect(u *pendingUpdate, steps bool) Result {
	var res Result
	var told tally
	var sums, cohort [device.TokenFigures]float64
	squares := 0.0
	for _, of := range e.results {
		for m := range e.Plan.Numerics.MicroBatches {
			for i := range sums {
				if e.Plan.Numerics.BeginsCohort(m) {
					sums[i], cohort[i] = sums[i]+cohort[i], 0
				}
				if !steps || e.Plan.Numerics.TrainsMicro(m) {
					cohort[i] += float(of, e.Plan.LossAt(m)+8*int64(i))
				}
			}
		}
		told.add(tallyOf(of, e.Plan.TallyAt()))
	}
	for i := range sums {
		sums[i] += cohort[i]
	}
	res.LossSum, res.EntropySum, res.Hits = sums[0], sums[1], sums[2]
	res.BadWeights = int64(told.bad)
	if u != nil { // devices tell of moves in steps, which are rates without the bias of the first moment
		steps := float64(math.Float32frombits(uint32(told.longest)))
		res.LongestMove = steps / (1 - math.Pow(u.AdamW.Beta1, float64(u.Step-u.Idle)))
	}
	res.Squares = make([]float64, len(e.Plan.Model.Parts))
	for part := range res.Squares {
		for at := e.Plan.SquaresAt(part); at < e.Plan.SquaresAt(part+1); at += 8 {
			piece := 0.0
			for _, of := range e.results {
				piece += float(of, at)
			}
			squares += piece
			res.Squares[part] += piece
		}
	}
	res.GradNorm = math.Sqrt(squares)
	e.loads(&res)
	return res
}

// loads reads how often the experts of each block were chosen, and computes the load-balancing loss: nn.Balance has the
// formula.
func (e *Engine) loads(res *Result) {
	var counts, probabilities []float64
	rows := 0.0
	for block, d := range e.Plan.Model.Blocks {
		experts := d.Loads()
		if experts == 0 {
			continue
		}
		if res.Loads == nil {
			res.Loads = make([][]int, len(e.Plan.Model.Blocks))
		}
		number := func(i int) (sum float64) {
			for _, of := range e.results {
				for cohort := range e.Plan.Numerics.CohortCount() {
					at := of[e.Plan.LoadsAt(block, cohort)+4*int64(i):]
					sum += float64(math.Float32frombits(binary.NativeEndian.Uint32(at)))
				}
			}
			return sum
		}
		for i := range experts {
			res.Loads[block] = append(res.Loads[block], int(number(i)))
		}
		if d.Balanced() == 0 {
			continue
		}
		if counts == nil {
			counts, probabilities = make([]float64, experts), make([]float64, experts)
		}
		rows += float64(e.Plan.Whole.StepPositions())
		for i := range experts {
			counts[i] += float64(res.Loads[block][i])
			probabilities[i] += number(experts + i)
		}
	}
	for i := range counts {
		res.AuxLoss += float64(len(counts)) * counts[i] / rows * probabilities[i] / rows
	}
}

// record hands the times of all operations to the trace. They are the stream's own: from when an operation's turn
// came to when it was done, however early it was enqueued.
func (r *execution) record() {
	if r.Trace == nil {
		return
	}
	for i, op := range r.ops {
		w := r.indexOf(&op)
		start := r.at[w].start + r.begin[i].Since(r.workers[w].origin)
		r.Trace.Record(op.Worker, r.names[i], r.stepNo, start, start+r.end[i].Since(r.begin[i]))
	}
}
