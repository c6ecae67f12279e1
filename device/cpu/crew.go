package cpu

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/device/cpu/attention"
	"github.com/millrace/millrace/device/cpu/delta"
	"github.com/millrace/millrace/device/cpu/gemm"
	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

// runner is a pool of workers.
type runner interface {
	gemm.Runner
	Close()
}

// crew works on operations: workers, kernels and their scratch.
type crew struct {
	*kernels.Table
	engine   *gemm.Engine
	accounts *hostmem.Accounts
	runner

	product sync.Mutex // held during a matrix product, of which the engine does one at a time

	attention sync.Mutex      // held during an attention or a gated delta net, for the scratch below
	blocks    *hostmem.Region // of each worker
	headGrads *hostmem.Region // of all workers: gradients of heads, and operands that are packed for all
	held      atomic.Int64    // bytes of blocks
}

// The widest heads that a crew is equipped for, Info.MaxHeadDim and Info.MaxDeltaDim.
const (
	headDim  = 512
	deltaDim = 128
)

// firstBlocks is the scratch that each worker has from the start.
func firstBlocks() int64 { return max(attentionBlock(headDim), deltaBlock(deltaDim, deltaDim)) }

// newCrew makes the crew that the streams of a device share. Under the race detector each stream has one of its own.
func newCrew(d *Device) (*crew, error) {
	c := &crew{Table: kernels.For(d.level), accounts: d.accounts, runner: newRunner(d.workers, d.beginner())}
	c.engine = gemm.New(d.level, c.runner)
	if err := c.equip(firstBlocks(), d.prepared.Load()); err != nil {
		c.runner.Close()
		return nil, fmt.Errorf("cpu device: %w", err)
	}
	return c, nil
}

func (c *crew) close() error {
	c.runner.Close()
	err := c.blocks.Close()
	if e := c.headGrads.Close(); e != nil {
		err = e
	}
	return err
}

// overheadBytes is all that the crew holds but attention gradients, which grow with what is computed.
func (c *crew) overheadBytes() int64 { return c.engine.ScratchBytes() + c.held.Load() }

// equip makes sure that each worker has a block of scratch, in whole pages, and that there is room for gradients of the
// given bytes.
func (c *crew) equip(blockBytes, headGradsBytes int64) error {
	grow := func(r **hostmem.Region, purpose string, bytes int64) error {
		old := *r
		if old != nil && old.Len() >= bytes {
			return nil
		}
		bigger, err := c.accounts.Reserve(purpose, bytes)
		if err != nil {
			return err
		}
		*r = bigger
		if old != nil {
			return old.Close()
		}
		return nil
	}
	if err := grow(&c.blocks, "scratch of workers", int64(c.Workers())*blockBytes); err != nil {
		return err
	}
	c.held.Store(c.blocks.ReservedBytes())
	return grow(&c.headGrads, "attention gradients", headGradsBytes)
}

// attentionBlock is one worker's scratch for an attention.
func attentionBlock(headDim int) int64 { return wholePages(attention.ScratchBytes(headDim)) }

// deltaBlock is one worker's scratch for a gated delta net.
func deltaBlock(keyDim, valueDim int) int64 { return wholePages(delta.ScratchBytes(keyDim, valueDim)) }

func wholePages(bytes int) int64 {
	return (int64(bytes) + hostmem.PageBytes - 1) / hostmem.PageBytes * hostmem.PageBytes
}

// The sizes of tasks. A task should be much longer than the microsecond that handing it out takes, and much shorter
// than an operation, so that the workers end together.
const (
	taskBytes = 128 << 10 // memory that one task goes through
	// After a run of tasks, which takes about a millisecond, other streams have a chance to use the workers. A run has
	// this many tasks for each worker, who all wait for the last task once in a run.
	runRounds = 64
)

// tasksPerRun is the number of tasks of a run: whole rounds of the workers.
func tasksPerRun(workers int) int { return workers * runRounds }

// split calls f for [0, n) in ranges that are multiples of granule, on all workers if it is worth it. One step of n
// goes through the given bytes of memory.
func (c *crew) split(n, granule int, bytes int64, f func(lo, hi int)) {
	step := int(max(1, taskBytes/max(1, bytes)))
	step = (step + granule - 1) / granule * granule
	if n <= step {
		if n > 0 {
			f(0, n)
		}
		return
	}
	c.runAll((n+step-1)/step, func(task int) {
		lo := task * step
		f(lo, min(lo+step, n))
	})
}

// runAll calls f for tasks [0, tasks), a run of them after the other.
func (c *crew) runAll(tasks int, f func(task int)) {
	atOnce := tasksPerRun(c.Workers())
	for first := 0; first < tasks; first += atOnce {
		c.Run(min(atOnce, tasks-first), func(_, task int) { f(first + task) })
	}
}

// multiplier lends the engine to the tasks of an attention.
type multiplier struct{ engine *gemm.Engine }

// Multiply implements attention.Multiplier.
func (m multiplier) Multiply(worker int, p attention.Product) {
	op := gemm.Op{C: gemm.Mat(p.C), A: gemm.Mat(p.A), B: gemm.Mat(p.B),
		TransA: p.TransposeA, TransB: p.TransposeB, Accumulate: p.Accumulate}
	if p.Packed != nil {
		m.engine.MulPacked(worker, op, p.Packed)
		return
	}
	m.engine.MulSerial(worker, op)
}

// PackB implements attention.Multiplier.
func (m multiplier) PackB(worker int, to []float32, b kernels.Mat, transpose bool) {
	m.engine.PackB(worker, to, gemm.Mat(b), transpose)
}

// PackedFloats implements attention.Multiplier.
func (m multiplier) PackedFloats(d tensor.DType, k, n int) int { return m.engine.PackedFloats(d, k, n) }

// block is the scratch of one worker, where each has that much.
func (c *crew) block(worker int, bytes int64) []byte {
	return c.blocks.Bytes()[int64(worker)*bytes:][:bytes]
}

// shared is the scratch that the workers of an attention share.
func (c *crew) shared() []float32 { return hostmem.F32(c.headGrads.Bytes()) }
