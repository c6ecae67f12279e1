package device

func (o *Operands) CausalConv(y, x, w Mat, docs Docs) {
	o.begin("CausalConv")
	o.write("y", y, x.Rows, x.Cols, activation)
	o.read("x", x, x.Rows, x.Cols, activation)
	o.taps(w, x)
	o.same("y", y, x)
	o.bounds(docs, x.Rows)
	o.apart()
}

// taps adds the weights of a convolution of x.
func (o *Operands) taps(w, x Mat) {
	if w.Cols < 1 || w.Cols > MostTaps {
		o.fail("a convolution of %d taps; there are 1 to %d", w.Cols, MostTaps)
	}
	o.read("w", w, x.Cols, w.Cols, activation)
	o.same("w", w, x)
}

func (o *Operands) CausalConvGrad(dx, dw, dy, x, w Mat, docs Docs) {
	o.begin("CausalConvGrad")
	o.write("dx", dx, x.Rows, x.Cols, activation)
	if !dw.IsZero() {
		o.write("dw", dw, x.Cols, w.Cols, f32Only)
	}
	o.read("dy", dy, x.Rows, x.Cols, activation)
	o.read("x", x, x.Rows, x.Cols, activation)
	o.taps(w, x)
	o.same("dx", dx, x)
	o.same("dy", dy, x)
	o.bounds(docs, x.Rows)
	o.apart()
}

func (o *Operands) ContinueConv(y, tail, x, w Mat, of Continued) {
	o.begin("ContinueConv")
	if w.Cols < 2 {
		o.fail("a convolution of %d taps keeps no rows", w.Cols)
	}
	kept := w.Cols - 1
	o.write("y", y, x.Rows, x.Cols, activation)
	o.write("tail", tail, tail.Rows/kept*kept, x.Cols, activation)
	o.read("x", x, x.Rows, x.Cols, activation)
	o.taps(w, x)
	o.same("y", y, x)
	o.same("tail", tail, x)
	o.continued(of, x.Rows)
	o.apart()
}

// continued adds which positions rows are.
func (o *Operands) continued(of Continued, rows int) {
	if of.Each < 1 {
		o.fail("sequences of %d rows", of.Each)
	}
	o.bounds(of.Docs, rows)
}

// gate checks the shape of a gate of x, and its kind.
func (o *Operands) gate(gate, x Mat, kind GateKind) {
	if kind >= gateKinds {
		o.fail("a gate of the kind %d", kind)
	}
	if gate.Cols < 1 || x.Cols%gate.Cols != 0 {
		o.fail("%d columns with %d gates", x.Cols, gate.Cols)
	}
	o.read("gate", gate, x.Rows, gate.Cols, activation)
	o.same("gate", gate, x)
}

func (o *Operands) Gate(y, x, gate Mat, kind GateKind) {
	o.begin("Gate")
	o.write("y", y, x.Rows, x.Cols, activation)
	o.read("x", x, x.Rows, x.Cols, activation)
	o.gate(gate, x, kind)
	o.same("y", y, x)
	o.apart([2]string{"y", "x"})
}

func (o *Operands) GateGrad(dx, dgate, dy, x, gate Mat, kind GateKind) {
	o.begin("GateGrad")
	o.write("dx", dx, x.Rows, x.Cols, activation)
	o.write("dgate", dgate, x.Rows, gate.Cols, activation)
	o.read("dy", dy, x.Rows, x.Cols, activation)
	o.read("x", x, x.Rows, x.Cols, activation)
	o.gate(gate, x, kind)
	o.same("dx", dx, x)
	o.same("dgate", dgate, x)
	o.same("dy", dy, x)
	o.apart([2]string{"dx", "dy"}, [2]string{"dgate", "gate"})
}

func (o *Operands) DeltaGates(decay, beta, a, b, aLog, dtBias Mat) {
	o.begin("DeltaGates")
	o.stat(true, "decay", decay, a.Rows, a.Cols)
	o.stat(true, "beta", beta, a.Rows, a.Cols)
	o.deltaGates(a, b, aLog, dtBias)
	o.apart()
}

// deltaGates adds what the gates of a delta net are made of.
func (o *Operands) deltaGates(a, b, aLog, dtBias Mat) {
	o.read("a", a, a.Rows, a.Cols, activation)
	o.read("b", b, a.Rows, a.Cols, activation)
	o.read("aLog", aLog, 1, a.Cols, activation)
	o.read("dtBias", dtBias, 1, a.Cols, activation)
	o.same("b", b, a)
	o.same("aLog", aLog, a)
	o.same("dtBias", dtBias, a)
}

func (o *Operands) DeltaGatesGrad(da, db, daLog, ddtBias, ddecay, dbeta, a, b, aLog, dtBias Mat) {
	o.begin("DeltaGatesGrad")
	o.write("da", da, a.Rows, a.Cols, activation)
	o.write("db", db, a.Rows, a.Cols, activation)
	o.same("da", da, a)
	o.same("db", db, a)
	if daLog.IsZero() != ddtBias.IsZero() {
		o.fail("daLog and ddtBias come together")
	}
	if !daLog.IsZero() {
		o.write("daLog", daLog, 1, a.Cols, f32Only)
		o.write("ddtBias", ddtBias, 1, a.Cols, f32Only)
	}
	o.stat(false, "ddecay", ddecay, a.Rows, a.Cols)
	o.stat(false, "dbeta", dbeta, a.Rows, a.Cols)
	o.deltaGates(a, b, aLog, dtBias)
	o.apart()
}

// delta checks the shape of a gated delta net.
func (o *Operands) delta(spec DeltaSpec) {
	if spec.KeyHeads < 1 || spec.Heads < 1 || spec.Heads%spec.KeyHeads != 0 || spec.KeyDim < 1 || spec.ValueDim < 1 {
		o.fail("%d heads of %d columns share %d key heads of %d", spec.Heads, spec.ValueDim, spec.KeyHeads, spec.KeyDim)
	}
}

func (o *Operands) GatedDelta(out, states, qkv, decay, beta Mat, spec DeltaSpec) {
	o.begin("GatedDelta")
	rows := qkv.Rows
	o.delta(spec)
	o.bounds(spec.Docs, rows)
	chunks, cols := spec.States(rows)
	o.write("out", out, rows, spec.Values(), activation)
	o.stat(true, "states", states, chunks, cols)
	o.read("qkv", qkv, rows, spec.QKVCols(), activation)
	o.stat(false, "decay", decay, rows, spec.Heads)
	o.stat(false, "beta", beta, rows, spec.Heads)
	o.same("out", out, qkv)
	o.apart()
}

func (o *Operands) GatedDeltaGrad(dqkv, ddecay, dbeta, dstates, dout, qkv, decay, beta, states Mat, spec DeltaSpec) {
	o.begin("GatedDeltaGrad")
	rows := qkv.Rows
	o.delta(spec)
	o.bounds(spec.Docs, rows)
	chunks, cols := spec.States(rows)
	o.write("dqkv", dqkv, rows, spec.QKVCols(), activation)
	o.stat(true, "ddecay", ddecay, rows, spec.Heads)
	o.stat(true, "dbeta", dbeta, rows, spec.Heads)
	o.stat(true, "dstates", dstates, chunks, cols)
	o.read("dout", dout, rows, spec.Values(), activation)
	o.read("qkv", qkv, rows, spec.QKVCols(), activation)
	o.stat(false, "decay", decay, rows, spec.Heads)
	o.stat(false, "beta", beta, rows, spec.Heads)
	o.stat(false, "states", states, chunks, cols)
	o.same("dqkv", dqkv, qkv)
	o.same("dout", dout, qkv)
	o.apart()
}

func (o *Operands) ContinueDelta(out, states, qkv, decay, beta Mat, spec DeltaSpec, each int) {
	o.begin("ContinueDelta")
	rows := qkv.Rows
	o.delta(spec)
	_, cols := spec.States(rows)
	o.write("out", out, rows, spec.Values(), activation)
	o.stat(true, "states", states, states.Rows, cols)
	o.read("qkv", qkv, rows, spec.QKVCols(), activation)
	o.stat(false, "decay", decay, rows, spec.Heads)
	o.stat(false, "beta", beta, rows, spec.Heads)
	o.same("out", out, qkv)
	o.continued(Continued{spec.Docs, each}, rows)
	o.apart()
}
