package ptx

import "math/bits"

// all is the mask of a full warp.
const all = 1<<lanes - 1

// A warp is 32 threads that run one instruction at a time.
type warp struct {
	r32        []uint32 // narrow rows
	r64        []uint64 // wide rows
	predicates []uint32 // a bit per lane
	carry      uint32   // the condition code CC.CF, a bit per lane

	pc     int32
	active uint32  // lanes that run
	alive  uint32  // lanes that have not returned
	parked []group // the other lanes, by program counter
	first  int     // the thread that lane 0 is
	waits  barrierWait
	steps  int64 // instructions left

	block *block
	local []byte // local memory, lane by lane
	async async
	err   error // of exec
	lane  int   // that err is about
	addr  [lanes]uint64
}

// A group is lanes that wait at a program counter.
type group struct {
	pc   int32
	mask uint32
}

type barrierWait struct {
	id, threads int // threads: 0 is all of the block
}

// hasBit is a mask's bit.
func hasBit(m uint32, lane int) bool { return m>>(lane%lanes)&1 != 0 }

// lowest is the first lane of a mask.
func lowest(m uint32) int { return bits.TrailingZeros32(m) % lanes }

// status is why a warp stopped.
type status uint8

const (
	ready status = iota // its turn is over
	atBarrier
	done
	failed
)

type word interface{ uint32 | uint64 }

// row is the lanes of a register.
func row[T word](w *warp, i int32) *[lanes]T {
	var r any
	switch any(T(0)).(type) {
	case uint32:
		r = (*[lanes]uint32)(w.r32[i:])
	default:
		r = (*[lanes]uint64)(w.r64[i:])
	}
	return r.(*[lanes]T)
}

func (w *warp) narrow(i int32) *[lanes]uint32 { return (*[lanes]uint32)(w.r32[i:]) }
func (w *warp) wide(i int32) *[lanes]uint64   { return (*[lanes]uint64)(w.r64[i:]) }

// predicate is the lanes where a predicate holds.
func (w *warp) predicate(i int32) uint32 {
	if i < 0 {
		return ^w.predicates[^i]
	}
	return w.predicates[i]
}

// setPredicate gives a predicate a value in the lanes of m.
func (w *warp) setPredicate(i int32, m, v uint32) {
	w.predicates[i] = w.predicates[i]&^m | v&m
}

// fail ends the launch; lane is the one to blame.
func (w *warp) fail(lane int, err error) {
	if w.err == nil {
		w.err, w.lane = err, lane
	}
}

// run runs the warp until it ends, fails, waits, or has run for a while.
func (w *warp) run(code []*instr) status {
	turn := int64(1 << 14)
	turn = min(turn, w.steps)
	w.steps -= turn
	for ; turn > 0; turn-- {
		if len(w.parked) > 0 {
			w.regroup()
		}
		in := code[w.pc]
		m := w.active
		if in.guard >= 0 {
			g := w.predicates[in.guard]
			if in.negate {
				g = ^g
			}
			m &= g
		}
		w.pc++
		if m == 0 {
			continue
		}
		switch in.flow {
		case flowNext:
			in.exec(w, in, m)
			continue
		case flowCheck:
			in.exec(w, in, m)
			if w.err != nil {
				w.pc--
				return failed
			}
		case flowBranch:
			w.branch(in.target, m)
		case flowRet:
			w.alive &^= m
			w.active &^= m
			if w.alive == 0 {
				w.steps += turn
				return done
			}
			if w.active == 0 {
				w.take()
			}
		case flowTrap:
			w.pc--
			w.fail(lowest(m), ErrTrap)
			return failed
		case flowBarrier:
			if m != w.alive {
				w.pc--
				w.fail(lowest(w.alive&^m), ErrDivergence)
				return failed
			}
			w.waits = barrierWait{int(in.offset), in.bytes}
			w.steps += turn
			return atBarrier
		}
	}
	if w.steps <= 0 {
		w.fail(lowest(w.active), ErrBudget)
		return failed
	}
	return ready
}

// branch sends the lanes of m to target.
func (w *warp) branch(target int32, m uint32) {
	if m == w.active {
		w.pc = target
		return
	}
	w.park(group{target, m})
	w.active &^= m
}

// park keeps a group, joined with one that waits at the same place; the lowest counter is last.
func (w *warp) park(g group) {
	at := len(w.parked)
	for i, p := range w.parked {
		if p.pc == g.pc {
			w.parked[i].mask |= g.mask
			return
		}
		if p.pc < g.pc {
			at = i
			break
		}
	}
	w.parked = append(w.parked, group{})
	copy(w.parked[at+1:], w.parked[at:])
	w.parked[at] = g
}

// take runs the group with the lowest counter.
func (w *warp) take() {
	g := w.parked[len(w.parked)-1]
	w.parked = w.parked[:len(w.parked)-1]
	w.pc, w.active = g.pc, g.mask
}

// regroup keeps the lanes with the lowest counter running, and joins those that meet.
func (w *warp) regroup() {
	last := w.parked[len(w.parked)-1]
	switch {
	case last.pc == w.pc:
		w.active |= last.mask
		w.parked = w.parked[:len(w.parked)-1]
	case last.pc < w.pc:
		g := group{w.pc, w.active}
		w.take()
		w.park(g)
	}
}

// The maps run a function over the lanes of a mask. Instructions that kernels spend their time in have loops of their
// own.

func map1[D, A word](f func(A) D) func(*warp, *instr, uint32) {
	return func(w *warp, in *instr, m uint32) {
		d, a := row[D](w, in.d), row[A](w, in.a)
		if m == all {
			for i := range d {
				d[i] = f(a[i])
			}
			return
		}
		for ; m != 0; m &= m - 1 {
			i := lowest(m)
			d[i] = f(a[i])
		}
	}
}

func map2[D, A, B word](f func(A, B) D) func(*warp, *instr, uint32) {
	return func(w *warp, in *instr, m uint32) {
		d, a, b := row[D](w, in.d), row[A](w, in.a), row[B](w, in.b)
		if m == all {
			for i := range d {
				d[i] = f(a[i], b[i])
			}
			return
		}
		for ; m != 0; m &= m - 1 {
			i := lowest(m)
			d[i] = f(a[i], b[i])
		}
	}
}

func map3[D, A, B, C word](f func(A, B, C) D) func(*warp, *instr, uint32) {
	return func(w *warp, in *instr, m uint32) {
		d, a, b, c := row[D](w, in.d), row[A](w, in.a), row[B](w, in.b), row[C](w, in.c)
		if m == all {
			for i := range d {
				d[i] = f(a[i], b[i], c[i])
			}
			return
		}
		for ; m != 0; m &= m - 1 {
			i := lowest(m)
			d[i] = f(a[i], b[i], c[i])
		}
	}
}
