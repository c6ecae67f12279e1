package nn_test

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// ending is a head with everything that its calls need.
type ending struct {
	*rig
	h                *nn.Head
	dtype            tensor.DType
	wNorm, dwNorm    nn.Params
	tiles, dTiles    []device.Mat
	x, xn, stats, dx device.Mat
	stat, dxn32      device.Mat
	figures, loss    device.Mat // loss is the first row of figures
	targets          device.Mem
	targetIDs        []int32
	weights          device.Mem
	weightOf         []float32
	fresh            bool // gradients of tiles hold nothing yet
}

func newEnding(t *testing.T, h *nn.Head, dtype tensor.DType) *ending {
	e := &ending{rig: newRig(t), h: h, dtype: dtype}
	rnd := rand.New(rand.NewPCG(5, 6))
	layout, err := tensor.NewLayout(h.Fields()...)
	check(t, err)
	e.wNorm = nn.Weights(e.arena.Take(layout.WeightElems*dtype.Bytes()), layout, dtype)
	for i := range layout.Fields {
		e.set(e.wNorm.Mat(i), normal(rnd, h.Hidden, float64(1-i), 0.2)) // the bias is around 0
	}
	e.dwNorm = nn.Gradients(e.arena.Take(layout.StateElems*4), layout)
	for i := range h.Tiles() {
		_, rows := h.Tile(i)
		e.tiles = append(e.tiles, e.mat(dtype, rows, h.Hidden, normal(rnd, rows*h.Hidden, 0, 0.5)))
		e.dTiles = append(e.dTiles, e.arena.Mat(tensor.F32, rows, h.Hidden))
	}
	e.x = e.mat(dtype, positions, h.Hidden, normal(rnd, positions*h.Hidden, 0, 1))
	e.xn, e.dx = e.arena.Mat(dtype, positions, h.Hidden), e.arena.Mat(dtype, positions, h.Hidden)
	e.stats = e.arena.Mat(tensor.F32, positions, 2)
	if !h.Norm.Layer {
		e.stats = e.arena.Mat(tensor.F32, positions, 1)
	}
	e.stat = e.arena.Mat(tensor.F32, positions, device.HeadStats)
	e.figures = e.arena.Mat(tensor.F32, device.TokenFigures, positions)
	e.loss = e.figures.RowRange(0, 1)
	e.dxn32 = e.arena.Mat(tensor.F32, positions, h.Hidden)
	for i := range positions {
		id := int32(rnd.IntN(h.Vocab))
		if i%5 == 3 {
			id = -1
		}
		e.targetIDs = append(e.targetIDs, id)
		e.weightOf = append(e.weightOf, []float32{0.25, -0.5, 0, 2}[i%4])
	}
	e.targets = e.ints(e.targetIDs)
	e.weights = e.mat(tensor.F32, 1, positions, e.weightOf).Mem
	return e
}

// run computes the loss, and the gradients in one of the two schedules.
func (e *ending) run(visit bool) {
	mark := e.arena.Mark()
	clear(e.bytes(e.dwNorm.Mem))
	for _, d := range e.dTiles {
		if e.fresh {
			e.poison(d.Mem)
		} else {
			clear(e.bytes(d.Mem))
		}
	}
	e.poison(e.dxn32.Mem)
	s, h := e.stream, e.h
	h.NormForward(s, e.wNorm, e.x, e.xn, e.stats)
	s.LSEInit(e.stat)
	if visit {
		work := h.NewVisitWork(e.arena, e.dtype, positions)
		h.Visit(s, e.tiles, e.dTiles, e.xn, e.stat, e.dxn32, e.fresh, e.targets, e.weights, work)
	} else {
		work := h.NewStatsWork(e.arena, e.dtype, positions)
		for i, w := range e.tiles {
			first, _ := h.Tile(i)
			h.Stats(s, w, first, e.xn, e.stat, e.targets, nil, work)
		}
		for i := len(e.tiles) - 1; i >= 0; i-- {
			first, _ := h.Tile(i)
			h.Grad(s, e.tiles[i], e.dTiles[i], first, e.xn, e.stat, e.dxn32, i == len(e.tiles)-1, e.fresh, e.targets,
				e.weights, device.Mem{}, nil, work)
		}
	}
	s.TokenLoss(e.figures, e.stat, e.targets)
	h.NormBackward(s, e.wNorm, e.dwNorm, e.x, e.stats, e.dxn32, e.dx)
	e.sync()
	e.poison(device.Mem{Off: mark, Len: e.arena.Mark() - mark})
	e.arena.Release(mark)
}

func (e *ending) totalLoss() float64 {
	e.run(true)
	var sum float64
	for p, l := range e.get(e.loss) {
		sum += float64(l) * float64(e.weightOf[p])
	}
	return sum
}

// heads have tiles and chunks that do not divide evenly, one tile, and one chunk.
func heads() map[string]*nn.Head {
	return map[string]*nn.Head{
		"uneven":    {Hidden: 22, Vocab: 53, TileRows: 16, ChunkTokens: 7, Norm: nn.Norm{Eps: 1e-5}},
		"one tile":  {Hidden: 10, Vocab: 31, TileRows: 31, ChunkTokens: 5, Norm: nn.Norm{Eps: 1e-5}},
		"one chunk": {Hidden: 10, Vocab: 31, TileRows: 4, ChunkTokens: 64, Norm: nn.Norm{Eps: 1e-5}},
		"capped":    {Hidden: 10, Vocab: 31, TileRows: 12, ChunkTokens: 7, Norm: nn.Norm{Eps: 1e-5}, SoftCap: 1.5},
		"layer norm": {Hidden: 10, Vocab: 31, TileRows: 12, ChunkTokens: 7, Scale: 0.3,
			Norm: nn.Norm{Eps: 1e-5, Layer: true, Bias: true}},
	}
}

func TestHeadGradients(t *testing.T) {
	for name, h := range heads() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnding(t, h, tensor.F32)
			e.run(true)
			rnd := rand.New(rand.NewPCG(7, 8))
			check := func(what string, m, grad device.Mat) {
				checkGradient(t, rnd, what, e.get(m), e.get(grad), func(x []float32) { e.set(m, x) }, e.totalLoss)
				e.run(true)
			}
			check("x", e.x, e.dx)
			for i, f := range e.wNorm.Layout.Fields {
				check("norm "+f.Name, e.wNorm.Mat(i), e.dwNorm.Mat(i))
			}
			for i := range e.tiles {
				check(fmt.Sprint("tile ", i), e.tiles[i], e.dTiles[i])
			}
		})
	}
}

// TestHeadSchedules: tile by tile and all at once give the same bits.
func TestHeadSchedules(t *testing.T) {
	for name, h := range heads() {
		for _, dtype := range []tensor.DType{tensor.F32, tensor.BF16} {
			t.Run(fmt.Sprint(name, " ", dtype), func(t *testing.T) {
				t.Parallel()
				e := newEnding(t, h, dtype)
				results := append([]device.Mat{e.figures, e.stat, e.dxn32, e.dx}, e.dTiles...)
				for i := range e.dwNorm.Layout.Fields {
					results = append(results, e.dwNorm.Mat(i))
				}
				e.run(false)
				var want [][]float32
				for _, m := range results {
					want = append(want, e.get(m))
				}
				e.run(true)
				for i, m := range results {
					sameBits(t, fmt.Sprint("result ", i), e.get(m), want[i])
				}

				// Frozen, the tiles and the norm get no gradient, and the rest stays.
				for i := range e.dTiles {
					e.dTiles[i] = device.Mat{}
				}
				e.dwNorm = nn.Params{}
				for _, visit := range []bool{false, true} {
					e.run(visit)
					sameBits(t, "dx with frozen weights", e.get(e.dx), want[3])
				}
			})
		}
	}
}

// normed is the final norm of a row in float64, times the scale of logits.
func (e *ending) normed(row, weight []float64) (y []float64) {
	mean, squares, n := 0.0, float64(e.h.Norm.Eps), float64(len(row))
	for _, x := range row {
		if e.h.Norm.Layer {
			mean += x / n
		}
	}
	for _, x := range row {
		squares += (x - mean) * (x - mean) / n
	}
	for c, x := range row {
		y = append(y, weight[c]*(x-mean)/math.Sqrt(squares))
		if e.h.Norm.Bias {
			y[c] += float64(e.get(e.wNorm.Mat(1))[c])
		}
		if e.h.Scale != 0 {
			y[c] *= float64(e.h.Scale)
		}
	}
	return y
}

// TestHeadLoss compares logits and figures with float64 arithmetic.
func TestHeadLoss(t *testing.T) {
	for name, h := range heads() {
		e := newEnding(t, h, tensor.F32)
		e.run(false)
		got := e.get(e.figures)
		logits := e.arena.Mat(tensor.F32, positions, h.Vocab)
		for i, w := range e.tiles {
			first, _ := h.Tile(i)
			h.Logits(e.stream, w, first, e.xn, logits)
		}
		e.sync()
		out, x, norm := e.get(logits), e.get(e.x), wide(e.get(e.wNorm.Mat(0)))
		h.Cap(out)
		for p := range positions {
			row := wide(x[p*h.Hidden : (p+1)*h.Hidden])
			normed := e.normed(row, norm)
			sum, products, most, target := 0.0, 0.0, math.Inf(-1), 0.0
			for i, w := range e.tiles {
				first, rows := h.Tile(i)
				tile := e.get(w)
				for r := range rows {
					var z float64
					for c, v := range normed {
						z += v * float64(tile[r*h.Hidden+c])
					}
					if limit := float64(h.SoftCap); limit > 0 {
						z = limit * math.Tanh(z/limit)
					}
					if d := z - float64(out[p*h.Vocab+first+r]); math.Abs(d) > 1e-5 {
						t.Fatalf("%s: logit %d of position %d is off by %g", name, first+r, p, d)
					}
					sum += math.Exp(z)
					products += math.Exp(z) * z
					most = max(most, z)
					if int32(first+r) == e.targetIDs[p] {
						target = z
					}
				}
			}
			want := [device.TokenFigures]float64{math.Log(sum) - target, math.Log(sum) - products/sum, 0}
			if target == most {
				want[2] = 1
			}
			if e.targetIDs[p] < 0 {
				clear(want[:])
			}
			for i, want := range want {
				if d := float64(got[i*positions+p]) - want; math.Abs(d) > 1e-5 {
					t.Errorf("%s: figure %d of position %d is %v, want %v", name, i, p, got[i*positions+p], want)
				}
			}
		}
	}
}

func TestHeadCounting(t *testing.T) {
	for name, h := range heads() {
		r := newRig(t)
		for _, a := range []*device.Arena{device.NewArena(device.Mem{}), r.arena} {
			h.NewStatsWork(a, tensor.BF16, positions)
			h.NewVisitWork(a, tensor.F32, positions)
		}
		counted := device.NewArena(device.Mem{})
		h.NewStatsWork(counted, tensor.BF16, positions)
		h.NewVisitWork(counted, tensor.F32, positions)
		if counted.Peak() != r.arena.Peak() {
			t.Errorf("%s: counted %d, taken %d", name, counted.Peak(), r.arena.Peak())
		}
	}
}

// The visits of a head form its logits once for the statistics, and with the gradients twice, or once if all tiles are
// there at once; each gradient has two products.
func TestHeadMeasure(t *testing.T) {
	h := heads()["uneven"]
	norm, err := tensor.NewLayout(h.Fields()...)
	check(t, err)
	layouts := []*tensor.Layout{norm}
	for i := range h.Tiles() {
		_, rows := h.Tile(i)
		tile, err := tensor.NewLayout(nn.TileFields(rows, h.Hidden)...)
		check(t, err)
		layouts = append(layouts, tile)
	}
	m := nn.Shape{Docs: []int{positions}, DType: tensor.F32}
	product := int64(2 * positions * h.Hidden * h.Vocab)
	for _, c := range []struct {
		to           nn.Direction
		atOnce, keep bool
		want         int64
	}{{nn.Forward, false, false, 1}, {nn.Forward, true, false, 1}, {nn.Backward, false, false, 4},
		{nn.Backward, false, true, 3}, {nn.Backward, true, false, 3}} {
		h.KeepLogits = c.keep
		var products int64
		for _, stage := range h.Stages(c.to, c.atOnce) {
			for _, v := range stage {
				var of []*tensor.Layout
				for _, part := range v.Parts {
					of = append(of, layouts[part])
				}
				products += h.Measure(v, m, of...).Work[nn.OfProducts]
			}
		}
		if products != c.want*product {
			t.Errorf("direction %v, at once %v, kept %v: %d FLOPs, want %d", c.to, c.atOnce, c.keep, products,
				c.want*product)
		}
	}
}

// parts are the head's parts as visits have them: the final norm, and the tiles.
func (e *ending) parts(t *testing.T) (w, g []nn.Params) {
	t.Helper()
	w, g = []nn.Params{e.wNorm}, []nn.Params{e.dwNorm}
	for _, tile := range e.tiles {
		layout, err := tensor.NewLayout(nn.TileFields(tile.Rows, tile.Cols)...)
		check(t, err)
		of := nn.Weights(e.arena.Take(layout.WeightElems*e.dtype.Bytes()), layout, e.dtype)
		e.set(of.Mat(0), e.get(tile))
		w, g = append(w, of), append(g, nn.Gradients(e.arena.Take(layout.StateElems*4), layout))
		clear(e.bytes(g[len(g)-1].Mem))
	}
	return w, g
}

// The visits of a head come to the bits of the operations that they stand for, in both schedules, whether or not logits
// are kept, and leave the sum of the losses. On the way up alone they leave that, too; for logits they write those of
// the rows that are wanted, from the column that is asked for. A temperature divides the logits of losses and
// gradients, as another scale and another bound do, and not those that are written.
func TestHeadVisits(t *testing.T) {
	for name, h := range heads() {
		for i := range 6 {
			h, atOnce, temperature := *h, i%4 == 1, float32(1)
			h.KeepLogits, h.Stops = i == 2, i == 3
			tempered := h
			if i > 3 {
				temperature = 2.5
				tempered.Scale, tempered.SoftCap = cmp.Or(h.Scale, 1)/temperature, h.SoftCap/temperature
			}
			what := fmt.Sprintf("%s, at once %v, kept %v, stops %v, temperature %v", name, atOnce, h.KeepLogits, h.Stops,
				temperature)
			e := newEnding(t, &tempered, tensor.F32)
			e.run(false)
			want, figures := e.results(), e.get(e.figures)
			clear(e.bytes(e.dwNorm.Mem))
			w, g := e.parts(t)
			sum, logits := e.arena.Take(8*device.TokenFigures), e.arena.Mat(tensor.F32, 3, h.Vocab+2)
			visit := func(to nn.Direction) {
				of := h.NewEnding(e.arena, e.dtype, positions, to == nn.Backward)
				of.AtOnce, of.ByTile = h.NewVisitWork(e.arena, e.dtype, positions), h.NewStatsWork(e.arena, e.dtype, positions)
				kept := make([]*nn.HeadWork, 1+h.Tiles())
				for i := range h.Tiles() {
					kept[1+i] = h.NewKept(e.arena, of.ByTile, i, positions)
				}
				e.poison(sum)
				for _, stage := range h.Stages(to, atOnce) {
					for _, v := range stage {
						if v.OnHost {
							continue
						}
						a := &nn.Args{X: e.x, DX: e.dx, Ending: of, Loss: sum, Batch: &nn.MicroBatch{T: positions,
							Targets: e.targets, Weights: e.weights}}
						if to != nn.Logits {
							a.Temperature = temperature
						}
						for _, part := range v.Parts {
							a.Weights, a.Gradients = append(a.Weights, w[part]), append(a.Gradients, g[part])
							if a.Wanted = (nn.Wanted{First: 4, Rows: 3, To: logits}); to == nn.Logits && part > 0 {
								first, _ := h.Tile(part - 1)
								a.Wanted.FirstColumn = 2 + first
							}
							if h.KeepLogits && part > 0 {
								ending := *of
								ending.ByTile, a.Ending = kept[part], &ending
							}
						}
						v.Run(e.stream, asDeclared(v, a))
					}
				}
				e.sync()
				for i := range device.TokenFigures {
					want := dot(figures[i*positions:][:positions], slices.Repeat([]float32{1}, positions))
					got := math.Float64frombits(binary.LittleEndian.Uint64(e.bytes(sum)[8*i:]))
					if to != nn.Logits && !(math.Abs(got-want) <= 1e-5*want) {
						t.Errorf("%s, direction %v: the sum of figures %d is %v, want %v", what, to, i, got, want)
					}
				}
			}
			visit(nn.Backward)
			got := [][]float32{e.get(e.dx)}
			for _, of := range g[1:] {
				got = append(got, e.get(of.Mat(0)))
			}
			for i := range e.dwNorm.Layout.Fields {
				got = append(got, e.get(e.dwNorm.Mat(i)))
			}
			for i := range want {
				sameBits(t, fmt.Sprintf("%s: result %d", what, i), got[i], want[i])
			}
			visit(nn.Forward)
			visit(nn.Logits)
			all := e.arena.Mat(tensor.F32, positions, h.Vocab)
			h.NormForward(e.stream, e.wNorm, e.x, e.xn, e.stats)
			for i, tile := range e.tiles {
				first, _ := h.Tile(i)
				h.Logits(e.stream, tile, first, e.xn, all)
			}
			e.sync()
			for row, want := 0, e.get(all)[4*h.Vocab:]; row < 3; row++ {
				sameBits(t, what+": logits", e.get(logits)[row*(h.Vocab+2)+2:][:h.Vocab], want[row*h.Vocab:][:h.Vocab])
			}
			for p, row := range slices.Collect(slices.Chunk(e.get(all), h.Vocab)) {
				sum, target := 0.0, e.targetIDs[p]
				h.Cap(row)
				for _, x := range row {
					sum += math.Exp(float64(x / temperature))
				}
				if target < 0 {
					continue
				}
				if want := math.Log(sum) - float64(row[target]/temperature); math.Abs(float64(figures[p])-want) > 1e-5 {
					t.Errorf("%s: the loss of position %d is %v, of its logits %v", what, p, figures[p], want)
				}
			}
		}
	}
}

// results are the gradients of the input, of the tiles and of the norm.
func (e *ending) results() (all [][]float32) {
	for _, m := range append([]device.Mat{e.dx}, e.dTiles...) {
		all = append(all, e.get(m))
	}
	for i := range e.dwNorm.Layout.Fields {
		all = append(all, e.get(e.dwNorm.Mat(i)))
	}
	return all
}
