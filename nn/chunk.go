package nn

import (
	"iter"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/tensor"
)

// chunk is a range of a micro-batch's positions that are treated at once.
type chunk struct{ first, n int }

// chunks cuts t positions into chunks of size, in order; the last one may be shorter.
func chunks(t, size int) iter.Seq[chunk] {
	return func(yield func(chunk) bool) {
		for first := 0; first < t; first += size {
			if !yield(chunk{first, min(size, t-first)}) {
				return
			}
		}
	}
}

func (c chunk) rows(m device.Mat) device.Mat { return m.RowRange(c.first, c.n) }

func (c chunk) ids(m device.Mem) device.Mem {
	return m.Slice(int64(c.first)*tensor.I32.Bytes(), int64(c.n)*tensor.I32.Bytes())
}
