package nn

import (
	"cmp"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// Ending holds a micro-batch of the head on the device between its visits, and the scratch of them.
type Ending struct {
	Normed  device.Mat // [T, Hidden]: the final norm of x
	Stat    device.Mat // F32 [T, device.HeadStats]
	DNormed device.Mat // F32 [T, Hidden]; only where there is a backward pass
	Stats   device.Mat // F32 [T, Norm.stats]: of that norm
	Figures device.Mat // F32 [Head.Figures, T]
	Values  device.Mat // F32 [T, 1]: of a head that has them

	allStat device.Mat // F32 [T, device.HeadStats]: Stat of all positions, where the others have fewer rows (Args.First)

	ByTile, AtOnce *HeadWork
}

// NewEnding places it for t positions, without the scratch.
func (h *Head) NewEnding(a *device.Arena, dtype tensor.DType, t int, backward bool) *Ending {
	e := &Ending{Normed: a.Mat(dtype, t, h.Hidden), Stat: a.Mat(tensor.F32, t, device.HeadStats)}
	if backward {
		e.DNormed = a.Mat(tensor.F32, t, h.Hidden)
	}
	e.Stats, e.Figures = a.Mat(tensor.F32, t, h.Norm.stats()), a.Mat(tensor.F32, h.Figures(), t)
	if h.Values {
		e.Values = a.Mat(tensor.F32, t, 1)
	}
	return e
}

// Up is the memory of what a tile's statistics take from the tile before: Normed and Stat.
func (e *Ending) Up() device.Mem { return through(e.Normed.Mem, e.Stat.Mem) }

// Down is the memory of what a tile's gradients take from the tile after, on a device that has had Up: Stat and
// DNormed.
func (e *Ending) Down() device.Mem { return through(e.Stat.Mem, e.DNormed.Mem) }

// through is the memory from one range to the end of another one after it in the same buffer.
func through(first, last device.Mem) device.Mem {
	first.Len = last.Off + last.Len - first.Off
	return first
}

// at is the head whose logits are divided by a temperature, after the bound where they have one.
func (h *Head) at(temperature float32) *Head {
	if temperature == 0 || temperature == 1 {
		return h
	}
	of := *h
	of.Scale, of.SoftCap = cmp.Or(h.Scale, 1)/temperature, h.SoftCap/temperature
	return &of
}

func (h *Head) runNorm(s device.Stream, a *Args) {
	h = h.at(a.Temperature)
	h.NormForward(s, a.Weights[0], a.X, a.Ending.Normed, a.Ending.Stats)
	s.LSEInit(a.Ending.Stat)
	if h.Values {
		h.value(s, a.Weights[0], a.Ending.Normed, a.Ending.Values)
		h.emptyValues(s, a.Ending, a.X.Rows)
	}
}

func (h *Head) runInput(s device.Stream, a *Args) {
	e := a.Ending
	h = h.at(a.Temperature)
	if h.Values && h.Stops {
		h.valueGrad(s, a.Weights[0], a.Gradients[0], e.Normed, e.DNormed, a.ValueSlopes, e.ByTile)
	}
	h.NormBackward(s, a.Weights[0], a.Gradients[0], a.X, e.Stats, e.DNormed, a.DX)
}

// runLoss writes the figures of a micro-batch's positions and their sums. It has all positions, also where padding is
// left out: they are in the order of the sums, and their figures are zeros.
func (h *Head) runLoss(s device.Stream, a *Args) {
	e := a.Ending
	stat := e.Stat
	if !e.allStat.IsZero() {
		stat = e.allStat
	}
	s.TokenLoss(e.Figures.RowRange(0, device.TokenFigures), stat, a.Batch.Targets)
	if h.Values {
		s.Scale(ofValues(e.Figures), e.Values, 1)
	}
	for i := range device.TokenFigures {
		s.Sum(a.Loss.Slice(int64(i)*tensor.F64.Bytes(), tensor.F64.Bytes()), e.Figures.RowRange(i, 1))
	}
}

func (h *Head) runVisit(s device.Stream, a *Args) {
	var tiles, grads []device.Mat
	for i, w := range a.Weights {
		tiles, grads = append(tiles, w.Mat(0)), append(grads, a.Gradients[i].Mat(0))
	}
	e := a.Ending
	fresh := len(grads) > 0 && a.Gradients[0].Fresh
	h = h.at(a.Temperature)
	h.Visit(s, tiles, grads, e.Normed, e.Stat, e.DNormed, fresh, a.Batch.Targets, a.Batch.Weights, e.AtOnce)
	h.runLoss(s, a)
}

func (h *Head) statsVisit(tile int) Visit {
	first, _ := h.Tile(tile)
	return Visit{Name: "head-stats", Parts: []int{1 + tile}, Reads: Tokens, Writes: HeldRows,
		Run: func(s device.Stream, a *Args) {
			e := a.Ending
			h.at(a.Temperature).Stats(s, a.Weights[0].Mat(0), first, e.Normed, e.Stat, a.Batch.Targets, &a.Picked, e.ByTile)
		}}
}

func (h *Head) gradVisit(tile int) Visit {
	first, _ := h.Tile(tile)
	begins := tile == h.Tiles()-1
	return Visit{Name: "head-grad", Parts: []int{1 + tile}, Reads: Tokens, Writes: HeldRows | Grads, First: begins,
		Run: func(s device.Stream, a *Args) {
			e, g := a.Ending, a.Gradients[0]
			h.at(a.Temperature).Grad(s, a.Weights[0].Mat(0), g.Mat(0), first, e.Normed, e.Stat, e.DNormed, begins, g.Fresh,
				a.Batch.Targets, a.Batch.Weights, a.EntropySlopes, &a.Picked, e.ByTile)
		}}
}

func (h *Head) logitsVisit(tile int) Visit {
	return Visit{Name: "head-logits", Parts: []int{1 + tile}, Reads: HeldRows, Writes: LogitRows,
		Run: func(s device.Stream, a *Args) {
			rows := a.Ending.Normed.RowRange(a.Wanted.First, a.Wanted.Rows)
			h.Logits(s, a.Weights[0].Mat(0), a.Wanted.FirstColumn, rows, a.Wanted.To)
		}}
}

// drawVisit has the wanted rows draw of a tile. Their logits are gone with the next tile.
func (h *Head) drawVisit(tile int) Visit {
	first, _ := h.Tile(tile)
	v := Visit{Name: "head-draw", Parts: []int{1 + tile}, Reads: Tokens, Writes: HeldRows | LogitRows,
		Run: func(s device.Stream, a *Args) {
			w := &a.Wanted
			h.Logits(s, a.Weights[0].Mat(0), 0, a.Ending.Normed.RowRange(w.First, w.Rows), w.To)
			s.DrawTokens(w.Drawn, a.Ending.Stat.RowRange(w.First, w.Rows), w.To, w.Draws, first, w.Vocab, h.SoftCap)
		}}
	if tile == h.Tiles()-1 {
		v.Writes |= Drawn
	}
	return v
}
