package ptx

import (
	"strconv"
	"strings"
)

// Limits of a target, and of what text may ask for before anything is allocated.
const (
	maxSharedBytes = 227 << 10 // per block, on any target
	maxLocalBytes  = 512 << 10 // per thread
	maxDataBytes   = 64 << 10  // of a module's variables, in address space .const
	maxParamBytes  = 32764
	maxAlign       = 1 << 10
)

// Parse reads PTX text, which may end in a NUL. Errors name the line, and the instruction or modifier that is not
// known.
func Parse(src []byte) (*Module, error) {
	tokens, err := scan(string(src))
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens, module: &Module{}, globals: &scope{symbols: map[string]symbol{}}}
	for p.at < len(p.tokens) {
		if err := p.statement(); err != nil {
			return nil, err
		}
	}
	if p.module.Version == "" {
		return nil, errorAt(1, "the text does not begin with .version")
	}
	return p.module, nil
}

type parser struct {
	tokens  []token
	at      int
	module  *Module
	globals *scope
}

// A symbol resolves a name: to a register, a variable at an address, or a range of registers "%r<100>".
type symbol struct {
	what  symbolKind
	typ   typ
	addr  uint64 // of variables, in their own space
	space space
	row   int32 // of a register; -1: none yet
	count int   // of a range of registers
}

type symbolKind uint8

const (
	registerSymbol symbolKind = iota
	rangeSymbol
	variableSymbol
)

// A scope holds the names within a pair of braces. Labels are resolved when it ends, since they may be used before they
// are set.
type scope struct {
	outer   *scope
	symbols map[string]symbol
	labels  map[string]int32
}

func (p *parser) peek() string {
	if p.at < len(p.tokens) {
		return p.tokens[p.at].text
	}
	return ""
}

func (p *parser) line() int {
	if len(p.tokens) == 0 {
		return 1
	}
	return p.tokens[min(p.at, len(p.tokens)-1)].line
}

func (p *parser) next() string {
	t := p.peek()
	p.at++
	return t
}

func (p *parser) accept(text string) bool {
	if p.peek() == text && p.at < len(p.tokens) {
		p.at++
		return true
	}
	return false
}

func (p *parser) expect(text string) error {
	if !p.accept(text) {
		return p.errorf("%q where %q is expected", p.peek(), text)
	}
	return nil
}

func (p *parser) errorf(format string, args ...any) error { return errorAt(p.line(), format, args...) }

// word takes a token that is a name or a number.
func (p *parser) word() (string, error) {
	if t := p.peek(); t != "" && isWord(t[0]) {
		p.at++
		return t, nil
	}
	return "", p.errorf("%q where a word is expected", p.peek())
}

// number takes a whole number of at most limit.
func (p *parser) number(limit int) (int, error) {
	w, err := p.word()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(w, 0, 64)
	if err != nil || n < 0 || n > int64(limit) {
		return 0, p.errorf("%q is no number of 0 to %d", w, limit)
	}
	return int(n), nil
}

// statement reads one directive outside of kernels.
func (p *parser) statement() error {
	switch t := p.next(); t {
	case ".version":
		v, err := p.word()
		p.module.Version = v
		return err
	case ".target":
		v, err := p.word()
		p.module.Target = v
		for err == nil && p.accept(",") {
			_, err = p.word()
		}
		return err
	case ".address_size":
		if w, err := p.word(); err != nil || w != "64" {
			return p.errorf("addresses of %s bits: only 64 are supported", w)
		}
		return nil
	case ".visible", ".extern", ".weak":
		return nil // linkage says nothing about one module that is complete
	case ".entry":
		return p.entry()
	case ".global", ".const", ".shared":
		return p.variable(t[1:], p.globals, nil)
	case ".section":
		return p.section()
	case ";":
		return nil
	default:
		p.at--
		return p.errorf("%q is not supported here", t)
	}
}

// section skips debugging information.
func (p *parser) section() error {
	if _, err := p.word(); err != nil {
		return err
	}
	if err := p.expect("{"); err != nil {
		return err
	}
	for p.at < len(p.tokens) {
		if p.next() == "}" {
			return nil
		}
	}
	return p.errorf("a .section does not end")
}

// variable reads what follows .global, .const, .shared or .local: [.align N] .type name[N] [= {...}];
// Within a kernel k, it allots shared and local memory.
func (p *parser) variable(where string, s *scope, k *Kernel) error {
	align := 0
	if p.accept(".align") {
		n, err := p.number(maxAlign)
		if err != nil {
			return err
		}
		if n == 0 || n&(n-1) != 0 {
			return p.errorf("an alignment of %d", n)
		}
		align = n
	}
	w, err := p.word()
	if err != nil {
		return err
	}
	t, ok := types[strings.TrimPrefix(w, ".")]
	if !ok || t.bits < 8 || w[0] != '.' {
		return p.errorf("variables of type %s are not supported", w)
	}
	align = max(align, t.bytes())
	name, err := p.word()
	if err != nil {
		return err
	}
	count, isOpen := 1, false
	if p.accept("[") {
		if isOpen = p.accept("]"); !isOpen {
			if count, err = p.number(1 << 20); err != nil {
				return err
			}
			if err := p.expect("]"); err != nil {
				return err
			}
		}
	}
	bytes := count * t.bytes()
	sym := symbol{what: variableSymbol, typ: t}
	switch where {
	case "global", "const":
		sym.space = globalSpace
		if where == "const" {
			sym.space = constSpace
		}
		at := alignUp(len(p.module.data), align)
		if at+bytes > maxDataBytes || isOpen {
			return p.errorf("variables of more than %d bytes", maxDataBytes)
		}
		p.module.data = append(p.module.data, make([]byte, at+bytes-len(p.module.data))...)
		sym.addr = dataWindow + uint64(at)
		if p.accept("=") {
			if err := p.initial(p.module.data[at:], t); err != nil {
				return err
			}
		}
	case "shared":
		sym.space = sharedSpace
		switch {
		case isOpen:
			sym.addr = openShared // known at a launch
		case k == nil:
			return p.errorf(".shared %s outside of a kernel has no size that a launch could count", name)
		default:
			at := alignUp(k.SharedBytes, align)
			if at+bytes > maxSharedBytes {
				return p.errorf("more than %d bytes of shared memory", maxSharedBytes)
			}
			k.SharedBytes = at + bytes
			sym.addr = sharedBase + uint64(at)
		}
	case "local":
		sym.space = localSpace
		at := alignUp(k.localBytes, align)
		if at+bytes > maxLocalBytes || isOpen {
			return p.errorf("more than %d bytes of local memory", maxLocalBytes)
		}
		k.localBytes = at + bytes
		sym.addr = localBase + uint64(at)
	}
	if _, ok := s.symbols[name]; ok {
		return p.errorf("%s is declared twice", name)
	}
	s.symbols[name] = sym
	return p.expect(";")
}

// initial reads a variable's initial bytes; the rest is zero.
func (p *parser) initial(dst []byte, t typ) error {
	braces := p.accept("{")
	for i := 0; ; i++ {
		if braces && p.accept("}") {
			return nil
		}
		neg := p.accept("-")
		w, err := p.word()
		if err != nil {
			return err
		}
		o, err := literal(w)
		if err != nil {
			return p.errorf("%q is no initial value that is supported", w)
		}
		if (i+1)*t.bytes() > len(dst) {
			return p.errorf("more initial values than elements")
		}
		if neg {
			o.bits = -o.bits
		}
		for b := range t.bytes() {
			dst[i*t.bytes()+b] = byte(o.bits >> (8 * b))
		}
		if !braces {
			return nil
		}
		if !p.accept(",") {
			return p.expect("}")
		}
	}
}

// entry reads a kernel: its name, parameters, directives and body.
func (p *parser) entry() error {
	name, err := p.word()
	if err != nil {
		return err
	}
	if p.module.Kernel(name) != nil {
		return p.errorf("entry %s is declared twice", name)
	}
	k := &Kernel{Name: name, module: p.module}
	s := &scope{outer: p.globals, symbols: map[string]symbol{}, labels: map[string]int32{}}
	if p.accept("(") {
		for !p.accept(")") {
			if err := p.param(k, s); err != nil {
				return err
			}
			if !p.accept(",") && p.peek() != ")" {
				return p.errorf("%q in a list of parameters", p.peek())
			}
		}
	}
	for p.peek() != "{" {
		d := p.next()
		switch d {
		case ".reqntid", ".maxntid":
			n := 1
			for {
				size, err := p.number(1024)
				if err != nil {
					return err
				}
				if n *= size; n == 0 || n > 1024 {
					return p.errorf("%s of %d threads", d, n)
				}
				if !p.accept(",") {
					break
				}
			}
			k.MaxThreads, k.ExactThreads = n, d == ".reqntid"
		case ".minnctapersm", ".maxnreg":
			if _, err := p.number(1 << 16); err != nil {
				return err
			}
		default:
			p.at--
			return p.errorf("directive %q of a kernel is not supported", d)
		}
	}
	b := &builder{parser: p, kernel: k, constants: map[constant]int32{}}
	if err := b.body(s); err != nil {
		return err
	}
	p.module.kernels = append(p.module.kernels, k)
	return nil
}

// param reads ".param .u64 .ptr .global .align 1 name".
func (p *parser) param(k *Kernel, s *scope) error {
	if err := p.expect(".param"); err != nil {
		return err
	}
	w, err := p.word()
	if err != nil {
		return err
	}
	t, ok := types[strings.TrimPrefix(w, ".")]
	if !ok || t.bits < 8 || w[0] != '.' {
		return p.errorf("parameters of type %s are not supported", w)
	}
	param := Param{Type: t.name, Bytes: t.bytes()}
	for {
		if w, err = p.word(); err != nil {
			return err
		}
		switch w {
		case ".ptr":
			param.Pointer = true
		case ".global", ".shared", ".const", ".local":
		case ".align":
			if _, err := p.number(1 << 10); err != nil { // of what a pointer points to
				return err
			}
		default:
			if strings.HasPrefix(w, ".") {
				return p.errorf("attribute %s of a parameter is not supported", w)
			}
			if p.peek() == "[" {
				return p.errorf("array parameters are not supported")
			}
			if _, ok := s.symbols[w]; ok {
				return p.errorf("%s is declared twice", w)
			}
			param.Name = w
			param.Offset = alignUp(k.paramBytes, param.Bytes)
			if k.paramBytes = param.Offset + param.Bytes; k.paramBytes > maxParamBytes {
				return p.errorf("more than %d bytes of parameters", maxParamBytes)
			}
			s.symbols[w] = symbol{what: variableSymbol, typ: t, space: paramSpace, addr: uint64(param.Offset)}
			k.params = append(k.params, param)
			return nil
		}
	}
}

func alignUp(n, align int) int { return (n + align - 1) / align * align }
