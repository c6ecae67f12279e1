package stream

import (
	"encoding/binary"
	"math"

	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
)

// collect adds up the scalars that the schedule brought to the host, in fp64: losses of micro-batches by cohort, and
// squares of parts and their pieces in order. The count of NaNs on a device is of this schedule only if it has updated
// there: counted says so by rank.
func (e *Engine) collect(counted []bool) Result {
	host := e.bytes(plan.ResultsPurpose, e.host.HostResults)
	devices := make([][]byte, len(e.ranks))
	for rank := range devices {
		devices[rank] = e.bytes(plan.ResultsPurpose, e.host.DeviceResults[rank])
	}
	float := func(off int64) float64 {
		x := math.Float64frombits(binary.NativeEndian.Uint64(host[off:]))
		for _, dev := range devices {
			x += math.Float64frombits(binary.NativeEndian.Uint64(dev[off:]))
		}
		return x
	}
	var res Result
	cohort := 0.0
	for m := range e.Plan.Numerics.MicroBatches {
		if e.Plan.Numerics.BeginsCohort(m) {
			res.LossSum, cohort = res.LossSum+cohort, 0
		}
		cohort += float(e.Plan.LossAt(m))
	}
	res.LossSum += cohort
	squares := 0.0
	for at := e.Plan.SquaresAt(0); at < e.Plan.LoadsAt(0, 0); at += 8 {
		squares += float(at)
	}
	res.GradNorm = math.Sqrt(squares)
	res.BadWeights = int64(binary.NativeEndian.Uint64(host[e.Plan.BadAt():]))
	for rank, dev := range devices {
		if counted[rank] {
			res.BadWeights += int64(binary.NativeEndian.Uint64(dev[e.Plan.BadAt():]))
		}
	}
	e.loads(&res, host, devices)
	return res
}

// loads reads how often the experts of each block were chosen, and computes the load-balancing loss: nn.Balance has the
// formula.
func (e *Engine) loads(res *Result, host []byte, devices [][]byte) {
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
		// Results are where the host reads them, or come from a device.
		from, rank := host, e.Plan.RankOf(1+block, nn.Forward)
		if !e.ranks[rank].buffers.Results.IsZero() {
			from = devices[rank]
		}
		number := func(i int) (sum float64) {
			for cohort := range e.Plan.Numerics.CohortCount() {
				at := from[e.Plan.LoadsAt(block, cohort)+4*int64(i):]
				sum += float64(math.Float32frombits(binary.NativeEndian.Uint32(at)))
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
		rows += float64(e.Plan.Numerics.StepPositions())
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
