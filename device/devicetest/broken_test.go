package devicetest_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/devicetest"
)

// broken changes the streams of a device by wrap.
type broken struct {
	device.Device
	wrap func(device.Stream) device.Stream
}

func (d broken) NewStream(name string) (device.Stream, error) {
	s, err := d.Device.NewStream(name)
	if err != nil {
		return nil, err
	}
	return d.wrap(s), nil
}

// Each type breaks one operation in a way that drivers do.
type (
	addTooFar    struct{ device.Stream }
	forgetsC     struct{ device.Stream }
	forgetsResid struct{ device.Stream }
	noWindow     struct{ device.Stream }
	noDocuments  struct{ device.Stream }
	noSinks      struct{ device.Stream }
	noSlope      struct{ device.Stream }
	overSinks    struct{ device.Stream }
	noLogitCap   struct{ device.Stream }
	noEntropies  struct{ device.Stream }
	turnsBack    struct{ device.Stream }
	forgetsBias  struct{ device.Stream }
	firstHead    struct{ device.Stream }
	zeroTargets  struct{ device.Stream }
	fromZero     struct{ device.Stream }
	wholeCache   struct{ device.Stream }
	noTable      struct{ device.Stream }
	putsAll      struct{ device.Stream }
	noTail       struct{ device.Stream }
	noState      struct{ device.Stream }
	noStarts     struct{ device.Stream }
	deltaEnds    struct{ device.Stream }
	noConvGrad   struct{ device.Stream }
	otherGate    struct{ device.Stream }
	swapsGates   struct{ device.Stream }
	noOffset     struct{ device.Stream }
	noShift      struct{ device.Stream }
	leavesResid  struct{ device.Stream }
	otherGELU    struct{ device.Stream }
	otherEps     struct{ device.Stream }
	otherScale   struct{ device.Stream }
	lastMoves    struct{ device.Stream }
	otherWords   struct{ device.Stream }
	otherNoise   struct{ device.Stream }
	drawsPadding struct{ device.Stream }
	halves       struct{ device.Stream }
	truncates    struct{ device.Stream }
	never        struct{ device.Stream }
)

func (s addTooFar) Add(y, a, b device.Mat) {
	s.Stream.Add(y, a, b)
	if y.Rows > 1 && y.Stride > y.Cols {
		s.Stream.Zero(y.Mem.Slice(int64(y.Cols)*y.DType.Bytes(), y.DType.Bytes()))
	}
}

func (s forgetsC) MatMul(c, a, b device.Mat, f device.MatMulFlags) {
	f.Accumulate = false
	s.Stream.MatMul(c, a, b, f)
}

func (s forgetsResid) RMSNormGrad(dx, dw, dy, x, w, rstd, resid device.Mat, spec device.NormSpec) {
	s.Stream.RMSNormGrad(dx, dw, dy, x, w, rstd, device.Mat{}, spec)
}

func (s noOffset) RMSNorm(y, rstd, x, w device.Mat, spec device.NormSpec) {
	spec.Offset = 0
	s.Stream.RMSNorm(y, rstd, x, w, spec)
}

func (s noShift) LayerNorm(y, stat, x, w, b device.Mat, eps float32) {
	s.Stream.LayerNorm(y, stat, x, w, device.Mat{}, eps)
}

func (s leavesResid) LayerNormGrad(dx, dw, dy, x, w, stat, resid device.Mat) {
	s.Stream.LayerNormGrad(dx, dw, dy, x, w, stat, device.Mat{})
}

func (s otherGELU) GLU(y, gateUp device.Mat, spec device.GLUSpec) {
	if spec.Gate == device.GELU {
		spec.Gate = device.GELUTanh
	}
	s.Stream.GLU(y, gateUp, spec)
}

func (s noWindow) Attention(out, lse, q, k, v device.Mat, spec device.AttentionSpec) {
	spec.Window = 0
	s.Stream.Attention(out, lse, q, k, v, spec)
}

func (s noDocuments) AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta device.Mat, spec device.AttentionSpec) {
	s.Stream.Zero(spec.Docs.Start)
	s.Stream.AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta, spec)
}

func (s noSinks) Attention(out, lse, q, k, v device.Mat, spec device.AttentionSpec) {
	spec.Sinks = device.Mat{}
	s.Stream.Attention(out, lse, q, k, v, spec)
}

func (s noSlope) AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta device.Mat, spec device.AttentionSpec) {
	spec.SoftCap = 0
	s.Stream.AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta, spec)
}

func (s overSinks) SinkGrad(dsinks, sinks, lse, delta device.Mat) {
	s.Stream.Zero(dsinks.Mem)
	s.Stream.SinkGrad(dsinks, sinks, lse, delta)
}

func (s firstHead) SplitHeads(a, b, y device.Mat, heads int) {
	s.Stream.SplitHeads(a, b, y, heads)
	if d := y.Cols / heads; b.Cols == d-a.Cols/heads { // shared
		s.Stream.SplitHeads(a.ColRange(0, a.Cols/heads), b, y.ColRange(0, d), 1)
	}
}

func (s noLogitCap) CrossEntropyGrad(dlogits, logits, stat device.Mat, targets, weights, entropySlopes device.Mem,
	first int, softCap float32) {
	s.Stream.CrossEntropyGrad(dlogits, logits, stat, targets, weights, entropySlopes, first, 0)
}

func (s noEntropies) CrossEntropyGrad(dlogits, logits, stat device.Mat, targets, weights, entropySlopes device.Mem,
	first int, softCap float32) {
	s.Stream.CrossEntropyGrad(dlogits, logits, stat, targets, weights, device.Mem{}, first, softCap)
}

func (s turnsBack) RoPE(y, x, bias device.Mat, heads int, cos, sin device.Mat, positions device.Mem, inverse bool) {
	s.Stream.RoPE(y, x, bias, heads, cos, sin, positions, false)
}

func (s forgetsBias) RoPE(y, x, bias device.Mat, heads int, cos, sin device.Mat, positions device.Mem, inverse bool) {
	s.Stream.RoPE(y, x, device.Mat{}, heads, cos, sin, positions, inverse)
}

func (s zeroTargets) CrossEntropyGrad(dlogits, logits, stat device.Mat, targets, weights, entropySlopes device.Mem,
	first int, softCap float32) {
	s.Stream.Zero(targets)
	s.Stream.CrossEntropyGrad(dlogits, logits, stat, targets, weights, entropySlopes, first, softCap)
}

func (s fromZero) Gather(y, table device.Mat, ids device.Mem, first int) {
	s.Stream.Gather(y, table, ids, 0)
}

func (s wholeCache) AttendCache(out, q, k, v device.Mat, spec device.AttentionSpec) {
	s.Stream.Zero(spec.Docs.Start)
	s.Stream.AttendCache(out, q, k, v, spec)
}

func (s noTable) AttendCache(out, q, k, v device.Mat, spec device.AttentionSpec) {
	spec.Blocks = device.CacheBlocks{}
	s.Stream.AttendCache(out, q, k, v, spec)
}

func (s putsAll) Put(cache, x device.Mat, at device.Mem) {
	s.Stream.Put(cache, x, at)
	s.Stream.Copy(cache.RowRange(0, 1).Mem, x.RowRange(0, 1).Mem)
}

func (s noTail) ContinueConv(y, tail, x, w device.Mat, of device.Continued) {
	s.Stream.Zero(tail.RowRange(0, 1).Mem)
	s.Stream.ContinueConv(y, tail, x, w, of)
}

func (s noState) ContinueDelta(out, states, qkv, decay, beta device.Mat, spec device.DeltaSpec, each int) {
	s.Stream.Zero(states.RowRange(0, 1).Mem)
	s.Stream.ContinueDelta(out, states, qkv, decay, beta, spec, each)
}

func (s noStarts) CausalConv(y, x, w device.Mat, docs device.Docs) {
	s.Stream.Zero(docs.Start)
	s.Stream.CausalConv(y, x, w, docs)
}

func (s deltaEnds) GatedDelta(out, states, qkv, decay, beta device.Mat, spec device.DeltaSpec) {
	s.Stream.GatedDelta(out, states, qkv, decay, beta, spec)
	s.Stream.Zero(states.Mem) // as if each chunk began a document
}

func (s noConvGrad) CausalConvGrad(dx, dw, dy, x, w device.Mat, docs device.Docs) {
	s.Stream.CausalConvGrad(dx, device.Mat{}, dy, x, w, docs)
}

func (s otherGate) GateGrad(dx, dgate, dy, x, gate device.Mat, kind device.GateKind) {
	s.Stream.GateGrad(dx, dgate, dy, x, gate, device.SigmoidGate)
}

func (s swapsGates) DeltaGatesGrad(da, db, daLog, ddtBias, ddecay, dbeta, a, b, aLog, dtBias device.Mat) {
	s.Stream.DeltaGatesGrad(da, db, ddtBias, daLog, ddecay, dbeta, a, b, aLog, dtBias)
}

func (s otherEps) AdamW(args device.AdamWArgs, tally device.Mem) {
	args.Eps *= 1.01
	s.Stream.AdamW(args, tally)
}

func (s otherScale) AdamW8(args device.AdamW8Args, tally device.Mem) {
	args.MScale, args.VScale = args.VScale, args.MScale
	s.Stream.AdamW8(args, tally)
}

func (s lastMoves) AdamW(args device.AdamWArgs, tally device.Mem) {
	s.Stream.Zero(tally.Slice(8, 8))
	s.Stream.AdamW(args, tally)
}

func (s otherWords) AdamW(args device.AdamWArgs, tally device.Mem) {
	args.Draw.First += device.DrawTogether
	s.Stream.AdamW(args, tally)
}

func (s otherNoise) DrawTokens(drawn, stat, logits device.Mat, draws device.Mem, first, vocab int, softCap float32) {
	s.Stream.Zero(draws.Slice(16, 4)) // the place of the first row's token
	s.Stream.DrawTokens(drawn, stat, logits, draws, first, vocab, softCap)
}

func (s drawsPadding) DrawTokens(drawn, stat, logits device.Mat, draws device.Mem, first, vocab int,
	softCap float32) {
	s.Stream.DrawTokens(drawn, stat, logits, draws, first, vocab+1, softCap)
}

func (s halves) SumSquares(dst device.Mem, x device.Mat) {
	s.Stream.SumSquares(dst, x.ColRange(0, (x.Cols+1)/2))
}

func (s truncates) Copy(dst, src device.Mem) {
	s.Stream.Copy(dst.Slice(0, dst.Len-1), src.Slice(0, src.Len-1))
}

func (s never) Wait(device.Event) {}

// breaks lists the broken devices and the tests of the suite that must notice.
var breaks = []struct {
	name, noticed string
	wrap          func(device.Stream) device.Stream
}{
	{"writes past its columns", "Add", func(s device.Stream) device.Stream { return addTooFar{s} }},
	{"forgets to accumulate", "MatMul", func(s device.Stream) device.Stream { return forgetsC{s} }},
	{"forgets the offset", "RMSNorm", func(s device.Stream) device.Stream { return noOffset{s} }},
	{"forgets the bias of a layer norm", "LayerNorm", func(s device.Stream) device.Stream { return noShift{s} }},
	{"forgets the residual of a layer norm", "LayerNormGrad",
		func(s device.Stream) device.Stream { return leavesResid{s} }},
	{"takes one GELU for the other", "GLU", func(s device.Stream) device.Stream { return otherGELU{s} }},
	{"forgets the residual", "RMSNormGrad", func(s device.Stream) device.Stream { return forgetsResid{s} }},
	{"ignores the window", "Attention", func(s device.Stream) device.Stream { return noWindow{s} }},
	{"attends across documents", "Attention", func(s device.Stream) device.Stream { return noDocuments{s} }},
	{"forgets the sinks", "Attention", func(s device.Stream) device.Stream { return noSinks{s} }},
	{"forgets the soft cap in the gradient", "Attention", func(s device.Stream) device.Stream { return noSlope{s} }},
	{"overwrites the gradient of sinks", "Attention", func(s device.Stream) device.Stream { return overSinks{s} }},
	{"takes the first head for the sum of heads", "Heads", func(s device.Stream) device.Stream { return firstHead{s} }},
	{"forgets the soft cap of logits", "CrossEntropy", func(s device.Stream) device.Stream { return noLogitCap{s} }},
	{"leaves out what moves with entropies", "CrossEntropy",
		func(s device.Stream) device.Stream { return noEntropies{s} }},
	{"never turns back", "RoPE", func(s device.Stream) device.Stream { return turnsBack{s} }},
	{"forgets the bias of a rotation", "RoPE", func(s device.Stream) device.Stream { return forgetsBias{s} }},
	{"takes all targets for token 0", "CrossEntropy", func(s device.Stream) device.Stream { return zeroTargets{s} }},
	{"ignores where a table begins", "Gather", func(s device.Stream) device.Stream { return fromZero{s} }},
	{"attends the sequences before", "AttendCache", func(s device.Stream) device.Stream { return wholeCache{s} }},
	{"ignores the table of a cache", "AttendCache", func(s device.Stream) device.Stream { return noTable{s} }},
	{"puts a row where it has no place", "Put", func(s device.Stream) device.Stream { return putsAll{s} }},
	{"forgets a row that a convolution keeps", "ContinueConv",
		func(s device.Stream) device.Stream { return noTail{s} }},
	{"forgets a state between operations", "ContinueDelta", func(s device.Stream) device.Stream { return noState{s} }},
	{"convolves across documents", "CausalConv", func(s device.Stream) device.Stream { return noStarts{s} }},
	{"forgets the gradient of taps", "CausalConv", func(s device.Stream) device.Stream { return noConvGrad{s} }},
	{"forgets the kind of a gate", "Gate", func(s device.Stream) device.Stream { return otherGate{s} }},
	{"swaps the gradients of a delta net's gates", "DeltaGates",
		func(s device.Stream) device.Stream { return swapsGates{s} }},
	{"forgets the states of chunks", "GatedDelta", func(s device.Stream) device.Stream { return deltaEnds{s} }},
	{"rounds AdamW otherwise", "AdamW", func(s device.Stream) device.Stream { return otherEps{s} }},
	{"forgets the longest move of before", "AdamW", func(s device.Stream) device.Stream { return lastMoves{s} }},
	{"rounds weights by words of other parameters", "AdamW", func(s device.Stream) device.Stream { return otherWords{s} }},
	{"draws a token by the words of another one", "DrawTokens",
		func(s device.Stream) device.Stream { return otherNoise{s} }},
	{"draws padding of the vocabulary", "DrawTokens", func(s device.Stream) device.Stream { return drawsPadding{s} }},
	{"swaps the scales of moments", "AdamW8", func(s device.Stream) device.Stream { return otherScale{s} }},
	{"sums too little", "Sums", func(s device.Stream) device.Stream { return halves{s} }},
	{"copies too little", "Copy", func(s device.Stream) device.Stream { return truncates{s} }},
	{"waits for nothing", "Events", func(s device.Stream) device.Stream { return never{s} }},
}

// brokenRun asks TestBroken to run; TestSuiteNotices sets it for processes of their own.
const brokenRun = "MILLRACE_TEST_BROKEN_DEVICE"

func TestBroken(t *testing.T) {
	wanted, ok := os.LookupEnv(brokenRun)
	if !ok {
		t.Skip("the devices are broken on purpose")
	}
	for _, b := range breaks {
		if b.name == wanted {
			devicetest.Run(t, func() device.Device { return broken{openCPU(t), b.wrap} })
		}
	}
}

// The suite notices each of the ways to be wrong.
func TestSuiteNotices(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process for each broken device")
	}
	for _, b := range breaks {
		t.Run(b.name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestBroken$/^"+b.noticed+"$", "-test.v")
			cmd.Env = append(os.Environ(), brokenRun+"="+b.name)
			out, err := cmd.CombinedOutput()
			if _, failed := err.(*exec.ExitError); !failed {
				t.Errorf("the suite passes (%v):\n%s", err, out)
			}
		})
	}
}
