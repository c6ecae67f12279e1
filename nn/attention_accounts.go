package nn

func (a Attention) flops(hidden, t int, pairs int64) (forward, backward int64, recompute [Keeps]int64) {
	products := 2 * int64(t) * int64(hidden) * int64(a.qkvCols()+a.qCols()) // projections in and out
	pair := 2 * pairs * int64(a.qCols())                                    // one product over all pairs
	recompute = [Keeps]int64{KeepInput: products + 2*pair, KeepAttention: products, KeepGateUp: products}
	return products + 2*pair, 2*products + 5*pair, recompute
}

func (a Attention) ops(chunks int) (forward, backward int, recompute [Keeps]int) {
	project := 2 + when(a.QKVBias, 1)
	rotate := 1 + when(a.QKNorm, 2)
	output := 1 + when(a.OutBias, 1)
	grad := 2 + when(a.OutBias, 1) + rotate + 4 + when(a.QKVBias, 1)
	again := chunks * (project + when(!a.QKNorm, rotate) + output)
	return 1 + chunks*(project+rotate+output),
		1 + when(a.Sinks, 1) + chunks*(grad+when(a.QKNorm, rotate)),
		[Keeps]int{KeepInput: 1 + again, KeepAttention: again, KeepGateUp: again}
}

func (a Attention) elementTraffic(hidden int, keep Keep) (forward, backward int) {
	biased := a.kvCols()
	if a.QKNorm {
		biased = a.qkvCols()
	}
	norm, normGrad := normTraffic(hidden)
	project := norm + when(a.QKVBias, twice*biased)
	rotate := twice*a.qkCols() + when(a.QKNorm, twice*a.qkCols())
	output := when(a.OutBias, twice*hidden)
	backward = when(a.OutBias, once*hidden) + twice*a.qCols() + twice*a.qkCols() + when(a.QKNorm, 3*a.qkCols()) +
		norm + when(a.QKVBias, once*a.qkvCols()) + normGrad
	backward += when(keep < KeepAll, project+output) + when(keep < KeepAll || a.QKNorm, rotate)
	return project + rotate + output, backward
}

func (a Attention) againAccounts(hidden, t, chunks int, pairs int64, k Keep) (recompute, output Account) {
	row := 2 * int64(t) * int64(hidden)
	norm, _ := normTraffic(hidden)
	biased := a.kvCols()
	if a.QKNorm {
		biased = a.qkvCols()
	}
	recompute = Account{
		FLOPs:   row*int64(a.qkvCols()) + when(k < KeepAttention, 4*pairs*int64(a.qCols())),
		Ops:     chunks*(3+when(a.QKVBias, 1)+when(a.QKNorm, 2)) + when(k < KeepAttention, 1),
		Traffic: int64(norm + when(a.QKVBias, twice*biased) + twice*a.qkCols() + when(a.QKNorm, twice*a.qkCols())),
	}
	output = Account{row * int64(a.qCols()), chunks * (1 + when(a.OutBias, 1)), int64(when(a.OutBias, twice*hidden))}
	return recompute, output
}

// Pairs is the number of pairs of query and key that one head scores in documents of these lengths.
func (a Attention) Pairs(docs []int) int64 {
	var n int64
	for _, l := range docs {
		m := int64(l)
		n += m * (m + 1) / 2
		if w := int64(a.Window); w > 0 && m > w {
			n -= (m - w) * (m - w + 1) / 2
		}
	}
	return n
}

// QueryHeads is the number of heads and their width in the queries.
func (a Attention) QueryHeads() (heads, headDim int) { return a.Heads, a.HeadDim }
