package cpu_test

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

// BenchmarkOps times the operations of one decoder block of SmolLM2-135M, and of its head and optimizer, on all
// processors. It reports the rate of what limits an operation: multiplications (GFLOP/s) or memory (GB/s, the operands
// read or written once each).
func BenchmarkOps(b *testing.B) {
	const T, hidden, heads, kvHeads, headDim, inter, vocab = 1024, 576, 9, 3, 64, 1536, 4096
	const qkvCols = (heads + 2*kvHeads) * headDim
	d := open(b, cpu.Options{})
	if err := d.PrepareAttention(T, heads, headDim, tensor.BF16); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { d.Close() })
	s, err := d.NewStream("bench")
	if err != nil {
		b.Fatal(err)
	}
	for _, act := range []tensor.DType{tensor.F32, tensor.BF16} {
		sp := newSpace(b, d, 512<<20)
		mat := func(rows, cols int) device.Mat { return sp.random(1, sp.arena.Mat(act, rows, cols), 1) }
		f32 := func(rows, cols int) device.Mat { return sp.random(2, sp.arena.Mat(tensor.F32, rows, cols), 1) }
		ids := sp.arena.Take(4 * T)
		positions := sp.arena.Take(4 * T)
		for i := range T {
			hostmem.I32(sp.bytes(ids))[i] = int32(i * 7 % vocab)
			hostmem.I32(sp.bytes(positions))[i] = int32(i)
		}
		start := sp.arena.Take(4 * T) // zero: one document
		x, y, w, rstd := mat(T, hidden), mat(T, hidden), mat(1, hidden), f32(T, 1)
		cast := sp.arena.Mat(tensor.BF16, T, hidden)
		dw, dx := f32(1, hidden), mat(T, hidden)
		qkv, bias, dbias := mat(T, qkvCols), mat(1, qkvCols), f32(1, qkvCols)
		wqkv, dwqkv := mat(qkvCols, hidden), f32(qkvCols, hidden)
		q, k, v := qkv.ColRange(0, heads*headDim), qkv.ColRange(heads*headDim, kvHeads*headDim), qkv.ColRange((heads+kvHeads)*headDim, kvHeads*headDim)
		dqkv := mat(T, qkvCols)
		dq, dk, dv := dqkv.ColRange(0, heads*headDim), dqkv.ColRange(heads*headDim, kvHeads*headDim), dqkv.ColRange((heads+kvHeads)*headDim, kvHeads*headDim)
		out, lse, delta := mat(T, heads*headDim), f32(T, heads), f32(T, heads)
		qw, qdw, qrstd := mat(1, headDim), f32(1, headDim), f32(T, heads)
		cos, sin := f32(T, headDim/2), f32(T, headDim/2)
		spec := device.AttentionSpec{Heads: heads, KVHeads: kvHeads, HeadDim: headDim, Scale: 0.125, Docs: device.Docs{Positions: positions, Start: start, End: start}}
		wgu, gu, dgu, h, dh := mat(2*inter, hidden), mat(T, 2*inter), mat(T, 2*inter), mat(T, inter), mat(T, inter)
		wdown := mat(hidden, inter)
		whead, logits, dlogits, stat, loss, table := mat(vocab, hidden), f32(T, vocab), mat(T, vocab),
			f32(T, device.HeadStats), f32(device.TokenFigures, T), f32(vocab, hidden)
		s.LSEInit(stat)
		s.LSEUpdate(stat, logits, ids, 0, 0)
		const n = 1 << 22
		opt := device.AdamWArgs{Weights: sp.arena.Mat(act, 1, n), Grad: mat(1, n), M: f32(1, n), V: sp.arena.Mat(tensor.F32, 1, n),
			AdamWScalars: device.AdamWScalars{ClipScale: 1, Decay: 1, OneMinusBeta1: 0.1, Beta2: 0.999, OneMinusBeta2: 0.001, StepSize: 1e-4, SqrtBC2: 1, Eps: 1e-8}}
		if act == tensor.BF16 {
			opt.Low = sp.arena.Mat(tensor.I16, 1, n)
		}
		tally := sp.arena.Take(device.TallyBytes)
		none := device.Mat{}
		norm, headNorm := device.NormSpec{Groups: 1, Eps: 1e-5}, device.NormSpec{Groups: heads, Eps: 1e-5}
		geglu := device.GLUSpec{Gate: device.GELUTanh}
		pairs := float64(T) * (T + 1) / 2
		product := func(m, n, k int) float64 { return 2 * float64(m) * float64(n) * float64(k) }
		for _, op := range []struct {
			name  string
			flops float64
			run   func(w work)
		}{
			{"MatMul/qkv", product(T, qkvCols, hidden), func(w work) { w.MatMul(qkv, x, wqkv, device.MatMulFlags{TransB: true}) }},
			{"MatMul/qkv_dx", product(T, hidden, qkvCols), func(w work) { w.MatMul(dx, qkv, wqkv, device.MatMulFlags{}) }},
			{"MatMul/qkv_dw", product(qkvCols, hidden, T), func(w work) { w.MatMul(dwqkv, qkv, x, device.MatMulFlags{TransA: true, Accumulate: true}) }},
			{"MatMul/gate_up", product(T, 2*inter, hidden), func(w work) { w.MatMul(gu, x, wgu, device.MatMulFlags{TransB: true}) }},
			{"MatMul/down", product(T, hidden, inter), func(w work) { w.MatMul(y, h, wdown, device.MatMulFlags{TransB: true}) }},
			{"MatMul/logits", product(T, vocab, hidden), func(w work) { w.MatMul(logits, x, whead, device.MatMulFlags{TransB: true}) }},
			{"AddBias", 0, func(w work) { w.AddBias(qkv, bias) }},
			{"BiasGrad", 0, func(w work) { w.BiasGrad(dbias, qkv) }},
			{"Add", 0, func(w work) { w.Add(y, y, x) }},
			{"Cast", 0, func(w work) { w.Cast(cast, table.RowRange(0, T)) }},
			{"Copy", 0, func(w work) { w.Copy(gu.Mem, dgu.Mem) }},
			{"Zero", 0, func(w work) { w.Zero(gu.Mem) }},
			{"RMSNorm", 0, func(s work) { s.RMSNorm(y, rstd, x, w, norm) }},
			{"RMSNormGrad", 0, func(s work) { s.RMSNormGrad(dx, dw, y, x, w, rstd, y, norm) }},
			{"RMSNorm/heads", 0, func(w work) { w.RMSNorm(out, qrstd, q, qw, headNorm) }},
			{"RMSNormGrad/heads", 0, func(w work) { w.RMSNormGrad(dq, qdw, out, q, qw, qrstd, none, headNorm) }},
			{"RoPE", 0, func(w work) { w.RoPE(dq, q, none, heads, cos, sin, positions, false) }},
			{"RoPE/bias", 0, func(w work) { w.RoPE(dq, q, bias.ColRange(0, q.Cols), heads, cos, sin, positions, false) }},
			{"Attention", 4 * headDim * heads * pairs, func(w work) { w.Attention(out, lse, q, k, v, spec) }},
			{"AttentionGrad", 10 * headDim * heads * pairs, func(w work) { w.AttentionGrad(dq, dk, dv, y, q, k, v, out, lse, delta, spec) }},
			{"SwiGLU", 0, func(w work) { w.GLU(h, gu, device.GLUSpec{}) }},
			{"SwiGLUGrad", 0, func(w work) { w.GLUGrad(dgu, dh, dh, gu, device.GLUSpec{}) }},
			{"GeGLU", 0, func(w work) { w.GLU(h, gu, geglu) }},
			{"GeGLUGrad", 0, func(w work) { w.GLUGrad(dgu, dh, dh, gu, geglu) }},
			{"LSEUpdate", 0, func(w work) { w.LSEUpdate(stat, logits, ids, 0, 0) }},
			{"TokenLoss", 0, func(w work) { w.TokenLoss(loss, stat, ids) }},
			{"CrossEntropyGrad", 0, func(w work) {
				w.CrossEntropyGrad(dlogits, logits, stat, ids, loss.Mem, device.Mem{}, 0, 0)
			}},
			{"CrossEntropyGrad/entropies", 0, func(w work) {
				w.CrossEntropyGrad(dlogits, logits, stat, ids, loss.Mem, loss.Mem, 0, 0)
			}},
			{"Gather", 0, func(w work) { w.Gather(y, whead, ids, 0) }},
			{"ScatterAdd", 0, func(w work) { w.ScatterAdd(table, y, ids, 0, 1) }},
			{"AdamW", 0, func(w work) { w.AdamW(opt, tally) }},
			{"SumSquares", 0, func(w work) { w.SumSquares(tally.Slice(0, 8), opt.Grad) }},
		} {
			var operands device.Operands
			op.run(&operands)
			var moved float64
			for _, o := range operands.List {
				once := float64(o.Rows) * float64(o.Cols) * float64(o.DType.Bytes())
				if moved += once; o.Write && operands.Op == "AdamW" {
					moved += once // read, too
				}
			}
			b.Run(fmt.Sprintf("%v/%s", act, op.name), func(b *testing.B) {
				for b.Loop() {
					op.run(s)
					if err := s.Sync(); err != nil {
						b.Fatal(err)
					}
				}
				perSec := float64(b.N) / b.Elapsed().Seconds() / 1e9
				if op.flops > 0 {
					b.ReportMetric(op.flops*perSec, "GFLOP/s")
				} else {
					b.ReportMetric(moved*perSec, "GB/s")
				}
			})
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkEnqueue is the cost of an operation that does nothing: what the queue adds to each.
func BenchmarkEnqueue(b *testing.B) {
	d := open(b, cpu.Options{})
	b.Cleanup(func() { d.Close() })
	sp := newSpace(b, d, 4096)
	s, err := d.NewStream("bench")
	if err != nil {
		b.Fatal(err)
	}
	m := sp.arena.Mat(tensor.F32, 1, 1)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if s.Add(m, m, m); i%100 == 99 {
			if err := s.Sync(); err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}
