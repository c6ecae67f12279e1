package ptx

import "slices"

// An instr is one instruction, decoded. Its operands are rows: offsets into the register file that exec knows,
// counted in lanes. A predicate is the index of its word, or the complement of that where it is negated.
type instr struct {
	exec   func(w *warp, in *instr, m uint32) // on the lanes of m, which is not zero
	flow   flow
	negate bool
	guard  int32 // the predicate that it runs under; -1: none
	target int32 // of branches

	d, e, a, b, c int32
	v             []int32 // elements of vectors
	offset        int64   // of addresses; other constants of the instruction
	bytes         int     // of an access to memory, all elements together
	space         space

	op   string
	line int
}

// flow tells the warp what to do about an instruction in addition to executing it.
type flow uint8

const (
	flowNext    flow = iota
	flowBranch       // to target
	flowRet          // the lanes end
	flowTrap         // the launch ends
	flowBarrier      // wait for other warps
	flowCheck        // exec may fail
)

// assembly is one instruction while it is decoded: what is left of its modifiers and the operands as written. The first
// error sticks, so that decoders read straight through.
type assembly struct {
	*builder
	scope *scope
	in    *instr
	mods  []string
	ops   []operand
	err   error
}

func (a *assembly) fail(format string, args ...any) {
	if a.err == nil {
		a.err = errorAt(a.in.line, a.in.op+": "+format, args...)
	}
}

// mod takes the next modifier if it is one of the choices; else it is "".
func (a *assembly) mod(choices ...string) string {
	if len(a.mods) > 0 && slices.Contains(choices, a.mods[0]) {
		m := a.mods[0]
		a.mods = a.mods[1:]
		return m
	}
	return ""
}

// must takes the next modifier, which has to be one of the choices.
func (a *assembly) must(choices ...string) string {
	m := a.mod(choices...)
	if m == "" {
		if len(a.mods) == 0 {
			a.fail("a modifier is missing, one of %v", choices)
		} else {
			a.fail("modifier .%s is not supported; one of %v is", a.mods[0], choices)
		}
		m = choices[0] // err is set: what is decoded is not used
	}
	return m
}

// typ takes a type among those named.
func (a *assembly) typ(names ...string) typ { return types[a.must(names...)] }

// count requires a number of operands.
func (a *assembly) count(n int) bool {
	if len(a.ops) != n {
		a.fail("%d operands where %d are expected", len(a.ops), n)
	}
	for len(a.ops) < n { // err is set; decoders may continue
		a.ops = append(a.ops, operand{what: numberOperand})
	}
	return a.err == nil
}

func (a *assembly) refer(field *int32, row int32, f file, writes bool) {
	*field = row
	if f != predicates {
		a.refs = append(a.refs, ref{int32(len(a.kernel.code)), field, f, writes})
	}
}

// dst resolves an operand that is written as t: a register of exactly its size.
func (a *assembly) dst(field *int32, o operand, t typ) {
	if r := a.register(o); a.err == nil {
		if r.typ.bits != t.bits {
			a.fail("%s has %d bits, not the %d of .%s", o.name, r.typ.bits, t.bits, t.name)
			return
		}
		a.refer(field, r.row, t.file(), true)
	}
}

// dstWider resolves a destination that may be wider than t, and gives its size in bits.
func (a *assembly) dstWider(field *int32, o operand, t typ) int {
	r := a.register(o)
	if a.err == nil {
		if r.typ.bits < max(t.bits, 8) {
			a.fail("%s has %d bits, too few for .%s", o.name, r.typ.bits, t.name)
			return t.bits
		}
		a.refer(field, r.row, r.typ.file(), true)
	}
	return r.typ.bits
}

// register is the register that an operand names.
func (a *assembly) register(o operand) symbol {
	if o.what != nameOperand || o.second != "" || o.negated {
		a.fail("an operand is not the register that it has to be")
		return symbol{}
	}
	r, ok := a.find(a.scope, o.name)
	if !ok || r.what != registerSymbol {
		a.fail("%s is no register", o.name)
		return symbol{}
	}
	return r
}

// src resolves an operand that is read as t: a register of its size, a number, a variable's address or a special
// register.
func (a *assembly) src(field *int32, o operand, t typ) { a.source(field, o, t, false) }

// srcWider is src where the register may be wider than t; it gives the register's size in bits.
func (a *assembly) srcWider(field *int32, o operand, t typ) int { return a.source(field, o, t, true) }

func (a *assembly) source(field *int32, o operand, t typ, mayBeWider bool) int {
	if a.err != nil {
		return t.bits
	}
	switch {
	case o.what == numberOperand:
		v, ok := fit(o, t)
		if !ok {
			a.fail("a number that is no .%s", t.name)
		}
		a.refer(field, a.constant(constant{file: t.file(), value: v}), t.file(), false)
		return t.bits
	case o.what != nameOperand || o.second != "" || o.negated:
		a.fail("an operand is of a form that is not supported")
		return t.bits
	}
	sym, ok := a.find(a.scope, o.name)
	if !ok {
		reg, bits := specialNamed(o.name)
		if reg == 0 {
			a.fail("%s is not declared, or not a special register that is supported", o.name)
			return t.bits
		}
		if bits != t.bits && !(mayBeWider && bits > t.bits) {
			a.fail("%s has %d bits, not the %d of .%s", o.name, bits, t.bits, t.name)
		}
		a.refer(field, a.constant(constant{file: narrow, reg: reg}), narrow, false)
		return bits
	}
	if sym.what == variableSymbol {
		if t.bits < 32 || sym.space == paramSpace {
			a.fail("%s has no address of %d bits", o.name, t.bits)
		}
		a.refer(field, a.address(sym, t.file()), t.file(), false)
		return t.bits
	}
	if sym.typ.bits != t.bits && !(mayBeWider && sym.typ.bits > t.bits) {
		a.fail("%s has %d bits, not the %d of .%s", o.name, sym.typ.bits, t.bits, t.name)
		return t.bits
	}
	a.refer(field, sym.row, sym.typ.file(), false)
	return sym.typ.bits
}

// address is the row of a variable's address.
func (b *builder) address(sym symbol, f file) int32 {
	if sym.addr == openShared {
		return b.constant(constant{file: f, reg: dynamicShared})
	}
	return b.constant(constant{file: f, value: sym.addr})
}

// fit gives a literal the bits that it has as a t.
func fit(o operand, t typ) (uint64, bool) {
	switch {
	case o.size == t.bits:
		return o.bits, t.kind == float || t.kind == bitsKind
	case o.size != 0:
		return 0, false
	case t.kind == float && t.bits >= 32:
		return 0, false // an integer is no float, as ptxas has it
	case t.bits == 1:
		return o.bits, o.bits <= 1
	case t.bits == 64:
		return o.bits, true
	}
	if v := int64(o.bits); v >= 1<<t.bits || v < -1<<(t.bits-1) {
		return 0, false
	}
	return o.bits & (1<<t.bits - 1), true
}

// predicate resolves a predicate that is read.
func (a *assembly) predicate(field *int32, o operand) {
	if a.err != nil {
		return
	}
	if o.what == numberOperand && o.size == 0 {
		v := uint64(0)
		if o.bits != 0 { // true may be written as -1
			v = all
		}
		*field = a.constant(constant{file: predicates, value: v})
		return
	}
	if o.what != nameOperand || o.second != "" {
		a.fail("an operand is not the predicate that it has to be")
		return
	}
	sym, ok := a.find(a.scope, o.name)
	if !ok || sym.what != registerSymbol || sym.typ.bits != 1 {
		a.fail("%s is no predicate", o.name)
		return
	}
	*field = sym.row
	if o.negated {
		*field = ^sym.row
	}
}

// sink is the row of what is written to "_": no row.
const sink = -1

// elements resolves the n elements of a vector; a lone operand is a vector of one. A "_" among what is written is a
// sink.
func (a *assembly) elements(o operand, n int, writes bool, resolve func(field *int32, o operand)) []int32 {
	elems := []operand{o}
	if o.what == vectorOperand {
		elems = o.elems
	}
	if len(elems) != n {
		a.fail("%d elements where %d are expected", len(elems), n)
		return nil
	}
	rows := make([]int32, n)
	for i, e := range elems {
		if writes && e.what == nameOperand && e.name == "_" {
			rows[i] = sink
			continue
		}
		resolve(&rows[i], e)
	}
	return rows
}

// written resolves a vector of n operands of a type that are written.
func (a *assembly) written(o operand, n int, t typ) []int32 {
	return a.elements(o, n, true, func(field *int32, o operand) { a.dst(field, o, t) })
}

// read resolves a vector of n operands of a type that are read.
func (a *assembly) read(o operand, n int, t typ) []int32 {
	return a.elements(o, n, false, func(field *int32, o operand) { a.src(field, o, t) })
}
