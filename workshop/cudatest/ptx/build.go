package ptx

import (
	"math"
	"strconv"
	"strings"
)

// A builder turns the body of a kernel into instructions.
type builder struct {
	*parser
	kernel    *Kernel
	constants map[constant]int32 // the row of each
	refs      []ref
	jumps     []jump
	starts    map[int32]bool // instructions that a label stands before
	products  []product
}

// A ref is one operand of an instruction that names a row, for [builder.compact].
type ref struct {
	at     int32 // instruction
	field  *int32
	file   file
	writes bool
}

// A jump waits for its scope to end, which settles what its label is.
type jump struct {
	in    *instr
	label string
	scope *scope
}

// A constant is a row that does not change while a block runs: a number, or a special register.
type constant struct {
	file  file
	value uint64
	reg   special // 0: value counts
	row   int32   // set in Kernel.constants only
}

// lanes counts the threads of a warp; rows are counted in lanes.
const lanes = 32

// body reads a kernel's statements, up to the brace that closes it.
func (b *builder) body(outer *scope) error {
	b.starts = map[int32]bool{}
	if err := b.block(outer, 0); err != nil {
		return err
	}
	// Falling off the end is a return.
	b.emit(&instr{op: "ret", line: b.line(), flow: flowRet, guard: -1})
	b.compact()
	b.fusible()
	return nil
}

func (b *builder) emit(in *instr) { b.kernel.code = append(b.kernel.code, in) }

const maxNesting = 100

// block reads "{ ... }" with a scope of its own.
func (b *builder) block(outer *scope, depth int) error {
	if err := b.expect("{"); err != nil {
		return err
	}
	if depth > maxNesting {
		return b.errorf("more than %d nested scopes", maxNesting)
	}
	s := &scope{outer: outer, symbols: map[string]symbol{}, labels: map[string]int32{}}
	first := len(b.jumps)
	for {
		switch t := b.peek(); t {
		case "":
			return b.errorf("kernel %s does not end", b.kernel.Name)
		case "}":
			b.at++
			return b.resolveJumps(s, first, depth)
		case "{":
			if err := b.block(s, depth+1); err != nil {
				return err
			}
		case ";":
			b.at++
		case ".reg":
			b.at++
			if err := b.registers(s); err != nil {
				return err
			}
		case ".shared", ".local":
			b.at++
			if err := b.variable(t[1:], s, b.kernel); err != nil {
				return err
			}
		case ".pragma": // hints
			for b.at < len(b.tokens) && b.next() != ";" {
			}
		default:
			if b.at+1 < len(b.tokens) && b.tokens[b.at+1].text == ":" && isWord(t[0]) {
				if _, ok := s.labels[t]; ok {
					return b.errorf("label %s is set twice", t)
				}
				s.labels[t] = int32(len(b.kernel.code))
				b.starts[int32(len(b.kernel.code))] = true
				b.at += 2
				break
			}
			if err := b.instruction(s); err != nil {
				return err
			}
		}
	}
}

// resolveJumps gives the jumps of a scope their targets, and leaves those that it does not know to the outer one.
func (b *builder) resolveJumps(s *scope, first, depth int) error {
	kept := b.jumps[:first]
	for _, j := range b.jumps[first:] {
		if target, ok := s.labels[j.label]; ok {
			j.in.target = target
			continue
		}
		if depth == 0 {
			return errorAt(j.in.line, "%s: there is no label %s", j.in.op, j.label)
		}
		kept = append(kept, j)
	}
	b.jumps = kept
	return nil
}

// registers reads "%r<100>, %f;" after .reg and a type.
func (b *builder) registers(s *scope) error {
	w, err := b.word()
	if err != nil {
		return err
	}
	t, ok := types[strings.TrimPrefix(w, ".")]
	if !ok || w[0] != '.' {
		return b.errorf("registers of type %s are not supported", w)
	}
	for {
		name, err := b.word()
		if err != nil {
			return err
		}
		sym := symbol{what: registerSymbol, typ: t, row: -1}
		if b.accept("<") {
			if sym.count, err = b.number(math.MaxInt32); err != nil {
				return err
			}
			if err := b.expect(">"); err != nil {
				return err
			}
			sym.what = rangeSymbol
			name += "<>"
		}
		if _, ok := s.symbols[name]; ok {
			return b.errorf("%s is declared twice", name)
		}
		s.symbols[name] = sym
		if !b.accept(",") {
			return b.expect(";")
		}
	}
}

// find looks a name up. A register gets its row at first sight, so that a declaration of a billion registers costs
// nothing.
func (b *builder) find(s *scope, name string) (symbol, bool) {
	digits := len(name)
	for digits > 0 && name[digits-1] >= '0' && name[digits-1] <= '9' {
		digits--
	}
	index, err := strconv.Atoi(name[digits:])
	isNumbered := err == nil && (name[digits] != '0' || digits == len(name)-1)
	for ; s != nil; s = s.outer {
		if sym, ok := s.symbols[name]; ok {
			if sym.what == registerSymbol && sym.row < 0 {
				sym.row = b.row(sym.typ.file())
				s.symbols[name] = sym
			}
			return sym, true
		}
		if isNumbered {
			if sym, ok := s.symbols[name[:digits]+"<>"]; ok && index < sym.count {
				sym.what, sym.row = registerSymbol, b.row(sym.typ.file())
				s.symbols[name] = sym
				return sym, true
			}
		}
	}
	return symbol{}, false
}

// row takes a new row of a register file. Predicates are counted one by one, since they are one word each.
func (b *builder) row(f file) int32 {
	if f == predicates {
		b.kernel.predicates++
		return int32(b.kernel.predicates - 1)
	}
	b.kernel.rows[f]++
	return int32(b.kernel.rows[f]-1) * lanes
}

// constant is the row of a constant.
func (b *builder) constant(c constant) int32 {
	row, ok := b.constants[c]
	if !ok {
		row = b.row(c.file)
		b.constants[c] = row
		c.row = row
		b.kernel.constants = append(b.kernel.constants, c)
	}
	return row
}

// instruction reads "@!%p1 op.mod.type d, a, b;" and decodes it.
func (b *builder) instruction(s *scope) error {
	in := &instr{line: b.line(), guard: -1}
	a := &assembly{builder: b, scope: s, in: in}
	if b.accept("@") {
		in.negate = b.accept("!")
		name, err := b.word()
		if err != nil {
			return err
		}
		sym, ok := b.find(s, name)
		if !ok || sym.what != registerSymbol || sym.typ.bits != 1 {
			return b.errorf("@%s is no predicate", name)
		}
		in.guard = sym.row
	}
	op, err := b.word()
	if err != nil {
		return err
	}
	in.op = op
	in.line = b.tokens[b.at-1].line
	parts := strings.Split(op, ".")
	a.mods = parts[1:]
	if !b.accept(";") {
		for {
			o, err := b.operand(0)
			if err != nil {
				return err
			}
			a.ops = append(a.ops, o)
			if b.accept(",") {
				continue
			}
			if err := b.expect(";"); err != nil {
				return err
			}
			break
		}
	}
	decode, ok := decoders[parts[0]]
	if !ok {
		return errorAt(in.line, "instruction %s is not supported", op)
	}
	decode(a)
	if a.err == nil && len(a.mods) > 0 {
		a.fail("modifier .%s is not supported", a.mods[0])
	}
	if a.err != nil {
		return a.err
	}
	if in.exec == nil && in.flow == flowNext {
		return nil // a hint that does nothing
	}
	b.emit(in)
	return nil
}

// An operand as it is written.
type operand struct {
	what    operandKind
	name    string
	second  string // b of "a|b"
	negated bool
	bits    uint64
	size    int // of a literal's float: 32 or 64; 0: an integer
	elems   []operand
	offset  int64
}

type operandKind uint8

const (
	nameOperand operandKind = iota
	numberOperand
	vectorOperand
	addressOperand
)

func (b *builder) operand(depth int) (operand, error) {
	switch {
	case b.accept("{"):
		o := operand{what: vectorOperand}
		if depth > 0 {
			return o, b.errorf("a vector in a vector")
		}
		for {
			e, err := b.operand(depth + 1)
			if err != nil {
				return o, err
			}
			o.elems = append(o.elems, e)
			if !b.accept(",") {
				return o, b.expect("}")
			}
		}
	case b.accept("["):
		o, err := b.operand(depth + 1)
		if err != nil {
			return o, err
		}
		if o.what == vectorOperand || o.what == addressOperand || o.second != "" || o.negated {
			return o, b.errorf("this form of address is not supported")
		}
		base := o
		o = operand{what: addressOperand, elems: []operand{base}}
		if base.what == numberOperand {
			o.elems, o.offset = nil, int64(base.bits)
		}
		for b.accept("+") {
			neg := b.accept("-")
			w, err := b.word()
			if err != nil {
				return o, err
			}
			n, err := literal(w)
			if err != nil || n.size != 0 {
				return o, b.errorf("%q is no offset", w)
			}
			if neg {
				n.bits = -n.bits
			}
			o.offset += int64(n.bits)
		}
		return o, b.expect("]")
	case b.accept("!"):
		o, err := b.operand(depth + 1)
		if o.what != nameOperand || o.negated {
			return o, b.errorf("! before something other than a predicate")
		}
		o.negated = true
		return o, err
	case b.accept("-"):
		w, err := b.word()
		if err != nil {
			return operand{}, err
		}
		o, err := literal(w)
		if err != nil || o.size != 0 {
			return o, b.errorf("%q after a minus sign", w)
		}
		o.bits = -o.bits
		return o, nil
	}
	w, err := b.word()
	if err != nil {
		return operand{}, err
	}
	if w[0] >= '0' && w[0] <= '9' {
		o, err := literal(w)
		if err != nil {
			return o, b.errorf("%q is no number that is supported", w)
		}
		return o, nil
	}
	o := operand{what: nameOperand, name: w}
	if b.accept("|") {
		o.second, err = b.word()
	}
	return o, err
}

// literal reads 0f3F800000, 0d..., 1.0, or an integer in C's notation.
func literal(w string) (operand, error) {
	o := operand{what: numberOperand}
	var err error
	switch {
	case len(w) == 10 && (w[:2] == "0f" || w[:2] == "0F"):
		o.size = 32
		o.bits, err = strconv.ParseUint(w[2:], 16, 32)
	case len(w) == 18 && (w[:2] == "0d" || w[:2] == "0D"):
		o.size = 64
		o.bits, err = strconv.ParseUint(w[2:], 16, 64)
	default:
		if strings.Contains(w, "_") {
			return o, strconv.ErrSyntax
		}
		if strings.Contains(w, ".") {
			var x float64
			x, err = strconv.ParseFloat(w, 64)
			o.size, o.bits = 64, math.Float64bits(x)
			break
		}
		o.bits, err = strconv.ParseUint(strings.TrimSuffix(w, "U"), 0, 64)
	}
	return o, err
}
