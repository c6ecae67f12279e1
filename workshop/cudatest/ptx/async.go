package ptx

import "fmt"

// async is a warp's cp.async copies: the groups that are committed, oldest first, and the open one.
//
// A copy happens when wait_group requires it and no sooner. On a GPU it may happen at any time between, so a kernel
// that is right cannot tell; one that reads too early, or overwrites the source too early, shows.
type async struct {
	open   []copyOp
	groups [][]copyOp
}

// A copyOp is one cp.async of a warp.
type copyOp struct {
	in    *instr
	mask  uint32
	dst   [lanes]uint64
	src   [lanes]uint64
	bytes [lanes]uint32 // read from src; the rest of dst becomes zero
}

// decodeAsync reads cp.async of global to shared memory, and commit_group, wait_group, wait_all.
func decodeAsync(a *assembly) {
	a.must("async")
	switch a.mod("commit_group", "wait_group", "wait_all") {
	case "commit_group":
		a.count(0)
		a.in.flow = flowCheck
		a.in.exec = whole(func(w *warp, in *instr, m uint32) {
			w.async.groups = append(w.async.groups, w.async.open)
			w.async.open = nil
		})
		return
	case "wait_group":
		if n, ok := a.immediate(0, 1, 1<<20); ok {
			a.in.offset = int64(n)
			a.in.flow = flowCheck
			a.in.exec = whole(func(w *warp, in *instr, m uint32) { w.finish(int(in.offset)) })
		}
		return
	case "wait_all":
		a.count(0)
		a.in.flow = flowCheck
		a.in.exec = whole(func(w *warp, in *instr, m uint32) {
			w.async.groups = append(w.async.groups, w.async.open)
			w.async.open = nil
			w.finish(0)
		})
		return
	}
	cache := a.must("ca", "cg")
	a.must("shared", "shared::cta")
	a.must("global")
	if a.caching() {
		a.dropPolicy()
	}
	if len(a.ops) != 3 && len(a.ops) != 4 {
		a.fail("%d operands", len(a.ops))
		return
	}
	size := a.ops[2]
	if size.what != numberOperand || size.bits != 16 && (cache == "cg" || size.bits != 4 && size.bits != 8) {
		a.fail("a copy of %d bytes", size.bits)
		return
	}
	wideDst := a.pointer(a.ops[0], sharedSpace)
	dstRow, dstOffset := a.in.a, a.in.offset
	if a.err == nil { // the destination moves to in.b, with its reference
		a.refs[len(a.refs)-1].field = &a.in.b
		a.in.b = dstRow
	}
	a.pointer(a.ops[1], globalSpace)
	a.in.bytes = int(size.bits)
	hasSize := len(a.ops) == 4
	if hasSize {
		a.src(&a.in.c, a.ops[3], types["u32"])
	}
	a.in.flow = flowCheck
	a.in.exec = func(w *warp, in *instr, m uint32) {
		op := copyOp{in: in, mask: m, src: *w.addresses(in, true)}
		for r := m; r != 0; r &= r - 1 {
			i := lowest(r)
			if wideDst {
				op.dst[i] = w.wide(in.b)[i] + uint64(dstOffset)
			} else {
				op.dst[i] = uint64(w.narrow(in.b)[i] + uint32(dstOffset))
			}
			op.bytes[i] = uint32(in.bytes)
			if hasSize {
				op.bytes[i] = min(op.bytes[i], w.narrow(in.c)[i])
			}
			if w.at(sharedSpace, op.dst[i], in.bytes, i, true) == nil {
				return
			}
			if op.src[i]%uint64(in.bytes) != 0 {
				w.fail(i, fmt.Errorf("%w %#x of %d bytes", ErrMisaligned, op.src[i], in.bytes))
				return
			}
			if op.bytes[i] > 0 && w.source(op, i) == nil {
				return
			}
		}
		w.async.open = append(w.async.open, op)
	}
}

// source returns the bytes that a lane copies. Only the bytes that it reads have to be there.
func (w *warp) source(op copyOp, i int) []byte {
	return w.global(op.src[i], int(op.bytes[i]), i)
}

// finish copies all groups but the last n.
func (w *warp) finish(n int) {
	for len(w.async.groups) > n {
		for _, op := range w.async.groups[0] {
			for m := op.mask; m != 0; m &= m - 1 {
				i := lowest(m)
				dst := w.at(sharedSpace, op.dst[i], op.in.bytes, i, true)
				if dst == nil {
					return
				}
				n := 0
				if op.bytes[i] > 0 {
					src := w.source(op, i)
					if src == nil {
						return
					}
					n = copy(dst, src)
				}
				clear(dst[n:])
			}
		}
		w.async.groups = w.async.groups[1:]
	}
}

// whole guards an instruction that all lanes of a warp run together.
func whole(f exec) exec {
	return func(w *warp, in *instr, m uint32) {
		if m != w.alive {
			w.fail(lowest(w.alive&^m), ErrDivergence)
			return
		}
		f(w, in, m)
	}
}
