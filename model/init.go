package model

import (
	"strings"

	"github.com/millrace/millrace/internal/rng"
)

// InitPart fills values of a part or of a piece of one, padding included, as transformers initializes a new model: matrices from a normal
// distribution with standard deviation InitStd, biases with zeros, norms with ones. Each row of a tensor has random numbers
// of its own, named by seed, tensor and row, so the result does not depend on how the model is cut.
func (m *Model) InitPart(seed uint64, p *Part, dst Values) {
	dst.clearPadding(p.Layout)
	for _, src := range p.Tensors {
		f := &p.Layout.Fields[src.Field]
		rows, cols := 1, f.Shape[0]
		if len(f.Shape) == 2 {
			rows, cols = f.Shape[0], f.Shape[1]
		}
		row := make([]float32, cols)
		if len(f.Shape) == 1 && !strings.HasSuffix(src.HFName, ".bias") {
			for i := range row {
				row[i] = 1
			}
		}
		first, end := dst.of(f)
		for r := range rows {
			from, to := max(first-int64(r)*int64(cols), 0), min(end-int64(r)*int64(cols), int64(cols))
			if from >= to {
				continue
			}
			if len(f.Shape) == 2 {
				random := rng.New(seed, "init "+src.HFName, 0, uint64(src.FirstRow+r))
				for i := range row {
					row[i] = float32(m.InitStd) * random.NormFloat32()
				}
			}
			dst.setElems(f, int64(r)*int64(cols)+from, row[from:to])
		}
	}
}
