package plan

import (
	"cmp"
	"fmt"

	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/tensor"
)

// Numerics has the settings on which the bits of a run depend. That of a whole step is recorded in plan.json and kept
// on resume; everything else of a plan may change without changing a bit of the result.
type Numerics struct {
	Compute tensor.DType  `json:"compute"` // F32 or BF16: operands of matrix products, activations
	Master  optim.Master  `json:"master"`
	Moments optim.Moments `json:"moments"`

	SequenceLen  int `json:"sequence_len"`  // packed positions of a sequence
	MicroBatch   int `json:"micro_batch"`   // sequences that one operation sees
	MicroBatches int `json:"micro_batches"` // micro-batches of a step
	// Cohorts is the number of cohorts of a step, 0 for one: as many consecutive micro-batches each, whose gradients
	// are summed by themselves before the sums are added. See cohorts.go.
	Cohorts int `json:"groups,omitempty"`
	// ForwardOnly is the number of micro-batches of each cohort, the last ones, that are not trained: an objective sees
	// their log-probabilities, and their losses have no gradient. See forward_only.go.
	ForwardOnly int `json:"forward_only,omitempty"`
	// Exchange is BF16 where the sum of each cohort is rounded to that before it is added, and so passes from host to
	// host in half of the bytes; else 0, and sums are fp32.
	Exchange  tensor.DType `json:"exchange,omitempty"`
	HeadChunk int          `json:"head_chunk"` // positions whose logits are computed together
	// BlockChunk is the positions that all of a block but its attention takes at once, and the norm of the head; 0: all
	// of a micro-batch. It bounds what the MLP takes of the device, and sets bits since gradients of parameters are
	// summed over chunks.
	BlockChunk int `json:"block_chunk,omitempty"`

	// PieceElems is about how long the pieces of an extent are, in elements: what the host updates, and a disk reads or
	// writes, at a time. It sets bits, since the embedding's squares are summed piece by piece. 0 is DefaultPieceElems.
	PieceElems int64 `json:"piece_elems,omitempty"`
}

// DefaultPieceElems makes pieces of 16 MiB of moments in fp32.
const DefaultPieceElems = 4 << 20

func (n Numerics) pieceElems() int64 { return cmp.Or(n.PieceElems, DefaultPieceElems) }

// Positions is the number of rows T of a micro-batch.
func (n Numerics) Positions() int { return n.SequenceLen * n.MicroBatch }

// BlockChunkMultiple divides BlockChunk where there is more than one chunk. Rows of any width then begin at a multiple
// of 16 bytes in every chunk, wherever the matrix is: devices may choose the way of an operation by that, and with it
// bits.
const BlockChunkMultiple = 8

// BlockRows is the rows of a block's chunk, all of a micro-batch if it is in one.
func (n Numerics) BlockRows() int {
	if t := n.Positions(); n.BlockChunk == 0 || n.BlockChunk > t {
		return t
	}
	return n.BlockChunk
}

// BlockChunks is the number of chunks of a micro-batch in blocks.
func (n Numerics) BlockChunks() int { return (n.Positions() + n.BlockRows() - 1) / n.BlockRows() }

// StepPositions is the number of packed positions of a step.
func (n Numerics) StepPositions() int { return n.Positions() * n.MicroBatches }

// Scheme says what is kept of each parameter.
func (n Numerics) Scheme() optim.Scheme { return optim.Scheme{Master: n.Master, Moments: n.Moments} }

// MaxPositionsPerMicroBatch keeps row indices and the products of small factors with them in 32 bits.
const MaxPositionsPerMicroBatch = 1 << 24

// Check refuses numerics that cannot be.
func (n Numerics) Check() error {
	switch {
	case n.Compute != tensor.F32 && n.Compute != tensor.BF16:
		return fmt.Errorf("precision.compute is %v: known are bf16 and f32", n.Compute)
	case n.Compute == tensor.F32 && n.Master != optim.F32, n.Compute == tensor.BF16 && n.Master == optim.F32:
		return fmt.Errorf("precision: compute %v does not go with master %v: use bf16 with split or split24, "+
			"or f32 with f32", n.Compute, n.Master)
	case n.SequenceLen < 1 || n.MicroBatch < 1 || n.MicroBatches < 1 || n.HeadChunk < 1:
		return fmt.Errorf("sequence_len, micro-batches and head chunk must be at least 1")
	case n.Cohorts < 0, n.MicroBatches%n.CohortCount() != 0:
		return fmt.Errorf("numerics.groups is %d: it must divide the %d micro-batches of a step", n.Cohorts,
			n.MicroBatches)
	case n.Exchange != 0 && n.Exchange != tensor.BF16:
		return fmt.Errorf("numerics.exchange: sums are bf16, or fp32 where it is 0, and cannot be %v", n.Exchange)
	case n.BlockChunk < 0, n.BlockRows() < n.Positions() && n.BlockRows()%BlockChunkMultiple != 0:
		return fmt.Errorf("numerics.block_chunk is %d: it must be a multiple of %d", n.BlockChunk, BlockChunkMultiple)
	case n.PieceElems < 0:
		return fmt.Errorf("pieces of %d elements", n.PieceElems)
	case n.SequenceLen > MaxPositionsPerMicroBatch/n.MicroBatch:
		return fmt.Errorf("sequence_len: a micro-batch of %d x %d positions is more than %d", n.MicroBatch, n.SequenceLen, MaxPositionsPerMicroBatch)
	}
	return n.checkForwardOnly()
}
