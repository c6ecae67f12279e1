package cuda

import "github.com/millrace/millrace/device"

// LSEInit implements device.HeadOps.
func (s *Stream) LSEInit(stat device.Mat) {
	s.operands.LSEInit(stat)
	s.enqueue(func() error {
		if empty(stat) {
			return nil
		}
		return s.launch(named("lse_init"), ptr(stat.Mem), i32(stat.Rows))
	})
}

// LSEUpdate implements device.HeadOps.
func (s *Stream) LSEUpdate(stat, logits device.Mat, targets device.Mem, first int, softCap float32) {
	s.operands.LSEUpdate(stat, logits, targets, first, softCap)
	s.enqueue(func() error {
		if empty(logits) {
			return nil
		}
		o := named("lse_update")
		if softCap > 0 {
			o = named("lse_update", "cap")
		}
		return s.launch(o, ptr(stat.Mem), ptr(logits.Mem), ptr(targets), i32(logits.Rows), i32(logits.Cols), i32(first),
			stride(logits), f32(softCap))
	})
}

// TokenLoss implements device.HeadOps.
func (s *Stream) TokenLoss(figures, stat device.Mat, targets device.Mem) {
	s.operands.TokenLoss(figures, stat, targets)
	s.enqueue(func() error {
		if empty(stat) {
			return nil
		}
		return s.launch(named("token_loss"), ptr(figures.Mem), ptr(stat.Mem), ptr(targets), i32(stat.Rows))
	})
}

// CrossEntropyGrad implements device.HeadOps.
func (s *Stream) CrossEntropyGrad(dlogits, logits, stat device.Mat, targets, weights, entropySlopes device.Mem,
	first int, softCap float32) {
	s.operands.CrossEntropyGrad(dlogits, logits, stat, targets, weights, entropySlopes, first, softCap)
	s.enqueue(func() error {
		if empty(logits) {
			return nil
		}
		words := append(make([]string, 0, 4), "ce_grad", typeName(dlogits.DType))
		slopes := weights // a pointer that kernels without entropies do not follow
		if !entropySlopes.IsZero() {
			words, slopes = append(words, "entropy"), entropySlopes
		}
		if softCap > 0 {
			words = append(words, "cap")
		}
		return s.launch(named(words...), ptr(dlogits.Mem), ptr(logits.Mem), ptr(stat.Mem), ptr(targets), ptr(weights),
			ptr(slopes), i32(logits.Rows), i32(logits.Cols), i32(first), stride(dlogits), stride(logits), f32(softCap))
	})
}

// PickLogits implements device.HeadOps.
func (s *Stream) PickLogits(picked, logits device.Mat, ids device.Mem, first int, softCap float32) {
	s.operands.PickLogits(picked, logits, ids, first, softCap)
	s.enqueue(func() error {
		if empty(picked) || empty(logits) {
			return nil
		}
		o := named("pick_logits")
		if softCap > 0 {
			o = named("pick_logits", "cap")
		}
		return s.launch(o, ptr(picked.Mem), ptr(logits.Mem), ptr(ids), i32(picked.Rows), i32(picked.Cols), i32(logits.Cols),
			i32(first), stride(logits), f32(softCap))
	})
}

// PutLogitGrads implements device.HeadOps.
func (s *Stream) PutLogitGrads(dlogits, logits, values device.Mat, ids device.Mem, first int, softCap float32) {
	s.operands.PutLogitGrads(dlogits, logits, values, ids, first, softCap)
	s.enqueue(func() error {
		if empty(values) || empty(logits) {
			return nil
		}
		o := named("put_logit_grads", typeName(dlogits.DType))
		if softCap > 0 {
			o = named("put_logit_grads", typeName(dlogits.DType), "cap")
		}
		return s.launch(o, ptr(dlogits.Mem), ptr(logits.Mem), ptr(values.Mem), ptr(ids), i32(values.Rows), i32(values.Cols),
			i32(logits.Cols), i32(first), stride(dlogits), stride(logits), f32(softCap))
	})
}

// DrawTokens implements device.HeadOps.
func (s *Stream) DrawTokens(drawn, stat, logits device.Mat, draws device.Mem, first, vocab int, softCap float32) {
	s.operands.DrawTokens(drawn, stat, logits, draws, first, vocab, softCap)
	s.enqueue(func() error {
		if empty(logits) {
			return nil
		}
		o := named("draw_tokens")
		if softCap > 0 {
			o = named("draw_tokens", "cap")
		}
		return s.launch(o, ptr(drawn.Mem), ptr(stat.Mem), ptr(logits.Mem), ptr(draws), i32(logits.Rows), i32(logits.Cols),
			i32(first), i32(vocab), flag(!drawn.IsZero()), stride(logits), f32(softCap))
	})
}

// Gather implements device.EmbeddingOps.
func (s *Stream) Gather(y, table device.Mat, ids device.Mem, first int) {
	s.operands.Gather(y, table, ids, first)
	s.enqueue(func() error {
		if empty(y) || empty(table) {
			return nil
		}
		return s.launch(named("gather", typeName(y.DType)), ptr(y.Mem), ptr(table.Mem), ptr(ids),
			i32(y.Rows), i32(y.Cols), i32(first), i32(table.Rows), stride(y), stride(table))
	})
}

// ScatterAdd implements device.EmbeddingOps.
func (s *Stream) ScatterAdd(dtable, dy device.Mat, ids device.Mem, first int, by float32) {
	s.operands.ScatterAdd(dtable, dy, ids, first, by)
	s.enqueue(func() error {
		if empty(dy) || empty(dtable) {
			return nil
		}
		return s.launch(named("scatter_add", typeName(dy.DType)), ptr(dtable.Mem), ptr(dy.Mem), ptr(ids),
			i32(dy.Rows), i32(dy.Cols), i32(first), i32(dtable.Rows), stride(dtable), stride(dy), f32(by))
	})
}
