package plan

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/device"
)

// Cuts are the sizes that a step is cut into; 0 is auto. They set bits, so a run records what was chosen (Numerics).
type Cuts struct {
	MicroBatch int // rows of a micro-batch
	HeadChunk  int // positions that the head takes at a time
	BlockChunk int // positions that a block takes at a time
}

// Positions that one operation should see, where memory allows: enough for large products, few enough that activations
// stay near the cores; a GPU needs more of them to hide its launches.
const (
	cpuPositions = 2048
	gpuPositions = 16384
)

// positionsOf is the number of positions that one operation should see on a device.
func positionsOf(dev device.Info) int {
	if dev.Unified {
		return cpuPositions
	}
	return gpuPositions
}

// blockChunk returns the number of positions that blocks treat at once: all of them if one operation on the device can
// take them, else the size of as few equal chunks as the device allows. The chunk follows from shapes, not from
// budgets: a larger one would gain nothing.
func (c Cuts) blockChunk(positions int, dev device.Info) int {
	most := positionsOf(dev)
	switch {
	case c.BlockChunk > 0:
		return min(c.BlockChunk, positions)
	case positions <= most:
		return positions
	}
	n := (positions + most - 1) / most
	return ((positions+n-1)/n + blockChunkTile - 1) / blockChunkTile * blockChunkTile
}

// blockChunkTile divides the rows of a chunk that the planner chooses: tiles of matrix products are that high.
const blockChunkTile = 256

// headChunks are the sizes of the head's chunk that are tried on a device, largest first, or the one that is asked
// for. Each chunk reads the head's weights, and reads and writes its gradient in fp32: with 512 positions a GPU takes
// as long for that as for the products. A CPU's caches hold the weights of a small product, so it gains nothing from
// more than 512.
func (c Cuts) headChunks(dev device.Info) []int {
	if c.HeadChunk > 0 {
		return []int{c.HeadChunk}
	}
	sizes := []int{4096, 2048, 1024, 512, 256, 128, 64}
	if dev.Unified {
		return sizes[3:]
	}
	return sizes
}

// microBatches are the numbers of rows of a micro-batch that are tried, largest first.
func (f *Fitting) microBatches() ([]int, error) {
	rows, sequenceLen, cohorts, dev := f.Rows, f.Numerics.SequenceLen, f.Numerics.CohortCount(), f.Device
	if rows%cohorts != 0 {
		return nil, fmt.Errorf("numerics.groups is %d: it must divide the %d sequences of a step (batch_tokens / "+
			"sequence_len)", cohorts, rows)
	}
	rows /= cohorts
	forward := f.ForwardRows
	if forward < 0 || forward > 0 && forward >= rows {
		return nil, fmt.Errorf("%d of the %d sequences of a group are not trained, which leaves none that are: raise "+
			"batch_tokens, or lower numerics.groups", forward, rows)
	}
	if n := f.Cuts.MicroBatch; n > 0 {
		switch {
		case forward%n != 0 || forward > 0 && rows%n != 0:
			return nil, fmt.Errorf("numerics.micro_batch is %d: it must divide the %d sequences of a group that are trained "+
				"and the %d that are not, since no micro-batch has both; set it to 1, or leave it out", n, rows-forward,
				forward)
		case rows%n != 0 && cohorts > 1:
			return nil, fmt.Errorf("numerics.micro_batch is %d: it must divide the %d sequences of a group "+
				"(batch_tokens / sequence_len / numerics.groups)", n, rows)
		case rows%n != 0:
			return nil, fmt.Errorf("numerics.micro_batch is %d: it must divide the %d sequences of a step (batch_tokens / sequence_len)", n, rows)
		}
		return []int{n}, nil
	}
	var fit []int
	for n := rows; n >= 1; n-- {
		if rows%n == 0 && forward%n == 0 && (n == 1 || n*sequenceLen <= positionsOf(dev)) {
			fit = append(fit, n)
		}
	}
	return fit, nil
}

// Fitting asks for a plan of steps of some rows of Request.Numerics.SequenceLen positions, whatever the cuts.
type Fitting struct {
	Request // its numerics lack MicroBatch, MicroBatches, ForwardOnly, HeadChunk and BlockChunk
	Rows    int
	// ForwardRows are those of each cohort that are not trained, after the others: Numerics.ForwardOnly micro-batches.
	ForwardRows int
	Cuts        Cuts
	// OutputsOf, if given, returns the outputs for each choice of sizes; else they are Request.Outputs.
	OutputsOf func(Numerics) Outputs
}

// leastWorthwhileChunk is the smallest chunk of the head that gets a plan in full when larger ones fit too.
const leastWorthwhileChunk = 512

// sameSpeed is the factor by which a plan with smaller operations must be predicted to be faster: the prediction knows
// the rates of large ones.
const sameSpeed = 0.99

// sized returns the request with all sizes set.
func (f *Fitting) sized(micro, chunk int) Request {
	r := f.Request
	n := &r.Numerics
	n.MicroBatch, n.MicroBatches, n.HeadChunk = micro, f.Rows/micro, min(chunk, micro*n.SequenceLen)
	n.ForwardOnly = f.ForwardRows / micro
	n.BlockChunk = f.Cuts.blockChunk(n.Positions(), r.Device)
	if f.OutputsOf != nil {
		r.Outputs = f.OutputsOf(*n)
	}
	return r
}

// Fit plans with the sizes of the fastest estimate. Of equally fast estimates it takes the one with the larger
// operations. It ends soon after the context does, with the context's error; any other error says in one line why
// nothing fits, and which number to change.
func (f Fitting) Fit(ctx context.Context) (*Plan, error) {
	micros, err := f.microBatches()
	if err != nil {
		return nil, err
	}
	chunks := f.Cuts.headChunks(f.Device)
	var best *Plan
	estimate := func(micro, chunk int) (fits bool) {
		p, estimateErr := f.sized(micro, chunk).choose(ctx, false, worthwhile(best))
		if estimateErr != nil {
			err = estimateErr
			return false
		}
		if best == nil || better(p, best) {
			best = p
		}
		return true
	}
	last := f.sized(micros[len(micros)-1], chunks[len(chunks)-1]) // the smallest
	// Smaller sizes take less memory, except logits in host memory, which are of each micro-batch.
	shrinks := last.Outputs.LogitRows == 0 || last.Outputs.Continues()
	nothing := false // fits
	for i, micro := range micros {
		for j, chunk := range chunks {
			if nothing || estimate(micro, chunk) {
				break
			}
			if shrinks && i+j == 0 { // not the largest sizes; and the smallest?
				if least := last.Fits(ctx); least != nil {
					err, nothing = least, true
				}
			}
		}
	}
	if best != nil {
		micro := best.Numerics.MicroBatch
		for _, chunk := range chunks {
			if chunk < best.Numerics.HeadChunk {
				estimate(micro, chunk)
			}
		}
	}
	if best == nil && ctx.Err() == nil {
		err = last.SuggestFixes(ctx, err) // of the smallest sizes
	}
	if ended := ctx.Err(); ended != nil {
		return nil, ended
	}
	if best == nil {
		return nil, err
	}
	p, err := New(ctx, f.sized(best.Numerics.MicroBatch, best.Numerics.HeadChunk))
	if err != nil {
		return nil, err
	}
	// The memory of a large chunk may serve better elsewhere, which estimates do not see: plan smaller chunks while they
	// gain.
	for _, chunk := range chunks {
		if chunk >= p.Numerics.HeadChunk || chunk < leastWorthwhileChunk {
			continue
		}
		q, err := f.sized(p.Numerics.MicroBatch, chunk).choose(ctx, true, worthwhile(p))
		if err != nil || !better(q, p) {
			break
		}
		p = q
	}
	if p.Placement.Rings.Weights == 1 && best.Placement.Rings.Weights > 1 { // memory went elsewhere
		r := f.sized(p.Numerics.MicroBatch, p.Numerics.HeadChunk)
		r.Overlap = true
		if q, err := r.choose(ctx, true, worthwhile(p)); err == nil && better(q, p) {
			return q, nil
		}
	}
	return p, ctx.Err()
}

// smallest returns the request with the smallest sizes.
func (f *Fitting) smallest() (Request, error) {
	micros, err := f.microBatches()
	if err != nil {
		return Request{}, err
	}
	chunks := f.Cuts.headChunks(f.Device)
	return f.sized(micros[len(micros)-1], chunks[len(chunks)-1]), nil
}

// Fits says in one line why nothing fits, if nothing does. It simulates nothing.
func (f Fitting) Fits(ctx context.Context) error {
	r, err := f.smallest()
	if err != nil {
		return err
	}
	return r.Fits(ctx)
}

// Check is Fits, and says which number to change.
func (f Fitting) Check(ctx context.Context) error {
	r, err := f.smallest()
	if err != nil {
		return err
	}
	if err = r.Fits(ctx); err == nil || ctx.Err() != nil {
		return err
	}
	return r.SuggestFixes(ctx, err)
}

// FitForward plans forward passes over any number of rows: micro-batches as large as the device likes and the rows
// allow, one at a time.
func (f Fitting) FitForward(ctx context.Context) (p *Plan, err error) {
	for micro := min(f.Rows, max(1, positionsOf(f.Device)/f.Numerics.SequenceLen)); micro >= 1; micro /= 2 {
		one := f
		one.Rows, one.ForwardRows, one.Cuts = micro, 0, Cuts{MicroBatch: micro}
		if p, err = one.Fit(ctx); err == nil || ctx.Err() != nil {
			return p, err
		}
	}
	return nil, err
}

// better reports whether a plan with smaller operations is worth it: because it is faster or, if it is as fast by rates
// that may be guesses, because weights travel during the computation instead of between visits.
func better(p, best *Plan) bool {
	if p.Placement.Rings.Weights > 1 && best.Placement.Rings.Weights == 1 {
		return sameSpeed*p.Predicted.StepSeconds < best.Predicted.StepSeconds
	}
	return p.Predicted.StepSeconds < sameSpeed*best.Predicted.StepSeconds
}

// worthwhile is the longest step, in seconds, with which a plan may be better than another one; 0 where that is nil.
func worthwhile(best *Plan) float64 {
	switch {
	case best == nil:
		return 0
	case best.Placement.Rings.Weights == 1:
		return best.Predicted.StepSeconds / sameSpeed
	}
	return sameSpeed * best.Predicted.StepSeconds
}
