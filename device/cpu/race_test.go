package cpu_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

// work has the operations that both a stream and device.Operands understand.
type work interface {
	Copy(dst, src device.Mem)
	Zero(dst device.Mem)
	device.LinearOps
	device.ElementOps
	device.NormOps
	device.AttentionOps
	device.MLPOps
	device.HeadOps
	device.EmbeddingOps
	device.ConvOps
	device.GateOps
	device.DeltaOps
	device.OptimizerOps
}

// calls are one call of each operation, each with memory of its own: the detector reports an address once. All memory is
// zero, which is valid nearly everywhere: one document, token 0. The last calls need positions, of one sequence.
func calls(sp *space) []func(w work) {
	const rows, groups, d = 5, 2, 6
	a := sp.arena
	f32 := func(rows, cols int) device.Mat { return a.Mat(tensor.F32, rows, cols) }
	x := func() device.Mat { return f32(rows, groups*d) }
	// Some columns of a wider matrix: the ranges are reported row by row.
	part := func() device.Mat { return x().ColRange(1, 7) }
	ids := func() device.Mem { return a.Take(4 * rows) }
	spec := func() device.AttentionSpec {
		return device.AttentionSpec{Heads: groups, KVHeads: groups, HeadDim: d, Scale: 1, Docs: device.Docs{Positions: ids(), Start: ids(), End: ids()}}
	}
	sunk := spec()
	sunk.Sinks = f32(1, groups)
	weights, low := a.Mat(tensor.BF16, 1, 7), a.Mat(tensor.I16, 1, 7)
	adamw := device.AdamWArgs{Weights: weights, Low: low, Grad: f32(1, 7), M: f32(1, 7), V: f32(1, 7)}
	const block = tensor.MomentBlock
	weights8, low8 := a.Mat(tensor.BF16, 1, block), a.Mat(tensor.I16, 1, block)
	adamw8 := device.AdamW8Args{Weights: weights8, Low: low8, Grad: f32(1, block), M: a.Mat(tensor.U8, 1, block),
		V: a.Mat(tensor.U8, 1, block), MScale: f32(1, 1), VScale: f32(1, 1)}
	docs := func() device.Docs { return device.Docs{Start: ids(), End: ids()} }
	net := func() device.DeltaSpec {
		return device.DeltaSpec{KeyHeads: 1, Heads: groups, KeyDim: 3, ValueDim: d, Docs: docs()}
	}
	positions := func() device.Docs {
		docs := docs()
		for i := range rows {
			hostmem.I32(sp.bytes(docs.End))[i] = int32(i + 1)
		}
		return docs
	}
	continued := net()
	continued.Docs = positions()
	heads := func(rows int) device.Mat { return f32(rows, groups) }
	qkv := func() device.Mat { return f32(rows, net().QKVCols()) }
	states := func() device.Mat { return f32(net().States(rows)) }
	norm := device.NormSpec{Groups: groups, Eps: 1e-5}
	// Each entry binds its operands once and returns the call.
	return []func(w work){
		bind2(a.Take(9), a.Take(9), work.Copy),
		bind1(a.Take(9), work.Zero),
		func(c, a, b device.Mat) func(w work) {
			return func(w work) { w.MatMul(c, a, b, device.MatMulFlags{}) }
		}(f32(3, 4), f32(3, 5), f32(5, 4)),
		bind2(x(), f32(1, groups*d), work.AddBias),
		bind2(f32(1, groups*d), x(), work.BiasGrad),
		bind3(part(), part(), part(), work.Add),
		bind2(part(), part(), func(s work, y, x device.Mat) { s.Scale(y, x, 1.7) }),
		bind2(a.Mat(tensor.BF16, rows, groups*d), x(), work.Cast),
		func(y, rstd, x, w device.Mat) func(work) {
			return func(s work) { s.RMSNorm(y, rstd, x, w, norm) }
		}(x(), f32(rows, groups), x(), f32(1, d)),
		func(dx, dw, dy, x, w, rstd, resid device.Mat) func(work) {
			return func(s work) { s.RMSNormGrad(dx, dw, dy, x, w, rstd, resid, norm) }
		}(x(), f32(1, d), x(), x(), f32(1, d), f32(rows, groups), x()),
		func(y, stat, x, w, b device.Mat) func(work) {
			return func(s work) { s.LayerNorm(y, stat, x, w, b, 1e-5) }
		}(x(), f32(rows, 2), x(), f32(1, groups*d), f32(1, groups*d)),
		func(dx, dw, dy, x, w, stat, resid device.Mat) func(work) {
			return func(s work) { s.LayerNormGrad(dx, dw, dy, x, w, stat, resid) }
		}(x(), f32(1, groups*d), x(), x(), f32(1, groups*d), f32(rows, 2), x()),
		func(y, x, bias, cos, sin device.Mat, positions device.Mem) func(work) {
			return func(s work) { s.RoPE(y, x, bias, groups, cos, sin, positions, false) }
		}(x(), x(), f32(1, groups*d), f32(1, d/2), f32(1, d/2), ids()),
		func(out, lse, q, k, v device.Mat, spec device.AttentionSpec) func(work) {
			return func(s work) { s.Attention(out, lse, q, k, v, spec) }
		}(x(), f32(rows, groups), x(), x(), x(), sunk),
		func(dq, dk, dv, dout, q, k, v, out, lse, delta device.Mat, spec device.AttentionSpec) func(work) {
			return func(s work) { s.AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta, spec) }
		}(x(), x(), x(), x(), x(), x(), x(), x(), f32(rows, groups), f32(rows, groups), spec()),
		func(dsinks, sinks, lse, delta device.Mat) func(work) {
			return func(s work) { s.SinkGrad(dsinks, sinks, lse, delta) }
		}(f32(1, groups), f32(1, groups), f32(rows, groups), f32(rows, groups)),
		bind3(f32(rows, 15), f32(rows, 9), f32(rows, 2), func(s work, y, a, b device.Mat) { s.JoinHeads(y, a, b, 3) }),
		bind3(f32(rows, 9), f32(rows, 2), f32(rows, 15), func(s work, a, b, y device.Mat) { s.SplitHeads(a, b, y, 3) }),
		bind2(f32(rows, d), f32(rows, 2*d), func(s work, y, gateUp device.Mat) { s.GLU(y, gateUp, device.GLUSpec{}) }),
		func(dGateUp, act, dy, gateUp device.Mat) func(work) {
			return func(s work) { s.GLUGrad(dGateUp, act, dy, gateUp, device.GLUSpec{}) }
		}(f32(rows, 2*d), f32(rows, d), f32(rows, d), f32(rows, 2*d)),
		bind1(f32(rows, device.HeadStats), work.LSEInit),
		func(stat, logits device.Mat, targets device.Mem) func(work) {
			return func(s work) { s.LSEUpdate(stat, logits, targets, 0, 0) }
		}(f32(rows, device.HeadStats), f32(rows, 8), ids()),
		bind3(f32(device.TokenFigures, rows), f32(rows, device.HeadStats), ids(), work.TokenLoss),
		func(dlogits, logits, stat device.Mat, targets, weights, slopes device.Mem) func(work) {
			return func(s work) { s.CrossEntropyGrad(dlogits, logits, stat, targets, weights, slopes, 0, 0) }
		}(f32(rows, 8), f32(rows, 8), f32(rows, device.HeadStats), ids(), f32(1, rows).Mem, f32(1, rows).Mem),
		bind2(a.Take(8), f32(1, 7), work.Sum),
		func(y, table device.Mat, ids device.Mem) func(work) {
			return func(s work) { s.Gather(y, table, ids, 0) }
		}(x(), f32(4, groups*d), ids()),
		func(out, q, k, v device.Mat, spec device.AttentionSpec) func(work) {
			return func(s work) { s.AttendCache(out, q, k, v, spec) }
		}(x(), x(), f32(rows+2, groups*d), f32(rows+2, groups*d), sunk),
		func(cache, x device.Mat, at device.Mem) func(work) {
			return func(s work) { s.Put(cache, x, at) }
		}(f32(rows+2, groups*d), x(), ids()),
		func(dtable, dy device.Mat, ids device.Mem) func(work) {
			return func(s work) { s.ScatterAdd(dtable, dy, ids, 0, 1) }
		}(f32(4, groups*d), x(), ids()),
		func(y, x, w device.Mat, docs device.Docs) func(work) {
			return func(s work) { s.CausalConv(y, x, w, docs) }
		}(part(), part(), f32(7, 3), docs()),
		func(dx, dw, dy, x, w device.Mat, docs device.Docs) func(work) {
			return func(s work) { s.CausalConvGrad(dx, dw, dy, x, w, docs) }
		}(part(), f32(7, 3), part(), part(), f32(7, 3), docs()),
		func(y, x, gate device.Mat) func(work) {
			return func(s work) { s.Gate(y, x, gate, device.SiLUGate) }
		}(x(), x(), f32(rows, groups)),
		func(dx, dgate, dy, x, gate device.Mat) func(work) {
			return func(s work) { s.GateGrad(dx, dgate, dy, x, gate, device.SiLUGate) }
		}(x(), f32(rows, groups), x(), x(), f32(rows, groups)),
		func(decay, beta, a, b, aLog, dtBias device.Mat) func(work) {
			return func(s work) { s.DeltaGates(decay, beta, a, b, aLog, dtBias) }
		}(heads(rows), heads(rows), heads(rows), heads(rows), heads(1), heads(1)),
		func(da, db, daLog, ddtBias, ddecay, dbeta, a, b, aLog, dtBias device.Mat) func(work) {
			return func(s work) { s.DeltaGatesGrad(da, db, daLog, ddtBias, ddecay, dbeta, a, b, aLog, dtBias) }
		}(heads(rows), heads(rows), heads(1), heads(1), heads(rows), heads(rows), heads(rows), heads(rows), heads(1),
			heads(1)),
		func(out, states, qkv, decay, beta device.Mat, spec device.DeltaSpec) func(work) {
			return func(s work) { s.GatedDelta(out, states, qkv, decay, beta, spec) }
		}(x(), states(), qkv(), heads(rows), heads(rows), net()),
		func(dqkv, ddecay, dbeta, dstates, dout, qkv, decay, beta, states device.Mat,
			spec device.DeltaSpec) func(work) {
			return func(s work) { s.GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, dout, qkv, decay, beta, states, spec) }
		}(qkv(), heads(rows), heads(rows), states(), x(), qkv(), heads(rows), heads(rows), states(), net()),
		bind2(adamw, a.Take(device.TallyBytes), work.AdamW),
		bind2(adamw8, a.Take(device.TallyBytes), work.AdamW8),
		bind2(a.Take(8), f32(1, 7), work.SumSquares),
		func(y, tail, x, w device.Mat, docs device.Docs) func(work) {
			return func(s work) { s.ContinueConv(y, tail, x, w, device.Continued{Docs: docs, Each: 5}) }
		}(part(), f32(4, 7), part(), f32(7, 3), positions()),
		func(out, states, qkv, decay, beta device.Mat, spec device.DeltaSpec) func(work) {
			return func(s work) { s.ContinueDelta(out, states, qkv, decay, beta, spec, 5) }
		}(x(), states(), qkv(), heads(rows), heads(rows), continued),
	}
}

func bind1[A any](a A, f func(work, A)) func(work) { return func(w work) { f(w, a) } }

func bind2[A, B any](a A, b B, f func(work, A, B)) func(work) { return func(w work) { f(w, a, b) } }

func bind3[A, B, C any](a A, b B, c C, f func(work, A, B, C)) func(work) {
	return func(w work) { f(w, a, b, c) }
}

// deletable asks TestWaits to pause for a duration in place of its waits; the test below sets it for runs in processes
// of their own.
const deletable = "MILLRACE_TEST_DELETE_WAITS"

// TestWaits runs each operation on one stream and clears one of its operands on another, which waits for the operation. Under
// the race detector it proves that the event orders the two.
func TestWaits(t *testing.T) {
	d := open(t, cpu.Options{Workers: 2})
	t.Cleanup(func() { d.Close() })
	sp := newSpace(t, d, 1<<20)
	// The streams outlive the cases: the detector cannot tell what a goroutine did that has ended.
	a, _ := d.NewStream("a")
	b, _ := d.NewStream("b")
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	for _, call := range calls(sp) {
		var operands device.Operands
		call(&operands)
		for _, o := range operands.List {
			t.Run(operands.Op+"_"+o.Name, func(t *testing.T) {
				e, _ := d.NewEvent()
				call(a)
				a.Record(e)
				if pause, err := time.ParseDuration(os.Getenv(deletable)); err != nil {
					b.Wait(e)
				} else {
					// Most likely a is done by now. To the detector that is no order, but it can miss two accesses at the
					// very same moment.
					time.Sleep(pause)
				}
				b.Zero(o.Mem.Slice(0, o.DType.Bytes()))
				for _, s := range []device.Stream{a, b} {
					if err := s.Sync(); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

// The race detector finds each wait of TestWaits that is missing. It can miss two accesses at the very same
// moment, so a wait counts as found if one of some runs finds it, with pauses of other lengths.
func TestMissingWaitsAreFound(t *testing.T) {
	if !cpu.RaceEnabled {
		t.Skip("needs the race detector")
	}
	missing := map[string]bool{} // names of tests
	d := open(t, cpu.Options{Workers: 2})
	t.Cleanup(func() { d.Close() })
	for _, call := range calls(newSpace(t, d, 1<<20)) {
		var operands device.Operands
		call(&operands)
		for _, o := range operands.List {
			missing[fmt.Sprintf("TestWaits/%s_%s", operands.Op, o.Name)] = true
		}
	}
	cases := len(missing)
	only := ""
	for _, pause := range []string{"2ms", "5ms", "11ms", "23ms", "47ms", "1ms", "3ms", "7ms", "15ms", "31ms", "63ms"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestWaits$"+only, "-test.v")
		// Operations share most of their stacks, of which the detector would report each once.
		cmd.Env = append(os.Environ(), deletable+"="+pause, "GORACE=suppress_equal_stacks=0 suppress_equal_addresses=0")
		out, err := cmd.CombinedOutput()
		if err == nil && only == "" {
			t.Fatal("a run without waits passes")
		}
		maps.DeleteFunc(missing, func(name string, _ bool) bool {
			return strings.Contains(string(out), "--- FAIL: "+name+" ")
		})
		if len(missing) == 0 {
			break
		}
		var names []string // the next run has these alone
		for name := range missing {
			_, name, _ = strings.Cut(name, "/")
			names = append(names, regexp.QuoteMeta(name))
		}
		only = "/^(" + strings.Join(names, "|") + ")$"
	}
	for name := range missing {
		t.Errorf("%s: a missing wait is not found", name)
	}
	t.Logf("%d deleted waits", cases)
}
