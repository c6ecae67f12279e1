package template

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/budget"
)

// MaxSource is the size in bytes of the largest template that is read anywhere.
const MaxSource = 1 << 20

// maxSource is the size of the largest source that Parse reads; the largest public ones have 20 KiB.
const maxSource = MaxSource

// parseBytes bounds the memory that a byte of a source takes: a character can be a token and a node of the tree.
const parseBytes = 384

// maxParseDepth bounds the nesting of statements and expressions of a source.
const maxParseDepth = 200

// Template is a parsed source. It is immutable, and may be rendered by many goroutines at once.
type Template struct {
	source string
	body   block
	names  []string // by id: every variable of the source
	// hasGeneration says that there is a {% generation %} block.
	hasGeneration bool
}

// Names with fixed ids; the parser adds the others.
const (
	idLoop int32 = iota
	idCaller
)

// Parse reads a source. An error is an *Error with the line and the column. What Jinja has and this package has not is
// refused here. A filter or a test that Jinja does not have either is an error of the render that comes to it.
func Parse(source string) (t *Template, err error) {
	if len(source) > maxSource {
		return nil, fmt.Errorf("a template of %d bytes is too large: at most %d are read", len(source), maxSource)
	}
	// All other texts are UTF-8 too, so that what is made of them is.
	if !utf8.ValidString(source) {
		return nil, errors.New("the template is not UTF-8: convert the file")
	}
	var use budget.Use
	defer use.End()
	if err := use.Take(context.Background(), int64(len(source))*parseBytes); err != nil {
		return nil, fmt.Errorf("a template of %d bytes: %w", len(source), err)
	}
	source = normalizeSource(source)
	defer func() {
		switch failure := recover().(type) {
		case nil:
		case syntaxError:
			line, column := position(source, failure.pos)
			t, err = nil, &Error{Line: line, Column: column, Msg: failure.msg}
		default:
			e := bug(failure)
			e.Line, e.Column = 1, 1
			t, err = nil, e
		}
	}()
	p := &parser{tokens: lex(source), ids: map[string]int32{}}
	for _, name := range [...]string{"loop", "caller"} {
		p.intern(name)
	}
	body := p.block(nil)
	return &Template{source, body, p.names, p.hasGeneration}, nil
}

type parser struct {
	tokens        []token
	at            int
	depth         int
	ids           map[string]int32
	names         []string
	loops         int // that break would leave
	macros        []*macroDef
	hasGeneration bool
}

func (p *parser) intern(name string) int32 {
	id, ok := p.ids[name]
	if !ok {
		id = int32(len(p.names))
		p.ids[name] = id
		p.names = append(p.names, name)
	}
	return id
}

// use is intern for a name that is read.
func (p *parser) use(name string, pos int) int32 {
	for _, m := range p.macros {
		switch name {
		case "caller":
			m.usesCaller = true
		case "varargs", "kwargs":
			failAt(pos, "%s", unsupported("name", name+" in a macro"))
		}
	}
	return p.intern(name)
}

func (p *parser) enter() {
	if p.depth++; p.depth > maxParseDepth {
		failAt(p.peek().pos, "the template is nested deeper than %d", maxParseDepth)
	}
}

func (p *parser) leave() { p.depth-- }

func (p *parser) peek() token { return p.tokens[p.at] }

func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != tokEOF {
		p.at++
	}
	return t
}

func (p *parser) isOp(op string) bool {
	t := &p.tokens[p.at]
	return t.kind == tokOp && t.text == op
}

func (p *parser) isWord(word string) bool {
	t := &p.tokens[p.at]
	return t.kind == tokName && t.text == word
}

func (p *parser) skipOp(op string) bool {
	if p.isOp(op) {
		p.at++
		return true
	}
	return false
}

func (p *parser) skipWord(word string) bool {
	if p.isWord(word) {
		p.at++
		return true
	}
	return false
}

func (p *parser) expectOp(op string) {
	if !p.skipOp(op) {
		failAt(p.peek().pos, "expected %s, found %s", op, p.peek().describe())
	}
}

func (p *parser) expectWord(word string) {
	if !p.skipWord(word) {
		failAt(p.peek().pos, "expected %s, found %s", word, p.peek().describe())
	}
}

func (p *parser) expect(kind tokenKind) token {
	t := p.next()
	if t.kind != kind {
		failAt(t.pos, "expected %s, found %s", token{kind: kind, text: "a name"}.describe(), t.describe())
	}
	return t
}

// block reads statements up to a tag that begins with one of the words, which is left at the word; with no words, to
// the end of the source.
func (p *parser) block(ends []string) block {
	p.enter()
	defer p.leave()
	var body block
	for {
		switch t := p.next(); t.kind {
		case tokEOF:
			if ends != nil {
				failAt(t.pos, "the template ends where %s is missing", strings.Join(ends, " or "))
			}
			return body
		case tokData:
			body = append(body, &textStmt{t.text})
		case tokPrintBegin:
			e := p.tuple(true, false)
			p.expect(tokPrintEnd)
			body = append(body, &printStmt{e})
		case tokBlockBegin:
			for _, end := range ends {
				if p.isWord(end) {
					return body
				}
			}
			body = append(body, p.statement()...)
			p.expect(tokBlockEnd)
		default:
			failAt(t.pos, "unexpected %s", t.describe())
		}
	}
}

// body reads the rest of an opening tag and the statements up to one of the ends, and consumes its word.
func (p *parser) body(ends ...string) (body block, end string) {
	p.skipOp(":")
	p.expect(tokBlockEnd)
	body = p.block(ends)
	return body, p.next().text
}

func (p *parser) statement() []stmt {
	t := p.expect(tokName)
	switch t.text {
	case "if":
		return []stmt{p.ifStmt()}
	case "for":
		return []stmt{p.forStmt(t.pos)}
	case "set":
		return []stmt{p.setStmt()}
	case "macro":
		return []stmt{p.macroStmt()}
	case "call":
		return []stmt{p.callStmt(t.pos)}
	case "filter":
		f := p.filterChain(nil, true)
		body, _ := p.body("endfilter")
		return []stmt{&filterStmt{f, body}}
	case "generation":
		p.hasGeneration = true
		loops := p.loops
		p.loops = 0
		body, _ := p.body("endgeneration")
		p.loops = loops
		return []stmt{&generationStmt{body}}
	case "break", "continue":
		if p.loops == 0 {
			failAt(t.pos, "%s outside of a loop", t.text)
		}
		if t.text == "break" {
			return []stmt{&leaveStmt{flowBreak}}
		}
		return []stmt{&leaveStmt{flowContinue}}
	}
	failAt(t.pos, "%s", unknown("tag", t.text))
	return nil
}

func (p *parser) ifStmt() stmt {
	n := &ifStmt{}
	for end := "elif"; end == "elif"; {
		n.tests = append(n.tests, p.tuple(false, false))
		var body block
		body, end = p.body("elif", "else", "endif")
		n.bodies = append(n.bodies, body)
		if end == "else" {
			n.otherwise, end = p.body("endif")
		}
	}
	return n
}

func (p *parser) forStmt(pos int) stmt {
	n := &forStmt{pos: pos, target: p.target(false)}
	p.expectWord("in")
	n.in = p.tuple(false, false)
	if p.skipWord("if") {
		n.test = p.expression(true)
	}
	if p.isWord("recursive") {
		failAt(p.peek().pos, "%s", unsupported("word", "recursive of a loop"))
	}
	p.loops++
	var end string
	n.body, end = p.body("endfor", "else")
	p.loops--
	if end == "else" {
		n.otherwise, _ = p.body("endfor")
	}
	return n
}

func (p *parser) setStmt() stmt {
	to := p.target(true)
	if p.skipOp("=") {
		return &setStmt{to, p.tuple(true, false)}
	}
	if t := p.peek(); p.isOp("|") {
		failAt(t.pos, "%s", unsupported("filter", "of a set block"))
	}
	body, _ := p.body("endset")
	return &captureStmt{to, body}
}

func (p *parser) macroStmt() stmt {
	name := p.expect(tokName)
	def := &macroDef{name: name.text}
	id := p.intern(name.text)
	p.signature(def)
	p.macroBody(def, "endmacro")
	return &macroStmt{id, def}
}

func (p *parser) macroBody(def *macroDef, end string) {
	loops := p.loops
	p.loops = 0
	p.macros = append(p.macros, def)
	def.body, _ = p.body(end)
	p.macros = p.macros[:len(p.macros)-1]
	p.loops = loops
}

func (p *parser) signature(def *macroDef) {
	p.expectOp("(")
	for !p.isOp(")") {
		if len(def.params) > 0 {
			p.expectOp(",")
		}
		name := p.expect(tokName)
		if isConstant(name.text) {
			failAt(name.pos, "%s cannot be a parameter", name.text)
		}
		for _, other := range def.params {
			if other == name.text {
				failAt(name.pos, "there are two parameters %s", name.text)
			}
		}
		def.params = append(def.params, name.text)
		def.ids = append(def.ids, p.intern(name.text))
		if p.skipOp("=") {
			def.defaults = append(def.defaults, p.expression(true))
		} else if def.defaults != nil {
			failAt(name.pos, "parameter %s needs a default, since one before it has", name.text)
		}
	}
	p.expectOp(")")
}

func (p *parser) callStmt(pos int) stmt {
	def := &macroDef{name: "caller"}
	if p.isOp("(") {
		p.signature(def)
	}
	call, ok := p.expression(true).(*callExpr)
	if !ok {
		failAt(pos, "{%% call %%} needs a call")
	}
	p.macroBody(def, "endcall")
	return &callStmt{call, def}
}

// target reads what is assigned to: a name, names with commas, or, with attributes, namespace.name.
func (p *parser) target(attributes bool) target {
	pos := p.peek().pos
	first := p.oneTarget(attributes)
	if !p.isOp(",") {
		return first
	}
	all := []target{first}
	for p.skipOp(",") {
		if p.isOp(")") {
			break
		}
		all = append(all, p.oneTarget(attributes))
	}
	return &tupleTarget{all, pos}
}

func (p *parser) oneTarget(attributes bool) target {
	p.enter()
	defer p.leave()
	if p.skipOp("(") {
		inner := p.target(attributes)
		p.expectOp(")")
		return inner
	}
	name := p.peek()
	if name.kind != tokName || isConstant(name.text) {
		failAt(name.pos, "cannot assign to %s", name.describe())
	}
	p.next()
	if attributes && p.skipOp(".") {
		return &attrTarget{p.use(name.text, name.pos), p.expect(tokName).text, name.pos}
	}
	return &nameTarget{p.intern(name.text)}
}

func isConstant(name string) bool {
	switch name {
	case "true", "false", "none", "True", "False", "None":
		return true
	}
	return false
}
