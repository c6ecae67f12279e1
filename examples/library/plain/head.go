package plain

import (
	"math"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

// The columns of stat: the maximum, the sum of exponentials, and the target's logit.
const (
	maximum = iota
	exponentials
	targetLogit
	statCols
)

func (s *stream) LSEInit(stat device.Mat) {
	s.operands.LSEInit(stat)
	s.do(func() {
		v := make([]float64, stat.Rows*statCols)
		for i := maximum; i < len(v); i += statCols {
			v[i] = math.Inf(-1)
		}
		put(stat, v)
	})
}

func (s *stream) LSEUpdate(stat, logits device.Mat, targets device.Mem, first int, softCap float32) {
	s.operands.LSEUpdate(stat, logits, targets, first, softCap)
	s.do(func() {
		v, all, ids := numbers(logits), numbers(stat), ints(targets, logits.Rows)
		for i, x := range v {
			x, _ = capped(x, softCap)
			row := all[i/logits.Cols*statCols:]
			larger := max(row[maximum], x)
			row[exponentials] = row[exponentials]*math.Exp(row[maximum]-larger) + math.Exp(x-larger)
			row[maximum] = larger
			if int(ids[i/logits.Cols]) == first+i%logits.Cols {
				row[targetLogit] = x
			}
		}
		put(stat, all)
	})
}

func (s *stream) TokenLoss(loss, stat device.Mat, targets device.Mem) {
	s.operands.TokenLoss(loss, stat, targets)
	s.do(func() {
		all, losses := numbers(stat), make([]float64, stat.Rows)
		for t, id := range ints(targets, stat.Rows) {
			if row := all[t*statCols:]; id >= 0 {
				losses[t] = row[maximum] + math.Log(row[exponentials]) - row[targetLogit]
			}
		}
		put(loss, losses)
	})
}

func (s *stream) CrossEntropyGrad(dlogits, logits, stat device.Mat, targets, weights device.Mem, first int,
	softCap float32,
) {
	s.operands.CrossEntropyGrad(dlogits, logits, stat, targets, weights, first, softCap)
	s.do(func() {
		v, all, ids := numbers(logits), numbers(stat), ints(targets, logits.Rows)
		scale := numbers(device.NewVec(weights, tensor.F32, logits.Rows))
		for i, x := range v {
			row, target := all[i/logits.Cols*statCols:], int(ids[i/logits.Cols])
			if target < 0 {
				v[i] = 0
				continue
			}
			x, slope := capped(x, softCap)
			v[i] = math.Exp(x-row[maximum]) / row[exponentials]
			if target == first+i%logits.Cols {
				v[i]--
			}
			v[i] *= scale[i/logits.Cols] * slope
		}
		put(dlogits, v)
	})
}

func (s *stream) Sum(dst device.Mem, x device.Mat) {
	s.operands.Sum(dst, x)
	s.do(func() { hostmem.F64(bytesOf(dst))[0] = sumInOrder(numbers(x)) })
}

func (s *stream) SumSquares(dst device.Mem, x device.Mat) {
	s.operands.SumSquares(dst, x)
	s.do(func() {
		v := numbers(x)
		for i := range v {
			v[i] *= v[i]
		}
		hostmem.F64(bytesOf(dst))[0] = sumInOrder(v)
	})
}

// sumInOrder adds in the order that every device keeps: chunks of 65,536 numbers, each in 16 lanes.
func sumInOrder(x []float64) (sum float64) {
	const chunk = 65536
	for len(x) > 0 {
		var lanes [16]float64
		for i, v := range x[:min(chunk, len(x))] {
			lanes[i%len(lanes)] += v
		}
		for half := len(lanes) / 2; half > 0; half /= 2 {
			for i := range half {
				lanes[i] += lanes[i+half]
			}
		}
		sum += lanes[0]
		x = x[min(chunk, len(x)):]
	}
	return sum
}
