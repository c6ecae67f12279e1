package model_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// reference computes a model's loss and gradients in the plainest way: all weights, all gradients and all that a
// micro-batch leaves are in one buffer of the CPU device, and one stream does one thing after the other.
type reference struct {
	t      *testing.T
	m      *model.Model
	dtype  tensor.DType
	memory []byte
	s      device.Stream
	arena  *device.Arena
	w, g   []nn.Params // by part

	constants []device.Mat // by block
	cut       nn.Cut       // of visits of blocks
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newReference loads a model directory.
func newReference(t *testing.T, dir string, dtype tensor.DType, level isa.Level) *reference {
	t.Helper()
	m, err := model.Read(dir)
	check(t, err)
	dev, err := cpu.New(cpu.Options{Workers: 2, Level: &level})
	check(t, err)
	region, err := hostmem.New().Reserve("reference", 64<<20)
	check(t, err)
	buf, err := dev.Register(region)
	check(t, err)
	s, err := dev.NewStream("reference")
	check(t, err)
	t.Cleanup(func() {
		check(t, s.Close())
		check(t, buf.Close())
		check(t, dev.Close())
		check(t, region.Close())
	})
	r := &reference{t: t, m: m, dtype: dtype, memory: region.Bytes(), s: s, arena: device.NewArena(device.Whole(buf))}
	w, err := hf.OpenWeights(dir)
	check(t, err)
	defer w.Close()
	check(t, m.Check(t.Context(), w))
	check(t, m.ReadConstants(w))
	for i, b := range m.Blocks {
		var of device.Mat
		if n := b.FeedConstants(); n > 0 {
			of = r.arena.Mat(tensor.F32, 1, n)
			r.put(of.Mem, m.Constants[i])
		}
		r.constants = append(r.constants, of)
	}
	for i := range m.Parts {
		p := &m.Parts[i]
		v := newValues(p, dtype == tensor.BF16)
		check(t, m.ReadPart(w, p, v))
		mem := r.arena.Take(p.Layout.WeightElems * dtype.Bytes())
		r.put(mem, any(v.F32))
		if dtype == tensor.BF16 {
			r.put(mem, any(v.High))
		}
		r.w = append(r.w, nn.Weights(mem, p.Layout, dtype))
		r.g = append(r.g, nn.Gradients(r.arena.Take(p.Layout.StateElems*4), p.Layout))
	}
	return r
}

func (r *reference) put(m device.Mem, x any) {
	_, err := binary.Encode(r.memory[m.Off:m.Off+m.Len], binary.LittleEndian, x)
	check(r.t, err)
}

func (r *reference) take(x []int32) device.Mem {
	m := r.arena.Take(int64(4 * len(x)))
	r.put(m, x)
	return m
}

func (r *reference) floats(m device.Mat) []float32 {
	n, memory := m.Rows*m.Cols, r.memory[m.Off:m.Off+m.Len]
	x := make([]float32, n)
	if m.DType == tensor.F32 {
		_, err := binary.Decode(memory, binary.LittleEndian, x)
		check(r.t, err)
		return x
	}
	for i := range x {
		x[i] = tensor.F32FromBF16(binary.LittleEndian.Uint16(memory[2*i:]))
	}
	return x
}

// run computes the loss of a batch, the logits of each micro-batch, and adds up the gradients.
func (r *reference) run(b modeltest.Batch, keep nn.Keep) (loss float64, logits [][]float32) {
	for _, g := range r.g {
		r.s.Zero(g.Mem)
	}
	scale, rows := float32(1/float64(b.TargetCount())), len(b)
	if slices.ContainsFunc(r.m.GroupParts, func(parts []int) bool { return len(parts) > 0 }) {
		b = modeltest.Batch{b.Join()} // parts see the whole step at once
	}
	for _, micro := range b {
		mark := r.arena.Mark()
		of := r.microBatch(micro, scale, keep)
		for _, x := range of.losses {
			loss += float64(x)
		}
		logits = append(logits, of.logits)
		r.arena.Release(mark)
	}
	if len(b) < rows {
		logits = slices.Collect(slices.Chunk(logits[0], len(logits[0])/rows))
	}
	return loss / float64(b.TargetCount()), logits
}

// visits runs a block's visits in one direction.
func (r *reference) visits(block int, to nn.Direction, args nn.Args) {
	for _, stage := range r.m.Blocks[block].Stages(to, false) {
		a := args
		if a.Held != nil && stage[0].Over == nn.EachMicro {
			a.Held = a.Held.Micro(0)
		}
		for _, i := range stage[0].Parts {
			part := r.m.LayerParts(1 + block)[i]
			a.Weights, a.Gradients = append(a.Weights, r.w[part]), append(a.Gradients, r.g[part])
		}
		stage[0].Run(r.s, &a)
	}
}

// positions holds the values of a micro-batch's positions, one after the other.
type positions struct {
	losses, logits  []float32
	inputs, lookups []float32 // gradients of rows of the embedding, and of the side that is looked up, before they are added up
}

func (r *reference) microBatch(micro batch.Micro, scale float32, keep nn.Keep) (of positions) {
	m, s, a := r.m, r.s, r.arena
	n := len(micro.IDs)
	place := slices.Clone(micro.Positions)
	m.Rotary().Place(place, micro.DocStart, micro.DocEnd, n)
	b := &nn.MicroBatch{T: n, IDs: r.take(micro.IDs), Targets: r.take(micro.Targets),
		Docs: device.Docs{Positions: r.take(place), Start: r.take(micro.DocStart), End: r.take(micro.DocEnd)}}
	ropes := map[nn.RopeFrequencies]*nn.Rope{{}: nil}
	for _, block := range m.Blocks {
		f := block.Rotary()
		if _, ok := ropes[f]; ok {
			continue
		}
		rows := f.Rows(n)
		cos, sin := f.Tables(n, 0, rows)
		ropes[f] = &nn.Rope{Cos: a.Mat(tensor.F32, rows, f.HeadDim/2), Sin: a.Mat(tensor.F32, rows, f.HeadDim/2)}
		r.put(ropes[f].Cos.Mem, cos)
		r.put(ropes[f].Sin.Mem, sin)
	}

	x := []device.Mat{a.Mat(r.dtype, n, m.Hidden)}
	for _, i := range m.EmbedTiles {
		s.Gather(x[0], r.w[i].Mat(0), b.IDs, m.Parts[i].FirstRow)
	}
	s.Scale(x[0], x[0], m.EmbedScale(r.dtype))
	var sides, sideGrads []device.Mat
	for _, side := range m.Sides {
		rows := a.Mat(r.dtype, n, side.Cols)
		if l := side.Lookup; l != nil {
			for _, i := range l.Tiles {
				s.Gather(rows, r.w[i].Mat(0), b.IDs, m.Parts[i].FirstRow)
			}
			s.Scale(rows, rows, l.Scale(r.dtype))
		}
		sides, sideGrads = append(sides, rows), append(sideGrads, a.Mat(r.dtype, n, side.Cols))
	}
	sidesOf := func(block int) (all []nn.SideRows) {
		for _, s := range m.Blocks[block].Sides() {
			rows := nn.SideRows{Value: sides[s.Number], Grad: sideGrads[s.Number],
				Fresh: s.Sliced || 1+block == m.Sides[s.Number].Last()}
			if s.Sliced {
				rows.Grad = rows.Value
			}
			if s.Sliced && !s.Makes {
				rows = rows.Columns(block*s.Cols, s.Cols)
			}
			all = append(all, rows)
		}
		return all
	}
	var kept []*nn.Kept
	var outcomes []device.Mat
	for l, block := range m.Blocks {
		outcome := device.Mat{}
		if block.LeavesOutcome() {
			outcome = a.Mat(r.dtype, n, m.Hidden)
		}
		outcomes = append(outcomes, outcome)
		x = append(x, a.Mat(r.dtype, n, m.Hidden))
		kept = append(kept, block.NewKept(a, r.dtype, n, keep))
		r.visits(l, nn.Forward, nn.Args{X: x[l], Y: x[l+1], Batch: b, Rope: ropes[block.Rotary()],
			Constants: r.constants[l],
			Scalar:    m.Scalar(l),
			Kept:      kept[l],
			Outcome:   outcomes[l],
			Sides:     sidesOf(l),
			Held:      block.NewHeld(a, r.dtype, n, 1, true),
			Work:      block.NewForwardWork(a, r.dtype, n, r.cut, keep)})
	}

	h, top := &m.Head, x[len(m.Blocks)]
	dx := a.Mat(r.dtype, n, m.Hidden)
	e := h.NewEnding(a, r.dtype, n, true)
	xn, stats, stat, dxn := e.Normed, e.Stats, e.Stat, e.DNormed
	all := a.Mat(tensor.F32, n, m.Vocab)
	var tiles, dTiles []device.Mat
	for _, i := range m.HeadTiles {
		tiles, dTiles = append(tiles, r.w[i].Mat(0)), append(dTiles, r.g[i].Mat(0))
	}
	norm, dNorm := r.w[m.NormPart], r.g[m.NormPart]
	h.NormForward(s, norm, top, xn, stats)
	for i, w := range tiles {
		first, _ := h.Tile(i)
		h.Logits(s, w, first, xn, all)
	}
	weights := a.Mat(tensor.F32, 1, n).Mem
	r.put(weights, slices.Repeat([]float32{scale}, n))
	s.LSEInit(stat)
	h.Visit(s, tiles, dTiles, xn, stat, dxn, false, b.Targets, weights, h.NewVisitWork(a, r.dtype, n))
	s.TokenLoss(e.Figures, stat, b.Targets)
	h.NormBackward(s, norm, dNorm, top, stats, dxn, dx)

	for l := len(m.Blocks) - 1; l >= 0; l-- {
		block := m.Blocks[l]
		r.visits(l, nn.Backward, nn.Args{X: x[l], DX: dx, Batch: b, Rope: ropes[block.Rotary()],
			Constants: r.constants[l],
			Scalar:    m.Scalar(l),
			Kept:      kept[l],
			Outcome:   outcomes[l],
			Sides:     sidesOf(l),
			Held:      block.NewHeld(a, r.dtype, n, 1, true),
			Work:      block.NewBackwardWork(a, r.dtype, n, r.cut, keep)})
	}
	for _, i := range m.EmbedTiles {
		s.ScatterAdd(r.g[i].Mat(0), dx, b.IDs, m.Parts[i].FirstRow, m.EmbedScale(dx.DType))
	}
	for i, side := range m.Sides {
		if side.Lookup == nil {
			continue
		}
		for _, part := range side.Lookup.Tiles {
			s.ScatterAdd(r.g[part].Mat(0), sides[i], b.IDs, m.Parts[part].FirstRow, side.Lookup.Scale(r.dtype))
		}
	}
	check(r.t, s.Sync())
	of = positions{losses: r.floats(e.Figures.RowRange(0, 1)), logits: r.floats(all), inputs: r.floats(dx)}
	h.Cap(of.logits)
	for i, side := range m.Sides {
		if side.Lookup != nil {
			of.lookups = r.floats(sides[i])
		}
	}
	return of
}

// gradient puts the gradient of one tensor together.
func (r *reference) gradient(out model.Tensor) []float32 {
	all := make([]float32, out.Shape.Elems())
	check(r.t, out.Read(all, 0, func(part, field int, dst []float32, first int64) error {
		copy(dst, r.floats(r.g[part].Mat(field))[first:])
		return nil
	}))
	return all
}

// TestGolden compares loss, logits and every gradient with PyTorch and transformers, in fp32, with each set of
// instructions that this machine has. Gradients are compared as far as modeltest.Gradient has them: the difference of
// each tensor by its norm, and each number, which is within 1e-4 of itself plus 1e-5 of the tensor's largest.
func TestGolden(t *testing.T) {
	for _, variant := range modeltest.Variants(t) {
		g := modeltest.Load(t, variant)
		for _, level := range isa.Available() {
			t.Run(fmt.Sprint(variant, " ", level), func(t *testing.T) {
				t.Parallel()
				testGolden(t, g, newReference(t, g.Dir, tensor.F32, level))
			})
		}
	}
}

func testGolden(t *testing.T, g *modeltest.Golden, r *reference) {
	loss, logits := r.run(g.First, nn.KeepAttention)
	if math.Abs(loss/float64(g.Loss)-1) > modeltest.WithinLogits {
		t.Errorf("loss %v, want %v", loss, g.Loss)
	}
	var worstLogit, worstNorm, worstElem float64
	for i := range g.Logits {
		worstLogit = max(worstLogit, modeltest.MaxDiff(logits[i], g.Logits[i]))
	}
	if worstLogit > modeltest.WithinLogits {
		t.Errorf("logits differ by %.2g", worstLogit)
	}
	for _, out := range r.m.Tensors() {
		got, want := r.gradient(out), g.Grads[out.Name]
		norm, elem := want.RelDiff(got), want.ElementDiff(got, 1e-4, 1e-5)
		if !(norm <= modeltest.WithinGradients) || !(elem <= 1) {
			t.Errorf("gradient of %s differs by %.2g of its norm, and a product by %.2g times the tolerance",
				out.Name, norm, elem)
		}
		worstNorm, worstElem = max(worstNorm, norm), max(worstElem, elem)
	}
	t.Logf("logits within %.2g, gradients within %.2g of their norm, products within %.2g times the tolerance",
		worstLogit, worstNorm, worstElem)
}

// A padding token is trained as any other: where the documents have it as a word, its row of the embedding's gradient
// is the derivative. transformers leaves the embedding's share of that row out, and agrees in all others.
func TestPaddingTokenIsTrained(t *testing.T) {
	const token = 8
	g := modeltest.Load(t, "llama-padding")
	c, err := hf.ReadConfig(g.Dir)
	check(t, err)
	if pad := c.Reader().IntOr("pad_token_id", -1); pad != token || g.Padded == nil {
		t.Fatalf("the padding token of the golden case is %d, want %d", pad, token)
	}
	r := newReference(t, g.Dir, tensor.F32, isa.Best())
	r.run(g.First, nn.KeepAttention)
	for _, out := range r.m.Tensors() {
		if out.Name != "model.embed_tokens.weight" {
			continue
		}
		got, width := r.gradient(out), int(out.Shape[1])
		if differs := g.Grads[out.Name].ElementDiff(got, 1e-4, 1e-5); !(differs <= 1) {
			t.Errorf("the gradient of a token differs from the derivative by %.2g times the tolerance", differs)
		}
		for row := range g.Vocab {
			at := func(x []float32) []float32 { return x[row*width : (row+1)*width] }
			differs := modeltest.RelDiff(at(got), at(g.Padded))
			if is := differs > 1e-4; is != (row == token) {
				t.Errorf("the gradient of token %d differs by %.2g from that of transformers", row, differs)
			}
		}
	}
}

// TestGoldenBF16 compares the loss in bf16 compute with PyTorch's under autocast.
func TestGoldenBF16(t *testing.T) {
	for _, variant := range modeltest.Variants(t) {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			g := modeltest.Load(t, variant)
			r := newReference(t, g.Dir, tensor.BF16, isa.Best())
			loss, _ := r.run(g.Steps[0].Batch, nn.KeepAll)
			if want := float64(g.Steps[0].LossBF16); math.Abs(loss/want-1) > modeltest.WithinBF16 {
				t.Errorf("loss %v, want %v", loss, want)
			}
			for _, out := range r.m.Tensors() {
				for _, x := range r.gradient(out) {
					if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
						t.Fatalf("the gradient of %s has a %v", out.Name, x)
					}
				}
			}
		})
	}
}
