package nn_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// valued is a head with a critic's row, whose losses are those of its logits and slopes times values and entropies.
type valued struct {
	*ending
	slopes, entropySlopes   device.Mem
	slopeOf, entropySlopeOf []float32
	entropies               []float32 // of the last pass
}

func newValued(t *testing.T, dtype tensor.DType, layer bool) *valued {
	norm := nn.Norm{Eps: 1e-5, Layer: layer, Bias: layer}
	e := &valued{ending: newEnding(t, &nn.Head{Hidden: 22, Vocab: 31, TileRows: 12, ChunkTokens: 7, Norm: norm,
		Values: true, Stops: true, Entropies: true}, dtype)}
	for i := range positions {
		e.entropySlopeOf = append(e.entropySlopeOf, []float32{-1, 0.5, 0}[i%3])
		e.slopeOf = append(e.slopeOf, []float32{0.5, -0.25, 1.5, 0, 2}[i%5])
	}
	e.slopes = e.mat(tensor.F32, 1, positions, e.slopeOf).Mem
	e.entropySlopes = e.mat(tensor.F32, 1, positions, e.entropySlopeOf).Mem
	return e
}

// pass runs the visits of a direction, and returns the losses and the values of positions.
func (e *valued) pass(t *testing.T, to nn.Direction, atOnce bool) (losses, values []float32) {
	mark := e.arena.Mark()
	w, g := []nn.Params{e.wNorm}, []nn.Params{e.dwNorm}
	e.poison(e.dwNorm.Mem)
	for i, tile := range e.tiles {
		layout, err := tensor.NewLayout(nn.TileFields(tile.Rows, e.h.Hidden)...)
		check(t, err)
		e.poison(e.dTiles[i].Mem)
		w, g = append(w, nn.Weights(tile.Mem, layout, e.dtype)), append(g, nn.Gradients(e.dTiles[i].Mem, layout))
	}
	for i := range g {
		g[i].Fresh = true
	}
	g[0].Clear(e.stream) // tiles are matrices alone
	of, total := e.h.NewEnding(e.arena, e.dtype, positions, to == nn.Backward), e.arena.Take(8*device.TokenFigures)
	of.ByTile = e.h.NewStatsWork(e.arena, e.dtype, positions)
	for _, stage := range e.h.Stages(to, atOnce) {
		for _, v := range stage {
			if v.OnHost {
				continue
			}
			a := &nn.Args{X: e.x, DX: e.dx, Ending: of, Loss: total, ValueSlopes: e.slopes, EntropySlopes: e.entropySlopes,
				Batch: &nn.MicroBatch{T: positions, Targets: e.targets, Weights: e.weights}}
			if !v.Reads.Has(nn.LossWeights) {
				a.ValueSlopes, a.EntropySlopes = device.Mem{}, device.Mem{}
			}
			for _, part := range v.Parts {
				a.Weights, a.Gradients = append(a.Weights, w[part]), append(a.Gradients, g[part])
			}
			v.Run(e.stream, asDeclared(v, a))
		}
	}
	e.sync()
	losses, values = e.get(of.Figures.RowRange(0, 1)), e.get(of.Figures.RowRange(device.TokenFigures, 1))
	e.entropies = e.get(of.Figures.RowRange(1, 1))
	e.arena.Release(mark)
	return losses, values
}

// The value of a position is the product of its normed row with the critic's, by float64, also where it has no target.
func TestValues(t *testing.T) {
	e := newValued(t, tensor.F32, false)
	_, values := e.pass(t, nn.Backward, false)
	x, norm, row := e.get(e.x), wide(e.get(e.wNorm.Mat(0))), wide(e.get(e.wNorm.Mat(1)))
	for p, value := range values {
		want := 0.0
		for c, v := range e.normed(wide(x[p*e.h.Hidden:][:e.h.Hidden]), norm) {
			want += v * row[c]
		}
		if math.Abs(float64(value)-want) > 1e-5 {
			t.Errorf("position %d has the value %v, want %v", p, value, want)
		}
	}
	if _, up := e.pass(t, nn.Forward, true); fmt.Sprint(up) != fmt.Sprint(values) {
		t.Errorf("on the way up alone %v, want %v", up, values)
	}
}

// Gradients are derivatives of the losses times their weights, and of values and entropies times their slopes.
func TestValueGradients(t *testing.T) {
	for _, layer := range []bool{false, true} {
		e := newValued(t, tensor.F32, layer)
		loss := func() (sum float64) {
			losses, values := e.pass(t, nn.Backward, false)
			for p := range losses {
				sum += float64(losses[p])*float64(e.weightOf[p]) + float64(values[p])*float64(e.slopeOf[p]) +
					float64(e.entropies[p])*float64(e.entropySlopeOf[p])
			}
			return sum
		}
		loss()
		rnd := rand.New(rand.NewPCG(7, 8))
		row := len(e.wNorm.Layout.Fields) - 1
		for what, m := range map[string][2]device.Mat{"x": {e.x, e.dx}, "norm": {e.wNorm.Mat(0), e.dwNorm.Mat(0)},
			"value": {e.wNorm.Mat(row), e.dwNorm.Mat(row)}, "tile": {e.tiles[1], e.dTiles[1]}} {
			checkGradient(t, rnd, what, e.get(m[0]), e.get(m[1]), func(x []float32) { e.set(m[0], x) }, loss)
			loss()
		}
	}
}

// Both schedules give the same bits, and those of logits are what they are without values.
func TestValueSchedules(t *testing.T) {
	for _, dtype := range []tensor.DType{tensor.F32, tensor.BF16} {
		e := newValued(t, dtype, false)
		losses, values := e.pass(t, nn.Backward, false)
		want := append(e.results(), losses, values)
		losses, values = e.pass(t, nn.Backward, true)
		for j, got := range append(e.results(), losses, values) {
			sameBits(t, fmt.Sprintf("%v: result %d", dtype, j), got, want[j])
		}
		e.set(e.wNorm.Mat(1), make([]float32, e.h.Hidden)) // no slope of a value reaches the rows
		e.h.Entropies, e.entropySlopes = false, device.Mem{}
		losses, _ = e.pass(t, nn.Backward, true)
		dx, dTile := e.get(e.dx), e.get(e.dTiles[0])
		e.h.Values = false
		e.run(false)
		sameBits(t, "losses without values", e.get(e.loss), losses)
		sameBits(t, "dx without values", e.get(e.dx), dx)
		sameBits(t, "gradient of a tile without values", e.get(e.dTiles[0]), dTile)
	}
}
