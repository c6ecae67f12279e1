package template

import (
	"math"
	"math/big"
	"strings"
)

// number is an operand of arithmetic: an integer in n, or in big where it does not fit, or a float in f.
type number struct {
	n       int64
	big     *big.Int
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
	case *bigInt:
		return number{big: v.n}, true
	}
	return number{}, false
}

func (n number) asBig() *big.Int {
	if n.big != nil {
		return n.big
	}
	return big.NewInt(n.n)
}

func (n number) asFloat() float64 {
	switch {
	case n.isFloat:
		return n.f
	case n.big != nil:
		f, _ := new(big.Float).SetInt(n.big).Float64()
		return f
	}
	return float64(n.n)
}

func (n number) isZero() bool { return n.big == nil && n.n == 0 && n.f == 0 }

// cmp compares exactly, integers with floats too; ok is false where one is NaN.
func (n number) cmp(m number) (c int, ok bool) {
	switch {
	case n.isFloat && math.IsNaN(n.f) || m.isFloat && math.IsNaN(m.f):
		return 0, false
	case n.isFloat && m.isFloat:
		switch {
		case n.f < m.f:
			return -1, true
		case n.f > m.f:
			return 1, true
		}
		return 0, true
	case n.isFloat:
		c, ok := m.cmp(n)
		return -c, ok
	case m.isFloat && math.IsInf(m.f, 0):
		if m.f > 0 {
			return -1, true
		}
		return 1, true
	case m.isFloat:
		return new(big.Float).SetInt(n.asBig()).Cmp(big.NewFloat(m.f)), true
	case n.big == nil && m.big == nil:
		switch {
		case n.n < m.n:
			return -1, true
		case n.n > m.n:
			return 1, true
		}
		return 0, true
	}
	return n.asBig().Cmp(m.asBig()), true
}

func (s *state) failOperand(op string, v Value) {
	s.checkDefined(v)
	s.fail("bad operand type for %s: '%s'", op, v.typeName())
}

func (s *state) checkDefined(v Value) {
	if u, ok := v.(*undefined); ok {
		s.failUndefined(u)
	}
}

func (s *state) negate(v Value) Value {
	n, ok := numberOf(v)
	switch {
	case !ok:
		s.failOperand("unary -", v)
	case n.isFloat:
		return Float(-n.f)
	}
	return normalized(new(big.Int).Neg(n.asBig()))
}

// arith is a op b for + - * / // % **.
func (s *state) arith(op string, a, b Value) Value {
	x, ok1 := numberOf(a)
	y, ok2 := numberOf(b)
	if ok1 && ok2 {
		return s.arithNumbers(op, x, y)
	}
	s.checkDefined(a)
	if text, ok := a.(String); ok && op == "%" {
		return s.newString(s.percent(string(text), b))
	}
	s.checkDefined(b)
	switch op {
	case "+":
		if v := s.join2(a, b); v != nil {
			return v
		}
	case "*":
		if ok2 && !y.isFloat {
			if v := s.repeat(a, y); v != nil {
				return v
			}
		}
		if ok1 && !x.isFloat {
			if v := s.repeat(b, x); v != nil {
				return v
			}
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
			return s.newList(append(append([]Value(nil), x.items...), y.items...))
		}
	case *tuple:
		if y, ok := b.(*tuple); ok {
			s.alloc(valueBytes * (len(x.items) + len(y.items)))
			return &tuple{items: append(append([]Value(nil), x.items...), y.items...)}
		}
	}
	return nil
}

// repeat is v * n of a sequence, or nil.
func (s *state) repeat(v Value, n number) Value {
	size := 0
	var items []Value
	switch v := v.(type) {
	case String:
		size = len(v)
	case *List:
		items = v.items
	case *tuple:
		items = v.items
	default:
		return nil
	}
	size += valueBytes * len(items)
	times := n.n
	if n.big != nil {
		if times = 0; n.big.Sign() > 0 {
			times = math.MaxInt64
		}
	}
	times = max(times, 0)
	if size > 0 && times > s.allocLeft/int64(size) {
		s.alloc(math.MaxInt) // cannot be, and fails with the limit
	}
	s.alloc(int(times) * size)
	if text, ok := v.(String); ok {
		if size == 0 {
			return text
		}
		return String(strings.Repeat(string(text), int(times)))
	}
	all := make([]Value, 0, int(times)*len(items))
	if len(items) > 0 {
		for range times {
			all = append(all, items...)
		}
	}
	if _, ok := v.(*tuple); ok {
		return &tuple{items: all}
	}
	return &List{all}
}

func (s *state) arithNumbers(op string, x, y number) Value {
	if (op == "/" || op == "//" || op == "%") && y.isZero() {
		s.fail("division by zero")
	}
	if x.isFloat || y.isFloat {
		return s.arithFloats(op, x.asFloat(), y.asFloat())
	}
	if x.big == nil && y.big == nil {
		if v := arithInts(op, x.n, y.n); v != nil {
			return v
		}
	}
	a, b, z := x.asBig(), y.asBig(), new(big.Int)
	switch op {
	case "+":
		z.Add(a, b)
	case "-":
		z.Sub(a, b)
	case "*":
		z.Mul(a, b)
	case "/":
		f, _ := new(big.Rat).SetFrac(a, b).Float64()
		if math.IsInf(f, 0) {
			s.fail("integer division result too large for a float")
		}
		return Float(f)
	case "//", "%":
		m := new(big.Int)
		z.DivMod(a, b, m) // Euclid's: the rest is never negative; Python's has the sign of b
		if m.Sign() != 0 && b.Sign() < 0 {
			z.Sub(z, big.NewInt(1))
			m.Add(m, b)
		}
		if op == "%" {
			z = m
		}
	case "**":
		return s.power(a, b)
	}
	if z.BitLen() > maxIntBits {
		s.failLimit("an integer has more than %d bits", maxIntBits)
	}
	s.alloc(z.BitLen() / 8)
	return normalized(z)
}

func (s *state) power(a, b *big.Int) Value {
	if b.Sign() < 0 {
		if a.Sign() == 0 {
			s.fail("0.0 cannot be raised to a negative power")
		}
		x, y := number{big: a}, number{big: b}
		return s.arithFloats("**", x.asFloat(), y.asFloat())
	}
	if a.BitLen() <= 1 { // 0, 1 and -1 stay small whatever the exponent
		switch {
		case b.Sign() == 0 || a.Sign() > 0 || a.Sign() < 0 && b.Bit(0) == 0:
			return Int(1)
		}
		return Int(a.Int64())
	}
	if !b.IsInt64() || b.Int64() > maxIntBits || b.Int64()*int64(a.BitLen()-1) > maxIntBits {
		s.failLimit("an integer has more than %d bits", maxIntBits)
	}
	s.alloc(a.BitLen() * int(b.Int64()) / 8)
	return normalized(new(big.Int).Exp(a, b, nil))
}

// arithInts is nil where the result does not fit, or the operation is for another place.
func arithInts(op string, a, b int64) Value {
	const half = 1 << 31
	switch op {
	case "+":
		if c := a + b; (c > a) == (b > 0) {
			return Int(c)
		}
	case "-":
		if c := a - b; (c < a) == (b > 0) {
			return Int(c)
		}
	case "*":
		if -half < a && a < half && -half < b && b < half {
			return Int(a * b)
		}
	case "/":
		if const53 := int64(1 << 53); -const53 < a && a < const53 && -const53 < b && b < const53 {
			return Float(float64(a) / float64(b))
		}
	case "//":
		if b == -1 {
			break // the smallest one has no counterpart
		}
		q := a / b
		if a%b != 0 && (a < 0) != (b < 0) {
			q--
		}
		return Int(q)
	case "%":
		if b == -1 {
			return Int(0)
		}
		m := a % b
		if m != 0 && (m < 0) != (b < 0) {
			m += b
		}
		return Int(m)
	}
	return nil
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
		return Float(a / b)
	case "//", "%":
		// As CPython's float_divmod.
		mod := math.Mod(a, b)
		div := (a - mod) / b
		if mod != 0 {
			if (b < 0) != (mod < 0) {
				mod += b
				div--
			}
		} else {
			mod = math.Copysign(0, b)
		}
		if op == "%" {
			return Float(mod)
		}
		if div == 0 {
			return Float(math.Copysign(0, a/b))
		}
		floor := math.Floor(div)
		if div-floor > 0.5 {
			floor++
		}
		return Float(floor)
	}
	switch {
	case a == 0 && b < 0:
		s.fail("0.0 cannot be raised to a negative power")
	case a < 0 && b != math.Trunc(b) && !math.IsInf(a, 0):
		s.fail("complex numbers are not part of templates")
	}
	z := math.Pow(a, b)
	if math.IsInf(z, 0) && !math.IsInf(a, 0) && !math.IsInf(b, 0) {
		s.fail("the result of ** is too large for a float")
	}
	return Float(z)
}

// equal is a == b.
func (s *state) equal(a, b Value, depth int) bool {
	s.work(0)
	s.checkNesting(nil, depth)
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
	case None:
		_, ok := b.(None)
		return ok
	case *undefined:
		_, ok := b.(*undefined)
		return ok
	case *List:
		y, ok := b.(*List)
		return ok && (x == y || s.equalItems(x.items, y.items, depth))
	case *tuple:
		y, ok := b.(*tuple)
		return ok && s.equalItems(x.items, y.items, depth)
	case *rangeSpan:
		y, ok := b.(*rangeSpan)
		return ok && x.n == y.n && (x.n == 0 || x.start == y.start && (x.n == 1 || x.step == y.step))
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

// ordered is a op b for < <= > >=.
func (s *state) ordered(op string, a, b Value, depth int) bool {
	s.work(0)
	s.checkNesting(nil, depth)
	holds := func(c int) bool {
		switch op {
		case "<":
			return c < 0
		case "<=":
			return c <= 0
		case ">":
			return c > 0
		}
		return c >= 0
	}
	if x, ok := numberOf(a); ok {
		if y, ok := numberOf(b); ok {
			c, ok := x.cmp(y)
			return ok && holds(c)
		}
	}
	switch a := a.(type) {
	case String:
		if b, ok := b.(String); ok {
			s.work(min(len(a), len(b)))
			return holds(strings.Compare(string(a), string(b)))
		}
	case *List:
		if b, ok := b.(*List); ok {
			return s.orderedItems(op, holds, a.items, b.items, depth)
		}
	case *tuple:
		if b, ok := b.(*tuple); ok {
			return s.orderedItems(op, holds, a.items, b.items, depth)
		}
	}
	s.checkDefined(a)
	s.checkDefined(b)
	s.fail("'%s' not supported between instances of '%s' and '%s'", op, a.typeName(), b.typeName())
	return false
}

func (s *state) orderedItems(op string, holds func(int) bool, x, y []Value, depth int) bool {
	for i := 0; i < len(x) && i < len(y); i++ {
		if !s.equal(x[i], y[i], depth+1) {
			return s.ordered(op, x[i], y[i], depth+1)
		}
	}
	return holds(len(x) - len(y))
}

// contains is item in v.
func (s *state) contains(v, item Value) bool {
	switch v := v.(type) {
	case String:
		text, ok := item.(String)
		if !ok {
			s.fail("'in <string>' requires string as left operand, not %s", item.typeName())
		}
		s.work(len(v))
		return strings.Contains(string(v), string(text))
	case *Dict:
		return v.findHash(s.hash(item)) >= 0
	case *rangeSpan:
		n, ok := item.(Int)
		if !ok || v.n == 0 {
			return false
		}
		d := int64(n) - v.start
		return d%v.step == 0 && d/v.step >= 0 && d/v.step < v.n
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
