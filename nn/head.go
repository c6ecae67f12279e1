package nn

import (
	"iter"
	"math"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Letters of shapes in the head's files: T positions of a micro-batch, c those of a chunk of it, H the hidden width, n rows
// of the tile, which are columns of its logits.
//
//	x, dx            [T, H]              input of the head and its gradient
//	xn, stats        [T, H], F32 [T, n]  the final norm of x, and what NormBackward needs of it
//	dxn32            F32 [T, H]          gradient of xn: a sum over tiles, so in fp32
//	stat             F32 [T, 4]          of a position's logits so far: device.HeadOps
//	tileW, dTile     [n, H], F32 [n, H]  a tile of the vocabulary and its gradient
//	first                                the first row of the tile in the vocabulary
//	logits, dLogits  F32 [c, n], [c, n]  logits of the tile and their gradient
//	targets          I32 [T]             the token that follows; negative: none that counts
//	weights          F32 [T]             of each position's loss
//	entropySlopes    F32 [T]             how the loss of the step moves with each position's entropy

// Head is the end of a model: the final norm, the projection onto the vocabulary and the cross-entropy loss.
//
// The vocabulary is cut into tiles of TileRows rows of the [Vocab, Hidden] matrix, and the positions into chunks of
// ChunkTokens, so that no more than a chunk's logits ever exist. Both cuts belong to the numerics of a run: they set
// the order of sums. The tiles are visited in order for the log-sum-exp and in descending order for the gradients,
// each over all chunks in order. Two schedules give the same bits:
//
//   - tile by tile: NormForward; Stats of each tile; Grad of each tile, descending, which forms the logits again,
//     unless they were kept; NormBackward.
//   - at once: NormForward; Visit, with all tiles on the device; NormBackward.
//
// Before Stats or Visit the caller empties stat (Stream.LSEInit); after, Stream.TokenLoss gives each position's loss,
// its entropy, and whether its target has the largest logit.
type Head struct {
	Hidden, Vocab int
	TileRows      int
	ChunkTokens   int
	NormTokens    int // positions whose final norm is taken at once; 0: all. It sets the order of sums as well
	Norm          Norm
	Scale         float32 // of the logits, by that of the final norm's result; 0: none
	SoftCap       float32 // bounds the logits, as device.HeadOps has it; 0: none
	KeepLogits    bool    // tile by tile: they are kept from Stats to Grad
	// Scores says that a position ends in a number, its score, and not in logits of tokens: Vocab is 1, and the row of the
	// matrix makes the score of the final norm's result, in fp32. The loss of a position with a target, whichever that is,
	// is minus its score, so that an objective that reads log-probabilities reads scores. A position without a target has
	// the weight 0.
	Scores bool
	// Stops says that the weights of positions' losses follow from the losses of a cohort's micro-batches: all of these
	// go up to their losses, an objective on the host writes the weights, and they go down. Logits are then formed again
	// for the gradients, also where all tiles are on the device.
	Stops bool
	// Picks is the number of tokens of each position whose logits go to the host, and whose gradients an objective gives
	// instead of those of the cross-entropy; 0: none.
	Picks int
	// Draws says that the wanted rows draw a token each from their logits, which never leave the device.
	Draws bool
	// Values says that a position has a value besides its logits: a critic's, for an objective that reads values.
	Values bool
	// Entropies says that an objective that the head stops for also moves with the entropies of positions.
	Entropies bool
}

// finalNorm is the weight of the final norm.
const finalNorm = "weight"

// Fields are the tensors of the final norm's part.
func (h *Head) Fields() []tensor.Field {
	fields := h.Norm.fields(finalNorm, h.Hidden)
	if h.Values {
		fields = append(fields, param(ValueRow, 1, h.Hidden))
	}
	return fields
}

// TileFields are the tensors of the part that holds a tile of a matrix with a row for each token: one with that many
// rows.
func TileFields(rows, cols int) []tensor.Field { return []tensor.Field{param("weight", rows, cols)} }

// Tiles is the number of tiles.
func (h *Head) Tiles() int { return (h.Vocab + h.TileRows - 1) / h.TileRows }

// Tile is the first row of a tile and the number of its rows; the last one may be shorter.
func (h *Head) Tile(i int) (first, rows int) {
	first = i * h.TileRows
	return first, min(h.TileRows, h.Vocab-first)
}

// HeadWork is scratch of Stats and Grad, or of Visit.
type HeadWork struct {
	logits []device.Mem // for F32 [chunk, rows of the tile]: one, or with NewVisitWork one for each tile
	kept   []device.Mem // the same by chunk, of one tile and micro-batch
	dtype  tensor.DType
	grad   device.Mem // for [chunk, rows of the tile] of dtype
	whole  int        // positions of a micro-batch, also where a visit leaves out padding (Args.First)
}

// of counts the rows of a chunk of the head with padding that is left out.
func (h *Head) of(c chunk, work *HeadWork) int { return min(h.ChunkTokens, work.whole-c.first) }

// NewStatsWork places the scratch of Stats and Grad for micro-batches of t positions.
func (h *Head) NewStatsWork(a *device.Arena, dtype tensor.DType, t int) *HeadWork {
	cells := int64(min(t, h.ChunkTokens)) * int64(min(h.TileRows, h.Vocab))
	w := &HeadWork{dtype: dtype, whole: t}
	w.logits = []device.Mem{a.Take(cells * tensor.F32.Bytes())}
	w.grad = a.Take(cells * dtype.Bytes())
	return w
}

// NewKept places the logits of a tile for a micro-batch of t positions. The rest of its scratch is that of w.
func (h *Head) NewKept(a *device.Arena, w *HeadWork, tile, t int) *HeadWork {
	kept := *w
	_, rows := h.Tile(tile)
	for c := range chunks(t, h.ChunkTokens) {
		kept.kept = append(kept.kept, a.Take(int64(c.n)*int64(rows)*tensor.F32.Bytes()))
	}
	return &kept
}

// NewVisitWork places the scratch of Visit: a chunk's logits of the whole vocabulary.
func (h *Head) NewVisitWork(a *device.Arena, dtype tensor.DType, t int) *HeadWork {
	chunk := int64(min(t, h.ChunkTokens))
	w := &HeadWork{dtype: dtype, whole: t}
	for i := range h.Tiles() {
		_, rows := h.Tile(i)
		w.logits = append(w.logits, a.Take(chunk*int64(rows)*tensor.F32.Bytes()))
	}
	w.grad = a.Take(chunk * int64(min(h.TileRows, h.Vocab)) * dtype.Bytes())
	return w
}

// NormForward is xn = norm(x); stats are for NormBackward.
func (h *Head) NormForward(s device.Stream, w Params, x, xn, stats device.Mat) {
	for c := range h.normChunks(x.Rows) {
		h.Norm.apply(s, c.rows(xn), c.rows(stats), c.rows(x), w, finalNorm)
		if h.Scale != 0 {
			s.Scale(c.rows(xn), c.rows(xn), h.Scale)
		}
	}
}

// NormBackward writes dx from dxn32, which it rounds to dx's type first, and adds the gradients of the norm's
// parameters. dx is not x.
func (h *Head) NormBackward(s device.Stream, w, g Params, x, stats, dxn32, dx device.Mat) {
	for c := range h.normChunks(x.Rows) {
		dxn, dx := c.rows(dxn32), c.rows(dx)
		if h.Scale != 0 {
			s.Scale(dxn, dxn, h.Scale)
		}
		if dx.DType != tensor.F32 {
			s.Cast(dx, dxn)
			dxn = dx
		}
		h.Norm.grad(s, dx, dxn, c.rows(x), c.rows(stats), device.Mat{}, w, g, finalNorm)
	}
}

func (h *Head) normChunks(t int) iter.Seq[chunk] {
	if h.NormTokens > 0 {
		return chunks(t, h.NormTokens)
	}
	return chunks(t, t)
}

// Stats takes the logits of one tile into stat, and into picked those of its tokens. Tiles come in order.
func (h *Head) Stats(s device.Stream, tileW device.Mat, first int, xn, stat device.Mat, targets device.Mem,
	picked *Picked, work *HeadWork) {
	for c := range chunks(xn.Rows, h.ChunkTokens) {
		if h.Scores {
			c.scores(s, tileW, xn, stat, targets, work)
			continue
		}
		logits := c.logits(s, tileW, xn, work.memory(c.first/h.ChunkTokens))
		s.LSEUpdate(c.rows(stat), logits, c.ids(targets), first, h.SoftCap)
		if h.Picks > 0 {
			values, ids := picked.rows(c)
			s.PickLogits(values, logits, ids, first, h.SoftCap)
		}
	}
}

// memory returns that of a chunk's logits of one tile.
func (w *HeadWork) memory(chunk int) device.Mem {
	if w.kept == nil {
		return w.logits[0]
	}
	return w.kept[chunk]
}

// Grad forms one tile's logits again, unless work keeps them, and adds their gradient, times weights, to dTile, unless
// that is the zero Mat, and to dxn32, which it overwrites if told so, as for the first tile it sees. A fresh dTile is
// written and not added to. stat is complete. Tiles come in descending order. picked has the gradients of its tokens,
// and a head with Entropies has entropySlopes; otherwise that is the zero Mem.
func (h *Head) Grad(s device.Stream, tileW, dTile device.Mat, first int, xn, stat, dxn32 device.Mat, overwrite, fresh bool,
	targets, weights, entropySlopes device.Mem, picked *Picked, work *HeadWork) {
	for c := range chunks(xn.Rows, h.ChunkTokens) {
		if h.Scores {
			c.products(s, tileW, dTile, c.dScores(s, weights, work), xn, dxn32, h.of(c, work), overwrite, fresh)
			continue
		}
		logits := device.NewMat(work.memory(c.first/h.ChunkTokens), tensor.F32, c.n, tileW.Rows)
		if work.kept == nil {
			logits = c.logits(s, tileW, xn, logits.Mem)
		}
		dLogits := c.lossGrad(s, tileW, first, logits, stat, targets, weights, entropySlopes, h.SoftCap, work)
		if h.Picks > 0 {
			values, ids := picked.rows(c)
			s.PutLogitGrads(dLogits, logits, values, ids, first, h.SoftCap)
		}
		c.products(s, tileW, dTile, dLogits, xn, dxn32, h.of(c, work), overwrite, fresh)
	}
}

// Visit does the work of Stats and Grad for all tiles, each chunk's logits being formed once. dTiles has an entry for each
// tile, the zero Mat where it is frozen. dxn32 is overwritten, and so are dTiles if they are fresh.
func (h *Head) Visit(s device.Stream, tiles, dTiles []device.Mat, xn, stat, dxn32 device.Mat, fresh bool,
	targets, weights device.Mem, work *HeadWork) {
	logits := make([]device.Mat, len(tiles))
	for c := range chunks(xn.Rows, h.ChunkTokens) {
		for i, w := range tiles {
			first, _ := h.Tile(i)
			logits[i] = c.logits(s, w, xn, work.logits[i])
			s.LSEUpdate(c.rows(stat), logits[i], c.ids(targets), first, h.SoftCap)
		}
		for i := len(tiles) - 1; i >= 0; i-- {
			first, _ := h.Tile(i)
			dLogits := c.lossGrad(s, tiles[i], first, logits[i], stat, targets, weights, device.Mem{}, h.SoftCap, work)
			c.products(s, tiles[i], dTiles[i], dLogits, xn, dxn32, h.of(c, work), i == len(tiles)-1, fresh)
		}
	}
}

// Logits writes one tile's logits for the rows of xn into its columns of logits (F32, [rows, Vocab]), before
// [Head.Cap].
func (h *Head) Logits(s device.Stream, tileW device.Mat, first int, xn, logits device.Mat) {
	s.MatMul(logits.ColRange(first, tileW.Rows), xn, tileW, device.MatMulFlags{TransB: true})
}

// Cap bounds logits of Logits, on the host: SoftCap*tanh(logit/SoftCap). Without a soft cap it leaves them alone.
func (h *Head) Cap(logits []float32) {
	if h.SoftCap == 0 {
		return
	}
	limit := float64(h.SoftCap)
	for i, x := range logits {
		logits[i] = float32(limit * math.Tanh(float64(x)/limit))
	}
}
