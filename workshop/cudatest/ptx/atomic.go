package ptx

import (
	"math"
)

// decodeAtom reads atom and red: a value in memory becomes f(value, operand), lane after lane, and atom gives the old
// one.
func decodeAtom(a *assembly) {
	isRed := a.in.op[:3] == "red"
	s := genericSpace
	for range 3 { // order, scope and space: the ISA and Triton have them in different places
		a.mod("relaxed", "acquire", "release", "acq_rel")
		a.mod("cta", "cluster", "gpu", "sys")
		if s == genericSpace {
			s = spaces[a.mod("global", "shared")]
		}
	}
	op := a.must("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
	if op == "add" {
		a.mod("noftz")
	}
	var t typ
	switch op {
	case "add":
		t = a.typ("u32", "s32", "u64", "s64", "f32", "f64", "f16", "f16x2", "bf16", "bf16x2")
	case "min", "max":
		t = a.typ("u32", "s32", "u64", "s64")
	case "inc", "dec":
		t = a.typ("u32")
	default:
		t = a.typ("b32", "b64", "u32", "u64", "s32", "s64")
	}
	ops := a.ops
	if isRed {
		if op == "exch" || op == "cas" {
			a.fail("modifier .%s is not supported", op)
		}
		ops = append([]operand{{what: nameOperand, name: "_"}}, ops...)
	}
	a.ops = ops
	n := 3
	if op == "cas" {
		n = 4
	}
	if !a.count(n) {
		return
	}
	isWide := a.pointer(a.ops[1], s)
	a.src(&a.in.b, a.ops[2], t)
	if op == "cas" {
		a.src(&a.in.c, a.ops[3], t)
	}
	a.in.d = sink
	if d := a.ops[0]; d.what != nameOperand || d.name != "_" {
		a.dst(&a.in.d, d, t)
	}
	a.in.bytes = t.bytes()
	a.in.flow = flowCheck
	f := atomically(op, t, s)
	a.in.exec = func(w *warp, in *instr, m uint32) {
		addr := w.addresses(in, isWide)
		lock := &w.block.launch.atomics
		lock.Lock()
		defer lock.Unlock()
		for ; m != 0; m &= m - 1 {
			i := lowest(m)
			b := w.at(in.space, addr[i], in.bytes, i, true)
			if b == nil {
				return
			}
			old := read(b, in.bytes)
			var x, y uint64
			if t.bits == 64 {
				x = w.wide(in.b)[i]
				if op == "cas" {
					y = w.wide(in.c)[i]
				}
			} else {
				x = uint64(w.narrow(in.b)[i])
				if op == "cas" {
					y = uint64(w.narrow(in.c)[i])
				}
			}
			write(b, in.bytes, f(old, x, y))
			if in.d == sink {
				continue
			}
			if t.bits == 64 {
				w.wide(in.d)[i] = old
			} else {
				w.narrow(in.d)[i] = uint32(old)
			}
		}
	}
}

// atomically is the new value of an operation. Values of 32 bits have zeros above, or any signs where only the low
// bits count.
func atomically(op string, t typ, s space) func(old, x, y uint64) uint64 {
	switch op {
	case "add":
		switch t.name {
		case "f64":
			return func(old, x, _ uint64) uint64 { return bits64(math.Float64frombits(old) + math.Float64frombits(x)) }
		case "f32":
			p := polish{ftz: s != sharedSpace} // on global memory, atomics flush subnormals (PTX ISA, "atom")
			return func(old, x, _ uint64) uint64 {
				return uint64(p.out(bits32(f32(p.in(uint32(old))) + f32(p.in(uint32(x))))))
			}
		case "f16", "f16x2", "bf16", "bf16x2":
			h := half{t: t}
			return func(old, x, _ uint64) uint64 {
				return uint64(h.apply(func(x, y, _ float64) float64 { return sum(x, y) }, uint32(old), uint32(x), 0))
			}
		}
		return func(old, x, _ uint64) uint64 { return old + x }
	case "min", "max":
		less := less[uint64, int64](t.kind == signed)
		return func(old, x, _ uint64) uint64 {
			if less(extend(t, x), extend(t, old)) == (op == "min") {
				return x
			}
			return old
		}
	case "and":
		return func(old, x, _ uint64) uint64 { return old & x }
	case "or":
		return func(old, x, _ uint64) uint64 { return old | x }
	case "xor":
		return func(old, x, _ uint64) uint64 { return old ^ x }
	case "exch":
		return func(_, x, _ uint64) uint64 { return x }
	case "inc":
		return func(old, x, _ uint64) uint64 {
			if old >= x {
				return 0
			}
			return old + 1
		}
	case "dec":
		return func(old, x, _ uint64) uint64 {
			if old == 0 || old > x {
				return x
			}
			return old - 1
		}
	}
	return func(old, x, y uint64) uint64 { // cas
		if old == x {
			return y
		}
		return old
	}
}
