package tokenizer

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"
)

// An expression is a regular expression in the syntax and with the meaning of Oniguruma, which `tokenizers` uses, as
// far as pre-tokenizers need it: no captures, no back-references, look-around of bounded length. Anything else is an
// error.
//
// It backtracks, because the first alternative that matches wins, not the longest. A hostile expression can make that
// take forever. So after a while a search remembers at which branch and position it has failed before: from then on the
// time is linear in the text. (An engine with a time limit would make ids depend on how busy the machine is.)
type expression struct {
	code     []instruction
	branches int // how many of the code are opBranch
}

type opcode uint8

const (
	opSet    opcode = iota // one character of set
	opRun                  // least to most characters of set, as many as there are, without going back
	opBranch               // try next, then other
	opJump                 // continue with other
	opAssert               // something about the position
	opLook                 // whether sub matches here
	opMatch
)

type instruction struct {
	op          opcode
	set         *runeSet // of opLook, where that is one character
	least, most int
	other       int // relative to this instruction
	branch      int // number of an opBranch
	assert      byte
	negative    bool
	back        bool // look at the character before instead of what follows
	sub         *expression
}

// Bounds of what a file may ask for.
const (
	maxExpressionBytes = 4096
	maxInstructions    = 4000
	maxRepeat          = 1000
	maxLook            = 64 // characters
	maxNesting         = 100
)

// memo holds the stack of a search over one text, and the states that failed. Its zero value is ready.
type memo struct {
	stack  []backtrack
	steps  int      // instructions, and characters of an opRun
	failed []uint64 // by position and branch; nil until the search has taken long
}

type backtrack struct{ pc, pos int }

func (x *expression) next(s string, i int, m *memo) (start, end int) {
	for {
		if end := x.at(s, i, m); end > i {
			return i, end
		}
		if i >= len(s) {
			return -1, -1
		}
		_, n := propsAt(s, i)
		i += n
	}
}

// at returns the end of the match that starts at s[i], or -1.
func (x *expression) at(s string, i int, m *memo) int {
	words := (x.branches + 63) / 64
	base := len(m.stack) // look-around uses the same stack
	m.stack = append(m.stack, backtrack{0, i})
	for len(m.stack) > base {
		b := m.stack[len(m.stack)-1]
		m.stack = m.stack[:len(m.stack)-1]
		pc, pos := b.pc, b.pos
	path:
		for {
			if m.steps++; m.failed == nil && m.steps > 64*len(s)+4096 {
				m.failed = make([]uint64, words*(len(s)+1))
			}
			in := &x.code[pc]
			switch in.op {
			case opSet:
				if pos >= len(s) {
					break path
				}
				r, n := utf8.DecodeRuneInString(s[pos:])
				if !in.set.has(r) {
					break path
				}
				pos += n
			case opRun:
				count := 0
				for count < in.most && pos < len(s) {
					r, n := utf8.DecodeRuneInString(s[pos:])
					if !in.set.has(r) {
						break
					}
					pos += n
					count++
				}
				m.steps += count
				if count < in.least {
					break path
				}
			case opBranch:
				if m.failed != nil {
					word, bit := &m.failed[words*pos+in.branch/64], uint64(1)<<(in.branch%64)
					if *word&bit != 0 {
						break path
					}
					*word |= bit
				}
				m.stack = append(m.stack, backtrack{pc + in.other, pos})
			case opJump:
				pc += in.other
				continue
			case opAssert:
				if !holds(in.assert, s, pos) {
					break path
				}
			case opLook:
				if in.looks(s, pos) == in.negative {
					break path
				}
			case opMatch:
				if m.failed != nil {
					// What led to this match has not failed; of that, only this position can be asked for again.
					clear(m.failed[words*pos : words*(pos+1)])
				}
				m.stack = m.stack[:base]
				return pos
			}
			pc++
		}
	}
	return -1
}

// looks runs a look-around. It reads only a short text, so that it needs no memory across positions.
func (in *instruction) looks(s string, pos int) bool {
	if in.back {
		r, n := utf8.DecodeLastRuneInString(s[:pos])
		return n > 0 && in.set.has(r)
	}
	if in.set != nil {
		r, n := utf8.DecodeRuneInString(s[pos:])
		return n > 0 && in.set.has(r)
	}
	// Assertions inside may ask for one character more on either side.
	end := pos
	for range maxLook + 1 {
		if end < len(s) {
			_, n := utf8.DecodeRuneInString(s[end:])
			end += n
		}
	}
	_, before := utf8.DecodeLastRuneInString(s[:pos])
	var m memo
	return in.sub.at(s[pos-before:end], before, &m) >= 0
}

func holds(assert byte, s string, pos int) bool {
	switch assert {
	case '^':
		return pos == 0 || s[pos-1] == '\n' && pos < len(s)
	case '$':
		return pos == len(s) || s[pos] == '\n'
	case 'A':
		return pos == 0
	case 'z':
		return pos == len(s)
	}
	before, after := false, false
	if pos > 0 {
		r, _ := utf8.DecodeLastRuneInString(s[:pos])
		before = propsOf(r)&propWord != 0
	}
	if pos < len(s) {
		p, _ := propsAt(s, pos)
		after = p&propWord != 0
	}
	return (before != after) == (assert == 'b')
}

// runeSet is a set of characters.
type runeSet struct {
	ascii  [2]uint64
	ranges [][2]rune // sorted, apart
}

func newRuneSet(ranges [][2]rune) *runeSet {
	slices.SortFunc(ranges, func(a, b [2]rune) int { return int(a[0] - b[0]) })
	s := &runeSet{}
	for _, r := range ranges {
		if k := len(s.ranges) - 1; k >= 0 && r[0] <= s.ranges[k][1]+1 {
			s.ranges[k][1] = max(s.ranges[k][1], r[1])
		} else {
			s.ranges = append(s.ranges, r)
		}
	}
	for _, r := range s.ranges {
		for c := r[0]; c <= min(r[1], 127); c++ {
			s.ascii[c/64] |= 1 << (c % 64)
		}
	}
	return s
}

func (s *runeSet) has(r rune) bool {
	if r < 128 {
		return s.ascii[r/64]>>(r%64)&1 == 1
	}
	i := sort.Search(len(s.ranges), func(i int) bool { return s.ranges[i][1] >= r })
	return i < len(s.ranges) && s.ranges[i][0] <= r
}

func (s *runeSet) complement() *runeSet {
	var out [][2]rune
	next := rune(0)
	for _, r := range s.ranges {
		if r[0] > next {
			out = append(out, [2]rune{next, r[0] - 1})
		}
		next = r[1] + 1
	}
	if next <= utf8.MaxRune {
		out = append(out, [2]rune{next, utf8.MaxRune})
	}
	return newRuneSet(out)
}

func (s *runeSet) and(t *runeSet) *runeSet {
	return newRuneSet(append(s.complement().ranges, t.complement().ranges...)).complement()
}

// ofProps returns the characters that have any of the properties.
func ofProps(set props) *runeSet {
	var ranges [][2]rune
	for r := rune(0); r <= utf8.MaxRune; r++ {
		if propsOf(r)&set == 0 {
			continue
		}
		if k := len(ranges) - 1; k >= 0 && ranges[k][1] == r-1 {
			ranges[k][1] = r
		} else {
			ranges = append(ranges, [2]rune{r, r})
		}
	}
	return newRuneSet(ranges)
}

var categories = map[string]props{
	"L": propLetter, "Letter": propLetter, "Lu": propLu, "Ll": propLl, "Lt": propLt, "Lm": propLm, "Lo": propLo,
	"M": propMark, "Mn": propMn, "Mc": propMc, "Me": propMe, "N": propNumber, "Nd": propNd, "Nl": propNl, "No": propNo,
	"P": propP, "S": propS, "Han": propHan, "Space": propSpace, "Digit": propNd, "Word": propWord,
}

// regexParser reads an expression into code.
type regexParser struct {
	text    string
	pos     int
	depth   int
	classes map[props]*runeSet
}

// foldedContractions are the uses of (?i) that models make. Ignoring case means more than two forms of a letter (the
// long s is an s, ß matches ss), so others are refused, and these are spelled out.
var foldedContractions = strings.NewReplacer(
	contractions, `(?:'[sSſ]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])`,
	`(?i:[sdmt]|ll|ve|re)`, `(?:[sSſdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])`,
)

// compileExpression compiles the text of a Split or Replace. It refuses what can match nothing: no model splits at such
// matches, and engines differ in where they find them.
func compileExpression(text string) (*expression, error) {
	if len(text) > maxExpressionBytes {
		return nil, fmt.Errorf("a pattern has %d bytes, more than %d", len(text), maxExpressionBytes)
	}
	p := &regexParser{text: foldedContractions.Replace(text), classes: map[props]*runeSet{}}
	x, _, err := p.alternatives()
	if err == nil && p.pos < len(p.text) {
		err = errors.New("unmatched )")
	}
	if err == nil && x.least == 0 {
		err = errors.New("it matches the empty text, which is not supported")
	}
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", text, err)
	}
	return assemble(x.code), nil
}

func assemble(code []instruction) *expression {
	x := &expression{code: append(code, instruction{op: opMatch})}
	for i := range x.code {
		if x.code[i].op == opBranch {
			x.code[i].branch = x.branches
			x.branches++
		}
	}
	return x
}

// fragment is compiled code whose targets are relative to the instruction that has them, and the lengths in
// characters of what it matches. A set of one character is kept, for quantifiers.
type fragment struct {
	code        []instruction
	least, most int // most is unbounded where it is above maxLook
	set         *runeSet
}

const unbounded = 1 << 20

func (p *regexParser) alternatives() (fragment, int, error) {
	if p.depth++; p.depth > maxNesting {
		return fragment{}, 0, fmt.Errorf("more than %d levels of groups", maxNesting)
	}
	defer func() { p.depth-- }()
	var all []fragment
	for {
		f, err := p.sequence()
		if err != nil {
			return f, 0, err
		}
		all = append(all, f)
		if p.pos >= len(p.text) || p.text[p.pos] != '|' {
			break
		}
		p.pos++
	}
	out := all[len(all)-1]
	for i := len(all) - 2; i >= 0; i-- {
		f := all[i]
		code := make([]instruction, 0, len(f.code)+len(out.code)+2)
		code = append(code, instruction{op: opBranch, other: len(f.code) + 2})
		code = append(code, f.code...)
		code = append(code, instruction{op: opJump, other: len(out.code) + 1})
		out = fragment{code: append(code, out.code...), least: min(f.least, out.least), most: max(f.most, out.most)}
		if len(out.code) > maxInstructions {
			return out, 0, fmt.Errorf("it needs more than %d instructions", maxInstructions)
		}
	}
	return out, len(all), nil
}

func (p *regexParser) sequence() (fragment, error) {
	var out fragment
	for n := 0; p.pos < len(p.text) && p.text[p.pos] != '|' && p.text[p.pos] != ')'; n++ {
		f, err := p.item()
		if err != nil {
			return f, err
		}
		if f, err = p.quantified(f); err != nil {
			return f, err
		}
		if n == 0 {
			out = f
			continue
		}
		out.set = nil
		out.code = append(slices.Clip(out.code), f.code...)
		out.least, out.most = out.least+f.least, min(out.most+f.most, unbounded)
		if len(out.code) > maxInstructions {
			return out, fmt.Errorf("it needs more than %d instructions", maxInstructions)
		}
	}
	return out, nil
}

func ofSet(s *runeSet) fragment {
	return fragment{code: []instruction{{op: opSet, set: s}}, least: 1, most: 1, set: s}
}

// item reads one character, class, group or assertion.
func (p *regexParser) item() (fragment, error) {
	switch c := p.text[p.pos]; c {
	case '(':
		return p.group()
	case '[':
		s, err := p.class()
		return ofSet(s), err
	case '.':
		p.pos++
		return ofSet(newRuneSet([][2]rune{{'\n', '\n'}}).complement()), nil
	case '^', '$':
		p.pos++
		return fragment{code: []instruction{{op: opAssert, assert: c}}}, nil
	case '*', '+', '?':
		return fragment{}, fmt.Errorf("nothing to repeat before %c", c)
	case '\\':
		if p.pos+1 < len(p.text) {
			switch a := p.text[p.pos+1]; a {
			case 'b', 'B', 'A', 'z':
				p.pos += 2
				return fragment{code: []instruction{{op: opAssert, assert: a}}}, nil
			}
		}
		s, err := p.escape()
		return ofSet(s), err
	}
	r, n := utf8.DecodeRuneInString(p.text[p.pos:])
	p.pos += n
	return ofSet(newRuneSet([][2]rune{{r, r}})), nil
}

// group reads ( and what belongs to it.
func (p *regexParser) group() (fragment, error) {
	p.pos++
	rest := p.text[p.pos:]
	kind := ""
	if strings.HasPrefix(rest, "?") {
		for _, k := range []string{"?:", "?=", "?!", "?<=", "?<!"} {
			if strings.HasPrefix(rest, k) {
				kind = k
			}
		}
		if kind == "" {
			return fragment{}, fmt.Errorf("group (%.2s is not supported", rest)
		}
	}
	p.pos += len(kind)
	f, _, err := p.alternatives()
	if err != nil {
		return f, err
	}
	if p.pos >= len(p.text) {
		return f, errors.New("missing )")
	}
	p.pos++
	in := instruction{op: opLook, negative: strings.HasSuffix(kind, "!"), back: strings.HasPrefix(kind, "?<")}
	switch {
	case kind == "" || kind == "?:":
		return f, nil
	case in.back && f.set == nil:
		return f, errors.New("a lookbehind of more than one character is not supported")
	case f.set != nil:
		in.set = f.set
	case f.most > maxLook:
		return f, fmt.Errorf("looking ahead at more than %d characters is not supported", maxLook)
	default:
		in.sub = assemble(f.code)
	}
	return fragment{code: []instruction{in}}, nil
}

// quantified reads a quantifier after an item: ?, *, + or {n,m}, and after these ? (as few as possible) or + (never go
// back).
func (p *regexParser) quantified(f fragment) (fragment, error) {
	least, most := 1, 1
	counted := false
	if p.pos < len(p.text) {
		switch p.text[p.pos] {
		case '?':
			least = 0
			p.pos++
		case '*':
			least, most = 0, unbounded
			p.pos++
		case '+':
			most = unbounded
			p.pos++
		case '{':
			var ok bool
			var n int
			if least, most, n, ok = counts(p.text[p.pos:]); !ok {
				return f, errors.New("a { that is not a count must be escaped")
			}
			if least > maxRepeat || most > maxRepeat && most != unbounded || most < least {
				return f, fmt.Errorf("a count is not between 0 and %d", maxRepeat)
			}
			p.pos += n
			counted = true
		default:
			return f, nil
		}
	} else {
		return f, nil
	}
	lazy, possessive := false, false
	if p.pos < len(p.text) {
		switch c := p.text[p.pos]; {
		case c == '?' && !counted:
			lazy = true
			p.pos++
		case c == '+' && !counted:
			possessive = true
			p.pos++
		case strings.IndexByte("?*+{", c) >= 0:
			return f, errors.New("a quantifier after a quantifier is not supported")
		}
	}
	if p.pos < len(p.text) && strings.IndexByte("?*+{", p.text[p.pos]) >= 0 {
		return f, errors.New("a quantifier after a quantifier is not supported")
	}
	out := fragment{least: min(f.least*least, unbounded), most: min(f.most*most, unbounded)}
	switch {
	case possessive && f.set == nil:
		return f, errors.New("a possessive quantifier after a group is not supported")
	case possessive:
		out.code = []instruction{{op: opRun, set: f.set, least: least, most: most}}
		return out, nil
	case f.least == 0 && most > 1:
		return f, errors.New("repeating what can be empty is not supported")
	}
	if copies := max(least, 1); most != unbounded && most > copies {
		copies = most
		if copies*(len(f.code)+1) > maxInstructions {
			return f, fmt.Errorf("it needs more than %d instructions", maxInstructions)
		}
	} else if copies*(len(f.code)+1) > maxInstructions {
		return f, fmt.Errorf("it needs more than %d instructions", maxInstructions)
	}
	// branch goes into or past n instructions; as few as possible prefers past.
	branch := func(n int) []instruction {
		if lazy {
			return []instruction{{op: opBranch, other: 2}, {op: opJump, other: n + 1}}
		}
		return []instruction{{op: opBranch, other: n + 1}}
	}
	for range least {
		out.code = append(out.code, f.code...)
	}
	if most == unbounded {
		enter := branch(len(f.code) + 1)
		out.code = append(append(out.code, enter...), f.code...)
		out.code = append(out.code, instruction{op: opJump, other: -len(f.code) - len(enter)})
		return out, nil
	}
	var optional []instruction
	for range most - least {
		inner := append(slices.Clone(f.code), optional...)
		optional = append(branch(len(inner)), inner...)
	}
	out.code = append(out.code, optional...)
	return out, nil
}

// counts reads {n}, {n,}, {,m} or {n,m}.
func counts(s string) (least, most, n int, ok bool) {
	end := strings.IndexByte(s, '}')
	if end < 0 {
		return 0, 0, 0, false
	}
	low, high, isRange := strings.Cut(s[1:end], ",")
	number := func(s string, empty int) int {
		if s == "" {
			return empty
		}
		v, err := strconv.ParseUint(s, 10, 16)
		if err != nil {
			ok = false
		}
		return int(v)
	}
	ok = low != "" || high != ""
	least = number(low, 0)
	if most = least; isRange {
		most = number(high, unbounded)
	}
	return least, most, end + 1, ok
}

// escape reads a backslash and what belongs to it.
func (p *regexParser) escape() (*runeSet, error) {
	if p.pos+1 >= len(p.text) {
		return nil, errors.New("it ends in a backslash")
	}
	c := p.text[p.pos+1]
	p.pos += 2
	single := func(r rune) (*runeSet, error) { return newRuneSet([][2]rune{{r, r}}), nil }
	switch c {
	case 'n':
		return single('\n')
	case 'r':
		return single('\r')
	case 't':
		return single('\t')
	case 'f':
		return single('\f')
	case 'v':
		return single('\v')
	case 'x', 'u':
		return p.codePoint(c)
	case 's', 'd', 'w':
		return p.properties(map[byte]props{'s': propSpace, 'd': propNd, 'w': propWord}[c]), nil
	case 'S', 'D', 'W':
		return p.properties(map[byte]props{'S': propSpace, 'D': propNd, 'W': propWord}[c]).complement(), nil
	case 'p', 'P':
		end := strings.IndexByte(p.text[p.pos:], '}')
		if end < 0 || p.text[p.pos] != '{' {
			return nil, fmt.Errorf(`\%c needs a {name}`, c)
		}
		name, negated := strings.CutPrefix(p.text[p.pos+1:p.pos+end], "^")
		p.pos += end + 1
		set, ok := categories[name]
		if !ok {
			return nil, fmt.Errorf(`\p{%s} is not supported`, name)
		}
		if s := p.properties(set); negated == (c == 'P') {
			return s, nil
		} else {
			return s.complement(), nil
		}
	}
	if c < utf8.RuneSelf && (c >= '0' && c <= '9' || isASCIILetter(c)) {
		return nil, fmt.Errorf(`escape \%c is not supported`, c)
	}
	r, n := utf8.DecodeRuneInString(p.text[p.pos-1:])
	p.pos += n - 1
	return single(r)
}

// codePoint reads the digits after \x (two, or any number in braces) or \u (four).
func (p *regexParser) codePoint(kind byte) (*runeSet, error) {
	rest := p.text[p.pos:]
	digits, skip := 2, 0
	if kind == 'u' {
		digits = 4
	} else if end := strings.IndexByte(rest, '}'); strings.HasPrefix(rest, "{") && end > 0 {
		digits, skip = end-1, 1
	}
	if len(rest) < digits+2*skip {
		return nil, fmt.Errorf(`\%c needs %d digits`, kind, digits)
	}
	v, err := strconv.ParseUint(rest[skip:skip+digits], 16, 32)
	if err != nil || v > utf8.MaxRune || kind == 'x' && skip == 0 && v >= utf8.RuneSelf {
		return nil, fmt.Errorf(`\%c%s is not a character`, kind, rest[:digits+2*skip])
	}
	p.pos += digits + 2*skip
	return newRuneSet([][2]rune{{rune(v), rune(v)}}), nil
}

func (p *regexParser) properties(set props) *runeSet {
	if s, ok := p.classes[set]; ok {
		return s
	}
	s := ofProps(set)
	p.classes[set] = s
	return s
}

// class reads a class in brackets, which may hold others, and && between its parts.
func (p *regexParser) class() (*runeSet, error) {
	if p.depth++; p.depth > maxNesting {
		return nil, fmt.Errorf("more than %d levels of classes", maxNesting)
	}
	defer func() { p.depth-- }()
	p.pos++
	negated := strings.HasPrefix(p.text[p.pos:], "^")
	if negated {
		p.pos++
	}
	var ranges [][2]rune
	var both *runeSet // of the parts before &&
	intersect := func() {
		s := newRuneSet(ranges)
		if both != nil {
			s = both.and(s)
		}
		both, ranges = s, nil
	}
	if strings.HasPrefix(p.text[p.pos:], "]") {
		return nil, errors.New("a bare ] in a class is not supported: escape it")
	}
	for {
		if p.pos >= len(p.text) {
			return nil, errors.New("missing ]")
		}
		rest := p.text[p.pos:]
		if rest[0] == ']' {
			p.pos++
			intersect()
			if negated {
				both = both.complement()
			}
			return both, nil
		}
		switch {
		case strings.HasPrefix(rest, "&&"):
			p.pos += 2
			intersect()
			continue
		case strings.HasPrefix(rest, "[:"):
			return nil, errors.New("a class by name like [:alpha:] is not supported")
		case rest[0] == '[':
			s, err := p.class()
			if err != nil {
				return nil, err
			}
			ranges = append(ranges, s.ranges...)
			continue
		}
		s, err := p.member()
		if err != nil {
			return nil, err
		}
		if !strings.HasPrefix(p.text[p.pos:], "-") || strings.HasPrefix(p.text[p.pos:], "-]") {
			ranges = append(ranges, s.ranges...)
			continue
		}
		p.pos++
		if p.pos >= len(p.text) || p.text[p.pos] == '[' {
			return nil, errors.New("a range in a class has no end")
		}
		high, err := p.member()
		if err != nil {
			return nil, err
		}
		a, okA := s.only()
		b, okB := high.only()
		if !okA || !okB || a > b {
			return nil, errors.New("a range in a class is not from one character to a later one")
		}
		ranges = append(ranges, [2]rune{a, b})
	}
}

// member reads a character or an escape in a class.
func (p *regexParser) member() (*runeSet, error) {
	if p.text[p.pos] == '\\' {
		return p.escape()
	}
	r, n := utf8.DecodeRuneInString(p.text[p.pos:])
	p.pos += n
	return newRuneSet([][2]rune{{r, r}}), nil
}

// only returns the character of a set that has just one.
func (s *runeSet) only() (rune, bool) {
	if len(s.ranges) != 1 || s.ranges[0][0] != s.ranges[0][1] {
		return 0, false
	}
	return s.ranges[0][0], true
}
