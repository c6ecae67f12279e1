package model

import (
	"math"
	"strings"

	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/nn"
)

// InitPart fills values of a part or of a piece of one, padding included, as transformers initializes a new model:
// matrices from a normal distribution with standard deviation InitStd, vectors as initVector says. Each row of a tensor
// has random numbers of its own, named by seed, tensor and row, so the result does not depend on how the model is cut.
func (m *Model) InitPart(seed uint64, p *Part, dst Values) {
	dst.clearUnread(p)
	for _, src := range p.Tensors {
		f := &p.Layout.Fields[src.Field]
		isVector := len(f.Shape) == 1
		rows, cols, at := int64(src.Rows), int64(src.Cols), int64(src.Row)*int64(src.Cols)
		if isVector {
			rows, cols = 1, rows
		}
		row := make([]float32, cols)
		if isVector {
			m.initVector(p, f.Name, rng.New(seed, "init "+src.Name, 0, 0), row)
		}
		first, end := dst.of(f)
		for r := range rows {
			begin := at + r*cols
			from, to := max(first-begin, 0), min(end-begin, cols)
			if from >= to {
				continue
			}
			if !isVector {
				number := src.At + r*int64(src.RowStep) // of a transposed tensor, a row is where it begins
				if src.ColStep == 1 {
					number /= cols
				}
				random := rng.New(seed, "init "+src.Name, 0, uint64(number))
				for i := range row {
					row[i] = float32(m.InitStd) * random.NormFloat32()
				}
			}
			dst.setElems(f, begin+from, row[from:to])
		}
	}
}

// initVector fills a vector that is zero: norms so that they multiply by 1, and what is no bias with ones. The rates of
// a gated delta net are spread from 0.01 to 16.
func (m *Model) initVector(p *Part, name string, random *rng.Source, row []float32) {
	value := float32(1)
	switch {
	case strings.HasSuffix("."+name, ".bias"):
		value = 0
	case nn.NormHasOffset(name) || p.Kind == Norm:
		value = 1 - m.Head.Norm.Offset
	}
	for i := range row {
		if row[i] = value; name == nn.DeltaALog {
			row[i] = float32(math.Log(0.01 + (16-0.01)*random.Float64()))
		}
	}
}
