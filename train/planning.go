package train

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
)

// Positions that one operation should see, where memory allows: enough for large products, few enough that activations
// stay near the cores; a GPU needs more of them to hide its launches.
const (
	cpuPositions = 2048
	gpuPositions = 16384
)

// positionsOf is how many positions one operation should see on a device.
func positionsOf(dev device.Info) int {
	if dev.Unified {
		return cpuPositions
	}
	return gpuPositions
}

// sizesOf are the sizes of a plan as a configuration has them, none of them auto.
func sizesOf(n plan.Numerics) Sizes {
	return Sizes{MicroBatch: Auto(n.MicroBatch), HeadChunk: Auto(n.HeadChunk), BlockChunk: Auto(n.BlockRows())}
}

// blockChunk is the chunk in which blocks take micro-batches of so many positions: all of them where one operation should see
// no more on the device, else as few equal chunks as that allows. It follows from shapes, not from budgets: a chunk as
// large as that has nothing to gain from being larger.
func blockChunk(sizes Sizes, positions int, dev device.Info) int {
	most := positionsOf(dev)
	switch {
	case sizes.BlockChunk > 0:
		return min(int(sizes.BlockChunk), positions)
	case positions <= most:
		return positions
	}
	n := (positions + most - 1) / most
	return ((positions+n-1)/n + blockChunkMultiple - 1) / blockChunkMultiple * blockChunkMultiple
}

// blockChunkMultiple is what the rows of a chunk are a multiple of: tiles of matrix products.
const blockChunkMultiple = 256

// headChunks are the sizes of the head's chunk that are tried on a device, largest first. Each chunk reads the head's weights, and
// reads and writes its gradient in fp32: with 512 positions a GPU takes as long for that as for the products. A CPU's
// caches hold the weights of a small product, so it gains nothing from more than 512.
func headChunks(dev device.Info) []int {
	sizes := []int{4096, 2048, 1024, 512, 256, 128, 64}
	if dev.Unified {
		return sizes[3:]
	}
	return sizes
}

// headChunksOf are those that are tried, or the one that is asked for.
func headChunksOf(sizes Sizes, dev device.Info) []int {
	if sizes.HeadChunk > 0 {
		return []int{int(sizes.HeadChunk)}
	}
	return headChunks(dev)
}

// makePlan plans a run of a model with weights of a type, of so many steps if that is known. Sizes that are auto become the largest that fit.
func (e *Env) makePlan(ctx context.Context, c *Config, m *model.Model, weights tensor.DType, steps int, dev device.Info) (*plan.Plan, error) {
	n, err := c.types()
	if err != nil {
		return nil, err
	}
	n.SequenceLen = c.SequenceLen
	mem := c.memory()
	if sameDrive(mem.Path, c.OutputDir) {
		if mem.kept, err = e.spaceToLeave(c, m, n); err != nil {
			return nil, err
		}
	}
	p, err := e.fitPlan(ctx, m, n, c.BatchTokens/c.SequenceLen, c.Numerics, dev, mem, func(plan.Numerics) plan.Wants { return c.wants() })
	if err != nil {
		return nil, err
	}
	p.Space = c.space(p, weights, steps)
	if free, err := freeBytes(e.files(), c.OutputDir); err == nil {
		p.Space.FreeBytes = &free
	}
	return p, nil
}

// wants is what the run wants of its plan.
func (c *Config) wants() plan.Wants { return plan.Wants{NoClip: c.MaxGradNorm == 0} }

// fitPlan plans steps of so many rows of n.SequenceLen positions. wants, if given, is asked for each choice of sizes.
func (e *Env) fitPlan(ctx context.Context, m *model.Model, n plan.Numerics, rows int, sizes Sizes, dev device.Info, mem Memory,
	wants func(plan.Numerics) plan.Wants) (*plan.Plan, error) {
	r, err := e.request(m, n, dev, mem)
	if err != nil {
		return nil, err
	}
	return fitRequest(ctx, r, rows, sizes, wants)
}

// leastWorthwhileChunk is the smallest chunk of the head that is planned in full beside larger ones that fit.
const leastWorthwhileChunk = 512

// sameSpeed is how much faster a plan with smaller operations must be predicted to be: the prediction knows the rates of
// large ones.
const sameSpeed = 0.99

// fitRequest completes a request with the sizes of the fastest sketch, and plans that. Of sketches that are as fast, that
// with the larger operations is taken. It ends soon after the context does, with the context's error.
func fitRequest(ctx context.Context, r plan.Request, rows int, sizes Sizes, wants func(plan.Numerics) plan.Wants) (*plan.Plan, error) {
	micros, err := microBatches(sizes, rows, r.Numerics.SequenceLen, r.Device)
	if err != nil {
		return nil, err
	}
	chunks := headChunksOf(sizes, r.Device)
	complete := func(micro, chunk int) plan.Request {
		r = sized(r, rows, sizes, wants, micro, chunk)
		return r
	}
	var best *plan.Plan
	sketch := func(micro, chunk int) (fits bool) {
		p, sketchErr := plan.Sketch(ctx, complete(micro, chunk))
		if sketchErr != nil {
			err = sketchErr
			return false
		}
		if best == nil || better(p, best) {
			best = p
		}
		return true
	}
	for _, micro := range micros {
		for _, chunk := range chunks {
			if sketch(micro, chunk) {
				break
			}
		}
	}
	if best != nil {
		micro := best.Numerics.MicroBatch
		for _, chunk := range chunks {
			if chunk < best.Numerics.HeadChunk {
				sketch(micro, chunk)
			}
		}
	}
	if best == nil && ctx.Err() == nil {
		err = r.Mend(ctx, err) // of the smallest sizes
	}
	if ended := ctx.Err(); ended != nil {
		return nil, ended
	}
	if best == nil {
		return nil, Request(err)
	}
	r = complete(best.Numerics.MicroBatch, best.Numerics.HeadChunk)
	p, err := plan.New(ctx, r)
	if ended := ctx.Err(); ended != nil {
		return nil, ended
	}
	if err != nil {
		return nil, Request(err)
	}
	// What a large chunk takes may serve better elsewhere, which sketches do not see: smaller ones are planned while that gains.
	for _, chunk := range chunks {
		if chunk >= p.Numerics.HeadChunk || chunk < leastWorthwhileChunk {
			continue
		}
		q, err := plan.New(ctx, complete(p.Numerics.MicroBatch, chunk))
		if err != nil || !better(q, p) {
			break
		}
		p = q
	}
	r = complete(p.Numerics.MicroBatch, p.Numerics.HeadChunk)
	if p.Placement.Rings.Weights == 1 && best.Placement.Rings.Weights > 1 { // memory went elsewhere
		r.Overlap = true
		if q, err := plan.New(ctx, r); err == nil && better(q, p) {
			return q, nil
		}
	}
	return p, ctx.Err()
}

// sized is a request with all sizes.
func sized(r plan.Request, rows int, sizes Sizes, wants func(plan.Numerics) plan.Wants, micro, chunk int) plan.Request {
	n := &r.Numerics
	n.MicroBatch, n.MicroBatches, n.HeadChunk = micro, rows/micro, min(chunk, micro*n.SequenceLen)
	n.BlockChunk = blockChunk(sizes, n.Positions(), r.Device)
	if wants != nil {
		r.Wants = wants(*n)
	}
	return r
}

// checkFits refuses a run that no sizes bring into its budgets: before its data are read, which takes long and only makes it larger.
func (e *Env) checkFits(ctx context.Context, c *Config, m *model.Model, dev device.Info) error {
	n, err := c.types()
	if err != nil {
		return err
	}
	n.SequenceLen = c.SequenceLen
	r, err := e.request(m, n, dev, c.memory())
	if err != nil {
		return err
	}
	rows := c.BatchTokens / c.SequenceLen
	micros, err := microBatches(c.Numerics, rows, c.SequenceLen, dev)
	if err != nil {
		return err
	}
	chunks := headChunksOf(c.Numerics, dev)
	r = sized(r, rows, c.Numerics, func(plan.Numerics) plan.Wants { return c.wants() }, micros[len(micros)-1], chunks[len(chunks)-1])
	if err = r.Fits(ctx); err == nil || ctx.Err() != nil {
		return err
	}
	if err = r.Mend(ctx, err); ctx.Err() != nil {
		return err
	}
	return Request(err)
}

// better reports whether a plan with smaller operations is worth it: because it is faster or, if it is as fast by rates
// that may be guesses, because weights travel behind the computation instead of between.
func better(p, best *plan.Plan) bool {
	if p.Placement.Rings.Weights > 1 && best.Placement.Rings.Weights == 1 {
		return sameSpeed*p.Predicted.StepSeconds < best.Predicted.StepSeconds
	}
	return p.Predicted.StepSeconds < sameSpeed*best.Predicted.StepSeconds
}

// microBatches are the numbers of rows of a micro-batch that are tried, largest first.
func microBatches(sizes Sizes, rows, sequenceLen int, dev device.Info) ([]int, error) {
	if n := int(sizes.MicroBatch); n > 0 {
		if rows%n != 0 {
			return nil, Request(fmt.Errorf("numerics.micro_batch is %d: it must divide the %d sequences of a step (batch_tokens / sequence_len)", n, rows))
		}
		return []int{n}, nil
	}
	var fit []int
	for n := rows; n >= 1; n-- {
		if rows%n == 0 && (n == 1 || n*sequenceLen <= positionsOf(dev)) {
			fit = append(fit, n)
		}
	}
	return fit, nil
}
