package template

import (
	"cmp"
	"math"
	"math/bits"
	"strings"
)

// number is an operand of arithmetic: an integer in n or a float in f.
type number struct {
	n       int64
	f       float64
	isFloat bool
}

func numberOf(v Value) (number, bool) {
	switch v := v.(type) {
	case Int:
		return number{n: int64(v)}, true
	case Bool:
		if v {
			return number{n: 1}, true
		}
		return number{}, true
	case Float:
		return number{f: float64(v), isFloat: true}, true
	}
	return number{}, false
}

func (n number) asFloat() float64 {
	if n.isFloat {
		return n.f
	}
	return float64(n.n)
}

// cmp compares exactly, integers with floats too; ok is false where one is NaN.
func (n number) cmp(m number) (c int, ok bool) {
	if !n.isFloat && !m.isFloat {
		return cmp.Compare(n.n, m.n), true
	}
	x, y := n.asFloat(), m.asFloat()
	switch {
	case math.IsNaN(x) || math.IsNaN(y):
		return 0, false
	case x != y || n.isFloat && m.isFloat:
		return cmp.Compare(x, y), true
	case n.isFloat:
		c, ok = m.cmp(n)
		return -c, ok
	case y >= 1<<63: // to which n was rounded up
		return -1, true
	}
	return cmp.Compare(n.n, int64(y)), true
}

func (s *state) checkDefined(v Value) {
	if u, ok := v.(*undefined); ok {
		s.failUndefined(u)
	}
}

// checkOperand fails on what Python computes with and this package does not.
func (s *state) checkOperand(v Value) {
	s.checkDefined(v)
	if _, ok := v.(bigInt); ok {
		s.fail("%s", unsupported("arithmetic", "on an integer of more than 64 bits"))
	}
}

func (s *state) negate(v Value) Value {
	n, ok := numberOf(v)
	switch {
	case !ok:
		s.checkOperand(v)
		s.fail("bad operand type for unary -: '%s'", v.typeName())
	case n.isFloat:
		return Float(-n.f)
	}
	return s.arithInts("-", 0, n.n)
}

// arith is a op b for + - * / // %.
func (s *state) arith(op string, a, b Value) Value {
	x, ok1 := numberOf(a)
	y, ok2 := numberOf(b)
	switch {
	case ok1 && ok2 && (x.isFloat || y.isFloat || op == "/"):
		return s.arithFloats(op, x.asFloat(), y.asFloat())
	case ok1 && ok2:
		return s.arithInts(op, x.n, y.n)
	}
	s.checkOperand(a)
	s.checkOperand(b)
	switch {
	case op == "+":
		if v := s.join2(a, b); v != nil {
			return v
		}
	case op == "%" && a.typeName() == "str":
		s.fail("%s", unsupported("operator", "% on a text"))
	case op == "*" && ok2 && !y.isFloat:
		if v := s.repeat(a, y.n); v != nil {
			return v
		}
	case op == "*" && ok1 && !x.isFloat:
		if v := s.repeat(b, x.n); v != nil {
			return v
		}
	}
	s.fail("unsupported operand type(s) for %s: '%s' and '%s'", op, a.typeName(), b.typeName())
	return nil
}

// join2 is a + b of sequences, or nil.
func (s *state) join2(a, b Value) Value {
	switch x := a.(type) {
	case String:
		if y, ok := b.(String); ok {
			s.alloc(len(x) + len(y))
			return x + y
		}
	case *List:
		if y, ok := b.(*List); ok {
			return &List{s.all(x.items, y.items)}
		}
	case *tuple:
		if y, ok := b.(*tuple); ok {
			return &tuple{s.all(x.items, y.items)}
		}
	}
	return nil
}

// repeat is v * times of a text or a list, or nil.
func (s *state) repeat(v Value, times int64) Value {
	times = max(times, 0)
	size := 0
	switch v := v.(type) {
	case String:
		size = len(v)
	case *List:
		size = valueBytes * len(v.items)
	default:
		return nil
	}
	if size == 0 {
		return v
	}
	if times > s.allocLeft/int64(size) {
		s.alloc(math.MaxInt) // cannot be, and fails with the limit
	}
	s.alloc(int(times) * size)
	if text, ok := v.(String); ok {
		return String(strings.Repeat(string(text), int(times)))
	}
	items := v.(*List).items
	all := make([]Value, 0, int(times)*len(items))
	for range times {
		all = append(all, items...)
	}
	return &List{all}
}

// arithInts fails where the result does not fit into 64 bits.
func (s *state) arithInts(op string, a, b int64) Value {
	var c int64
	fits := true
	switch op {
	case "+":
		c = a + b
		fits = (c > a) == (b > 0)
	case "-":
		c = a - b
		fits = (c < a) == (b > 0)
	case "*":
		hi, lo := bits.Mul64(uint64(a), uint64(b))
		c = int64(lo)
		// The high half of the signed product, which must be the sign of the low one.
		fits = int64(hi)-(a>>63&b)-(b>>63&a) == c>>63
	default: // // and %
		if b == 0 {
			s.fail("division by zero")
		}
		c, fits = a/b, a != math.MinInt64 || b != -1
		m := a % b
		if m != 0 && (m < 0) != (b < 0) { // Python's rest has the sign of b
			c--
			m += b
		}
		if op == "%" {
			return Int(m)
		}
	}
	if !fits {
		s.fail("the result of %s has more than 64 bits, which is not supported", op)
	}
	return Int(c)
}

func (s *state) arithFloats(op string, a, b float64) Value {
	switch op {
	case "+":
		return Float(a + b)
	case "-":
		return Float(a - b)
	case "*":
		return Float(a * b)
	case "/":
		if b == 0 {
			s.fail("division by zero")
		}
		return Float(a / b)
	}
	s.fail("%s of numbers with fractions is not supported", op)
	return nil
}

// equal is a == b.
func (s *state) equal(a, b Value, depth int) bool {
	s.work(0)
	s.checkNesting(depth)
	if x, ok := a.(String); ok {
		y, ok := b.(String)
		if ok && len(x) == len(y) {
			s.work(len(x))
			return x == y
		}
		return false
	}
	if x, ok := numberOf(a); ok {
		y, ok := numberOf(b)
		if !ok {
			return false
		}
		c, ok := x.cmp(y)
		return ok && c == 0
	}
	switch x := a.(type) {
	case *undefined:
		_, ok := b.(*undefined)
		return ok
	case *view:
		s.fail("%s", unsupported("comparison", "of "+x.kind))
	case *List:
		y, ok := b.(*List)
		return ok && (x == y || s.equalItems(x.items, y.items, depth))
	case *tuple:
		y, ok := b.(*tuple)
		return ok && s.equalItems(x.items, y.items, depth)
	case *Dict:
		y, ok := b.(*Dict)
		if !ok || x.Len() != y.Len() {
			return false
		}
		for i, k := range x.keys {
			j := y.findHash(s.hash(k))
			if j < 0 || !s.equal(x.vals[i], y.vals[j], depth+1) {
				return false
			}
		}
		return true
	}
	return a == b
}

func (s *state) equalItems(a, b []Value, depth int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !s.equal(a[i], b[i], depth+1) {
			return false
		}
	}
	return true
}

// ordered is a op b for < <= > >=, of numbers and of texts.
func (s *state) ordered(op string, a, b Value) bool {
	s.work(0)
	c, ok := 0, true
	x, ok1 := numberOf(a)
	y, ok2 := numberOf(b)
	text1, ok3 := a.(String)
	text2, ok4 := b.(String)
	switch {
	case ok1 && ok2:
		c, ok = x.cmp(y)
	case ok3 && ok4:
		s.work(min(len(text1), len(text2)))
		c = strings.Compare(string(text1), string(text2))
	default:
		s.checkOperand(a)
		s.checkOperand(b)
		s.fail("%s between '%s' and '%s' is not supported", op, a.typeName(), b.typeName())
	}
	switch op {
	case "<":
		return ok && c < 0
	case "<=":
		return ok && c <= 0
	case ">":
		return ok && c > 0
	}
	return ok && c >= 0
}

// contains is item in v.
func (s *state) contains(v, item Value) bool {
	switch v := v.(type) {
	case String:
		text, ok := item.(String)
		if !ok {
			s.fail("'in <string>' requires string as left operand, not %s", item.typeName())
		}
		s.work(len(v) + len(text))
		return strings.Contains(string(v), string(text))
	case *Dict:
		return v.findHash(s.hash(item)) >= 0
	case *List, *tuple, *view, *iterator, *undefined:
		for _, have := range s.iterate(v) {
			if s.equal(have, item, 0) {
				return true
			}
		}
		return false
	}
	s.fail("argument of type '%s' is not iterable", v.typeName())
	return false
}
