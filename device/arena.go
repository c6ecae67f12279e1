package device

import "github.com/millrace/millrace/tensor"

// ArenaAlign is the alignment of every piece of an arena, in bytes.
const ArenaAlign = 512

// Arena hands out consecutive pieces of one range of memory, with mark and release. An arena over the zero Mem hands
// out pieces without memory and only counts. The plan and the engine can therefore size and place the same buffers with
// the same code.
type Arena struct {
	mem       Mem
	counting  bool
	off, peak int64
}

// NewArena makes an arena over mem, or one that only counts if mem is the zero Mem.
func NewArena(mem Mem) *Arena { return &Arena{mem: mem, counting: mem.IsZero()} }

// Take is the next piece of the given length. It panics when the arena is exhausted: the plan sized it, so that is a
// bug.
func (a *Arena) Take(bytes int64) Mem {
	first := (a.off + ArenaAlign - 1) / ArenaAlign * ArenaAlign
	a.off = first + bytes
	a.peak = max(a.peak, a.off)
	if a.counting {
		return Mem{Off: first, Len: bytes}
	}
	return a.mem.Slice(first, bytes)
}

// Again counts n times more what was taken since a mark: an arena that only counts then need not be asked for each of
// many alike.
func (a *Arena) Again(n int, since int64) {
	if !a.counting {
		panic("device: Again on an arena over memory")
	}
	if a.off == since {
		return // nothing was taken
	}
	first := (since + ArenaAlign - 1) / ArenaAlign * ArenaAlign
	stride := (a.off - first + ArenaAlign - 1) / ArenaAlign * ArenaAlign
	a.off += int64(n) * stride
	a.peak = max(a.peak, a.off)
}

// Mat takes a dense matrix.
func (a *Arena) Mat(t tensor.DType, rows, cols int) Mat {
	return NewMat(a.Take(int64(rows)*int64(cols)*t.Bytes()), t, rows, cols)
}

// Mark is the place that Release goes back to.
func (a *Arena) Mark() int64 { return a.off }

// Release gives back all that was taken since the mark.
func (a *Arena) Release(mark int64) { a.off = mark }

// Peak is the most that was in use at once, in bytes, rounded up to ArenaAlign.
func (a *Arena) Peak() int64 { return (a.peak + ArenaAlign - 1) / ArenaAlign * ArenaAlign }
