package ptx

// Control: exec is nil, the warp does what flow says.

func decodeBranch(a *assembly) {
	a.mod("uni") // a promise that all lanes go the same way; it is not relied on
	if !a.count(1) {
		return
	}
	o := a.ops[0]
	if o.what != nameOperand || o.second != "" || o.negated {
		a.fail("the operand is no label")
		return
	}
	a.in.flow = flowBranch
	a.jumps = append(a.jumps, jump{a.in, o.name, a.scope})
}

func decodeReturn(a *assembly) {
	a.mod("uni")
	a.count(0)
	a.in.flow = flowRet
}

func decodeTrap(a *assembly) {
	a.count(0)
	a.in.flow = flowTrap
}

// decodeBarrier reads bar.sync and barrier.sync, which wait for the block or for a number of its threads;
// bar.warp.sync waits for lanes.
func decodeBarrier(a *assembly) {
	a.mod("cta")
	if a.mod("warp") != "" {
		a.must("sync")
		if a.count(1) {
			a.src(&a.in.e, a.ops[0], types["u32"])
			a.in.flow = flowCheck
			a.in.exec = members(func(*warp, *instr, uint32) {})
		}
		return
	}
	a.must("sync")
	a.mod("aligned")
	a.in.flow = flowBarrier
	if len(a.ops) == 2 {
		n, _ := a.immediate(1, 2, 1024)
		if n == 0 || n%lanes != 0 {
			a.fail("a barrier of %d threads", n)
		}
		a.in.bytes = int(n)
		a.ops = a.ops[:1]
	}
	id, _ := a.immediate(0, 1, 15)
	a.in.offset = int64(id)
}

// decodeSleep reads nanosleep, which may take no time.
func decodeSleep(a *assembly) {
	t := a.typ("u32")
	if a.count(1) {
		var ignored int32
		a.src(&ignored, a.ops[0], t)
	}
}
