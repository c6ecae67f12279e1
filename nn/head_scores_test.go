package nn_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// scoring is a head that scores. Positions without a target have the weight 0.
func scoring(t *testing.T, dtype tensor.DType, stops bool) *ending {
	e := newEnding(t, &nn.Head{Hidden: 22, Vocab: 1, TileRows: 1, ChunkTokens: 7, Norm: nn.Norm{Eps: 1e-5}, Scores: true,
		Stops: stops}, dtype)
	for i, id := range e.targetIDs {
		if id < 0 {
			e.weightOf[i] = 0
		}
	}
	e.weights = e.mat(tensor.F32, 1, positions, e.weightOf).Mem
	return e
}

// score runs the visits of a direction, and returns the losses of positions and their sum.
func (e *ending) score(to nn.Direction, atOnce bool) (losses []float32, sum float64) {
	mark := e.arena.Mark()
	layout, err := tensor.NewLayout(nn.TileFields(1, e.h.Hidden)...)
	if err != nil {
		panic(err)
	}
	e.poison(e.dTiles[0].Mem)
	if e.dwNorm.Layout != nil {
		clear(e.bytes(e.dwNorm.Mem))
	}
	w := []nn.Params{e.wNorm, nn.Weights(e.tiles[0].Mem, layout, e.dtype)}
	g := []nn.Params{e.dwNorm, nn.Gradients(e.dTiles[0].Mem, layout)}
	g[1].Fresh = true
	of, total := e.h.NewEnding(e.arena, e.dtype, positions, to == nn.Backward), e.arena.Take(8*device.TokenFigures)
	of.ByTile = e.h.NewStatsWork(e.arena, e.dtype, positions)
	clear(e.bytes(total))
	for _, stage := range e.h.Stages(to, atOnce) {
		for _, v := range stage {
			if v.OnHost {
				continue
			}
			a := &nn.Args{X: e.x, DX: e.dx, Ending: of, Loss: total, Batch: &nn.MicroBatch{T: positions, Targets: e.targets,
				Weights: e.weights}}
			for _, part := range v.Parts {
				a.Weights, a.Gradients = append(a.Weights, w[part]), append(a.Gradients, g[part])
			}
			v.Run(e.stream, asDeclared(v, a))
		}
	}
	e.sync()
	losses = e.get(of.Figures.RowRange(0, 1))
	sum = math.Float64frombits(binary.LittleEndian.Uint64(e.bytes(total)))
	e.arena.Release(mark)
	return losses, sum
}

// The loss of a position with a target is minus its score, by float64, and their sum is that of all.
func TestScores(t *testing.T) {
	e := scoring(t, tensor.F32, true)
	losses, sum := e.score(nn.Backward, false)
	x, norm, row, all := e.get(e.x), wide(e.get(e.wNorm.Mat(0))), wide(e.get(e.tiles[0])), 0.0
	for p, loss := range losses {
		want := 0.0
		for c, v := range e.normed(wide(x[p*e.h.Hidden:][:e.h.Hidden]), norm) {
			if e.targetIDs[p] >= 0 {
				want -= v * row[c]
			}
		}
		if math.Abs(float64(loss)-want) > 1e-5 {
			t.Errorf("the loss of position %d is %v, want %v", p, loss, want)
		}
		all += float64(loss)
	}
	if math.Abs(sum-all) > 1e-5 {
		t.Errorf("the sum is %v, want %v", sum, all)
	}
	if up, _ := e.score(nn.Forward, true); fmt.Sprint(up) != fmt.Sprint(losses) {
		t.Errorf("on the way up alone %v, want %v", up, losses)
	}
}

// Gradients are derivatives of the losses times the weights.
func TestScoreGradients(t *testing.T) {
	e := scoring(t, tensor.F32, true)
	loss := func() (sum float64) {
		losses, _ := e.score(nn.Backward, false)
		for p, l := range losses {
			sum += float64(l) * float64(e.weightOf[p])
		}
		return sum
	}
	loss()
	rnd := rand.New(rand.NewPCG(7, 8))
	for what, m := range map[string][2]device.Mat{"x": {e.x, e.dx}, "norm": {e.wNorm.Mat(0), e.dwNorm.Mat(0)},
		"score": {e.tiles[0], e.dTiles[0]}} {
		checkGradient(t, rnd, what, e.get(m[0]), e.get(m[1]), func(x []float32) { e.set(m[0], x) }, loss)
		loss()
	}
}

// All schedules give the same bits: with a stop or without, one visit after the other or at once.
func TestScoreSchedules(t *testing.T) {
	for _, dtype := range []tensor.DType{tensor.F32, tensor.BF16} {
		var want [][]float32
		for i := range 4 {
			e := scoring(t, dtype, i < 2)
			losses, _ := e.score(nn.Backward, i%2 == 1)
			got := append(e.results(), losses)
			if want == nil {
				want = got
			}
			for j := range got {
				sameBits(t, fmt.Sprintf("%v, schedule %d: result %d", dtype, i, j), got[j], want[j])
			}
		}
	}
}
