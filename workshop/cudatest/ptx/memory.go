package ptx

import (
	"encoding/binary"
	"fmt"
)

// A Memory resolves a kernel's global addresses. At lends the n bytes from an address on; it fails if they are
// not all inside of one allocation. It is called from several goroutines where a launch has more than one worker, and
// also to find out whether a range is valid: an error need not end the launch. Addresses from 1<<63 on are not asked
// for.
type Memory interface {
	At(addr uint64, n int) ([]byte, error)
}

// A space is one of PTX's address spaces.
type space uint8

const (
	genericSpace space = iota
	globalSpace
	sharedSpace
	localSpace
	paramSpace
	constSpace
)

var spaces = map[string]space{"global": globalSpace, "shared": sharedSpace, "local": localSpace, "const": constSpace}

// Shared and local memory begin above zero, so that a null pointer hits nothing. In generic addresses, each has a
// window; a module's variables have theirs in global and generic addresses alike.
const (
	sharedBase  = 1 << 10
	localBase   = 1 << 10
	openShared  = ^uint64(0) // the address of an extern .shared array, until a launch
	windowBytes = 1 << 24

	sharedWindow = 0xff00_0000_0000_0000
	localWindow  = 0xff00_0000_0100_0000
	dataWindow   = 0xff00_0000_0200_0000
)

// window is added to an address of a space to make it generic.
func (s space) window() uint64 {
	switch s {
	case sharedSpace:
		return sharedWindow
	case localSpace:
		return localWindow
	}
	return 0
}

// at lends n bytes at an address of a space, to a lane. It returns nil if the address is illegal; then the warp has
// failed.
func (w *warp) at(s space, addr uint64, n, lane int, writes bool) []byte {
	if s == genericSpace || s == globalSpace {
		switch base := addr &^ (windowBytes - 1); {
		case base == dataWindow && !writes:
			s = constSpace
		case base == sharedWindow && s == genericSpace:
			s, addr = sharedSpace, addr-sharedWindow
		case base == localWindow && s == genericSpace:
			s, addr = localSpace, addr-localWindow
		default:
			s = globalSpace
		}
	}
	if addr%uint64(n) != 0 {
		w.fail(lane, fmt.Errorf("%w %#x of %d bytes", ErrMisaligned, addr, n))
		return nil
	}
	var mem []byte
	var base uint64
	name := ""
	switch s {
	case globalSpace:
		return w.global(addr, n, lane)
	case sharedSpace:
		mem, base, name = w.block.shared, sharedBase, "shared memory"
	case localSpace:
		size := len(w.local) / lanes
		mem, base, name = w.local[lane*size:(lane+1)*size], localBase, "local memory"
	case constSpace:
		mem, base, name = w.block.launch.kernel.module.data, dataWindow, "the module's variables"
	case paramSpace:
		mem, base, name = w.block.launch.params, 0, "parameters"
	}
	if off := addr - base; off < uint64(len(mem)) && uint64(n) <= uint64(len(mem))-off {
		return mem[off : off+uint64(n) : off+uint64(n)]
	}
	w.fail(lane, fmt.Errorf("%w %#x of %d bytes of %s, which has %d from %#x on", ErrAddress, addr, n, name, len(mem),
		base))
	return nil
}

// global lends global memory. It returns nil if the address is illegal; then the warp has failed.
func (w *warp) global(addr uint64, n, lane int) []byte {
	if addr >= 1<<63 {
		w.fail(lane, fmt.Errorf("%w %#x", ErrAddress, addr))
		return nil
	}
	b, err := w.block.launch.memory.At(addr, n)
	if err != nil {
		w.fail(lane, fmt.Errorf("%w %#x of %d bytes: %w", ErrAddress, addr, n, err))
		return nil
	}
	return b
}

// addresses computes those of an instruction with its base in row in.a.
func (w *warp) addresses(in *instr, isWide bool) *[lanes]uint64 {
	d := &w.addr
	if isWide {
		a := w.wide(in.a)
		for i := range d {
			d[i] = a[i] + uint64(in.offset)
		}
		return d
	}
	a := w.narrow(in.a)
	for i := range d { // 32-bit spaces: addresses wrap
		d[i] = uint64(a[i] + uint32(in.offset))
	}
	return d
}

// span is memory that holds all that the lanes of an access touch, and where it begins: all of shared memory, all
// parameters, or a range of global memory, if they are close together in one allocation. It is the usual case, with one
// check instead of 32; else it is nil.
func (w *warp) span(s space, m uint32, addr *[lanes]uint64, n int) (mem []byte, base uint64) {
	if s != globalSpace && s != sharedSpace && s != paramSpace {
		return nil, 0
	}
	lo, hi, union := ^uint64(0), uint64(0), uint64(0)
	if m == all {
		for _, x := range addr {
			lo, hi, union = min(lo, x), max(hi, x), union|x
		}
	} else {
		for r := m; r != 0; r &= r - 1 {
			x := addr[lowest(r)]
			lo, hi, union = min(lo, x), max(hi, x), union|x
		}
	}
	switch {
	case union%uint64(n) != 0:
		return nil, 0
	case s == paramSpace:
		if hi+uint64(n) > uint64(len(w.block.launch.params)) || hi >= 1<<63 {
			return nil, 0
		}
		return w.block.launch.params, 0
	case s == sharedSpace:
		if lo < sharedBase || hi-sharedBase+uint64(n) > uint64(len(w.block.shared)) || hi >= 1<<63 {
			return nil, 0
		}
		return w.block.shared, sharedBase
	case hi-lo > 1<<14 || hi >= 1<<63:
		return nil, 0
	}
	mem, err := w.block.launch.memory.At(lo, int(hi-lo)+n)
	if err != nil {
		return nil, 0
	}
	return mem, lo
}

// pointer resolves an address operand into in.a and in.offset.
func (a *assembly) pointer(o operand, s space) (isWide bool) {
	if a.err != nil {
		return false
	}
	if o.what != addressOperand {
		a.fail("an operand is not the [address] that it has to be")
		return false
	}
	a.in.space, a.in.offset = s, o.offset
	if len(o.elems) == 0 {
		a.refer(&a.in.a, a.constant(constant{file: wide}), wide, false)
		return true
	}
	base := o.elems[0]
	if sym, ok := a.find(a.scope, base.name); ok && sym.what == variableSymbol {
		isGlobal := sym.space == constSpace && s == globalSpace
		if sym.space != s && !isGlobal {
			a.fail("%s is in another space", base.name)
			return false
		}
		a.refer(&a.in.a, a.address(sym, wide), wide, false)
		return true
	}
	r := a.register(base)
	if a.err == nil && r.typ.bits != 64 && (r.typ.bits != 32 || s == globalSpace || s == genericSpace) {
		a.fail("%s has %d bits, which are no address here", base.name, r.typ.bits)
		return false
	}
	a.refer(&a.in.a, r.row, r.typ.file(), false)
	return r.typ.bits == 64
}

var loadable = []string{"b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64"}

// access takes the modifiers of ld and st. What caches say changes nothing here, where memory is one. isStrong reports
// whether others may change the memory meanwhile (PTX ISA, "Memory Consistency Model", strong operations).
func (a *assembly) access(isLoad bool) (s space, n int, t typ, isStrong bool) {
	switch a.mod("weak", "volatile") {
	case "volatile":
		isStrong = true
	case "":
		if isStrong = a.mod("relaxed", "acquire", "release") != ""; isStrong {
			a.must("cta", "cluster", "gpu", "sys")
		}
	}
	s = genericSpace
	if isLoad && a.mod("param") != "" {
		s = paramSpace
	} else if isLoad && a.mod("const") != "" {
		s = constSpace
	} else {
		s = spaces[a.mod("global", "shared", "local")]
	}
	a.mod("ca", "cg", "cs", "lu", "cv", "wb", "wt")
	if isLoad {
		a.mod("nc")
	}
	hinted := a.caching()
	n = 1
	switch a.mod("v2", "v4") {
	case "v2":
		n = 2
	case "v4":
		n = 4
	}
	t = a.typ(loadable...)
	if hinted {
		a.dropPolicy()
	}
	if n*t.bytes() > 16 {
		a.fail("an access of %d bytes", n*t.bytes())
	}
	return s, n, t, isStrong
}

// caching takes modifiers that say how long caches should keep something. hinted is true if a cache policy is the
// last operand.
func (a *assembly) caching() (hinted bool) {
	a.mod("L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate")
	hinted = a.mod("L2::cache_hint") != ""
	a.mod("L2::64B", "L2::128B", "L2::256B")
	return hinted
}

// dropPolicy takes the cache policy off the operands, once it is known to be a 64-bit value.
func (a *assembly) dropPolicy() {
	if len(a.ops) == 0 {
		a.fail("the cache policy is missing")
		return
	}
	var ignored int32
	policy := a.ops[len(a.ops)-1]
	a.ops = a.ops[:len(a.ops)-1]
	a.src(&ignored, policy, types["b64"])
}

func decodeLoad(a *assembly) {
	s, n, t, isStrong := a.access(true)
	if !a.count(2) {
		return
	}
	isWide := a.pointer(a.ops[1], s)
	width := 0
	a.in.v = a.elements(a.ops[0], n, true, func(field *int32, o operand) {
		bits := a.dstWider(field, o, t)
		if width != 0 && bits != width {
			a.fail("elements of different sizes")
		}
		width = bits
	})
	a.in.bytes = n * t.bytes()
	a.in.flow = flowCheck
	size := t.bytes()
	extended := t.kind == signed && t.bits < width
	load := func(w *warp, in *instr, m uint32) {
		addr := w.addresses(in, isWide)
		mem, base := w.span(in.space, m, addr, in.bytes)
		switch {
		case mem != nil && size == 4 && width == 32:
			loadWords(w, in, m, addr, mem, base)
			return
		case mem != nil && size == 2 && width <= 32 && !extended:
			loadHalves(w, in, m, addr, mem, base)
			return
		}
		for ; m != 0; m &= m - 1 {
			i := lowest(m)
			var b []byte
			if mem != nil {
				b = mem[addr[i]-base:][:in.bytes]
			} else if b = w.at(in.space, addr[i], in.bytes, i, false); b == nil {
				return
			}
			for e, r := range in.v {
				if r == sink {
					continue
				}
				x := read(b[e*size:], size)
				if extended {
					x = fill(extend(t, x), width)
				}
				if width == 64 {
					w.wide(r)[i] = x
				} else {
					w.narrow(r)[i] = uint32(x)
				}
			}
		}
	}
	a.in.exec = load
	if isStrong {
		a.in.exec = func(w *warp, in *instr, m uint32) {
			l := &w.block.launch.atomics
			l.Lock()
			defer l.Unlock()
			load(w, in, m)
		}
	}
}

// loadWords is a load of 32-bit elements from a span: most loads are.
func loadWords(w *warp, in *instr, m uint32, addr *[lanes]uint64, mem []byte, base uint64) {
	for e, r := range in.v {
		if r == sink {
			continue
		}
		d, from := w.narrow(r), mem[4*e:]
		if m == all {
			for i, x := range addr {
				d[i] = binary.LittleEndian.Uint32(from[x-base:])
			}
			continue
		}
		for rest := m; rest != 0; rest &= rest - 1 {
			i := lowest(rest)
			d[i] = binary.LittleEndian.Uint32(from[addr[i]-base:])
		}
	}
}

// loadHalves is a load of 16-bit elements from a span.
func loadHalves(w *warp, in *instr, m uint32, addr *[lanes]uint64, mem []byte, base uint64) {
	for e, r := range in.v {
		if r == sink {
			continue
		}
		d, from := w.narrow(r), mem[2*e:]
		for rest := m; rest != 0; rest &= rest - 1 {
			i := lowest(rest)
			d[i] = uint32(binary.LittleEndian.Uint16(from[addr[i]-base:]))
		}
	}
}

// read is the little-endian value of the first bytes of b.
func read(b []byte, bytes int) uint64 {
	switch bytes {
	case 4:
		return uint64(binary.LittleEndian.Uint32(b))
	case 8:
		return binary.LittleEndian.Uint64(b)
	case 2:
		return uint64(binary.LittleEndian.Uint16(b))
	}
	return uint64(b[0])
}

func write(b []byte, bytes int, x uint64) {
	switch bytes {
	case 4:
		binary.LittleEndian.PutUint32(b, uint32(x))
	case 8:
		binary.LittleEndian.PutUint64(b, x)
	case 2:
		binary.LittleEndian.PutUint16(b, uint16(x))
	default:
		b[0] = byte(x)
	}
}

func decodeStore(a *assembly) {
	s, n, t, _ := a.access(false)
	if !a.count(2) {
		return
	}
	isWide := a.pointer(a.ops[0], s)
	width := 0
	a.in.v = a.elements(a.ops[1], n, false, func(field *int32, o operand) {
		bits := a.srcWider(field, o, t)
		if width != 0 && bits != width {
			a.fail("elements of different sizes")
		}
		width = bits
	})
	a.in.bytes = n * t.bytes()
	a.in.flow = flowCheck
	size := t.bytes()
	a.in.exec = func(w *warp, in *instr, m uint32) {
		addr := w.addresses(in, isWide)
		mem, base := w.span(in.space, m, addr, in.bytes)
		if mem != nil && size == 4 && width == 32 {
			storeWords(w, in, m, addr, mem, base)
			return
		}
		for ; m != 0; m &= m - 1 {
			i := lowest(m)
			var b []byte
			if mem != nil {
				b = mem[addr[i]-base:][:in.bytes]
			} else if b = w.at(in.space, addr[i], in.bytes, i, true); b == nil {
				return
			}
			for e, r := range in.v {
				if width == 64 {
					write(b[e*size:], size, w.wide(r)[i])
				} else {
					write(b[e*size:], size, uint64(w.narrow(r)[i]))
				}
			}
		}
	}
}

// storeWords is a store of 32-bit elements to a span. Where lanes have one address, the last one's elements stay.
func storeWords(w *warp, in *instr, m uint32, addr *[lanes]uint64, mem []byte, base uint64) {
	for e, r := range in.v {
		x, to := w.narrow(r), mem[4*e:]
		for rest := m; rest != 0; rest &= rest - 1 {
			i := lowest(rest)
			binary.LittleEndian.PutUint32(to[addr[i]-base:], x[i])
		}
	}
}

// decodePrefetch reads prefetch, a hint. Its address is not checked, as on a GPU.
func decodePrefetch(a *assembly) {
	s := spaces[a.mod("global", "local")]
	a.must("L1", "L2", "L2::evict_last", "L2::evict_normal")
	if a.count(1) {
		a.pointer(a.ops[0], s)
	}
}

// decodePolicy reads createpolicy, whose result only hints take.
func decodePolicy(a *assembly) {
	a.must("fractional")
	a.must("L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged")
	a.mod("L2::evict_first", "L2::evict_unchanged")
	t := a.typ("b64")
	if len(a.ops) == 2 {
		a.ops = a.ops[:1] // the fraction
	}
	if a.count(1) {
		a.dst(&a.in.d, a.ops[0], t)
		a.in.exec = func(w *warp, in *instr, m uint32) {
			for d := w.wide(in.d); m != 0; m &= m - 1 {
				d[lowest(m)] = 0
			}
		}
	}
}

// decodeFence reads membar and fence: memory is one, and each warp's accesses are done in order.
func decodeFence(a *assembly) {
	if a.in.op[:5] == "fence" {
		if a.mod("proxy") != "" { // of instructions that go past the caches, which the emulator does not have
			a.must("async")
			a.mod("global", "shared::cta", "shared::cluster")
			a.count(0)
			return
		}
		a.mod("acq_rel", "sc", "acquire", "release")
		a.must("cta", "cluster", "gpu", "sys")
	} else {
		a.must("cta", "gl", "sys", "gpu")
	}
	a.count(0)
}
