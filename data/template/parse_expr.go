package template

import "strings"

// The levels of precedence, loosest first: if-else, or, and, not, comparison, + and -, ~, * / // %, sign, postfix,
// filters and tests. As in Jinja, ~ binds tighter than +.

// tuple reads an expression, or several with commas between them. cond allows if-else; empty allows nothing at all,
// as between brackets.
func (p *parser) tuple(cond, empty bool) expr {
	pos := p.peek().pos
	var items []expr
	isTuple := false
	for !p.isTupleEnd() {
		items = append(items, p.expression(cond))
		if !p.skipOp(",") {
			break
		}
		isTuple = true
	}
	if !isTuple && len(items) == 1 {
		return items[0]
	}
	if len(items) == 0 && !empty {
		failAt(pos, "expected an expression, found %s", p.peek().describe())
	}
	return &tupleExpr{items}
}

func (p *parser) isTupleEnd() bool {
	t := p.peek()
	return t.kind == tokPrintEnd || t.kind == tokBlockEnd || p.isOp(")") || p.isWord("recursive")
}

func (p *parser) expression(cond bool) expr {
	p.enter()
	defer p.leave()
	if !cond {
		return p.or()
	}
	pos := p.peek().pos
	e := p.or()
	for p.skipWord("if") {
		n := &condExpr{then: e, test: p.or(), pos: pos}
		if p.skipWord("else") {
			n.otherwise = p.expression(true)
		}
		e = n
	}
	return e
}

func (p *parser) or() expr {
	e := p.and()
	for p.skipWord("or") {
		e = &orExpr{e, p.and()}
	}
	return e
}

func (p *parser) and() expr {
	e := p.not()
	for p.skipWord("and") {
		e = &andExpr{e, p.not()}
	}
	return e
}

func (p *parser) not() expr {
	if p.skipWord("not") {
		p.enter()
		defer p.leave()
		return &notExpr{p.not()}
	}
	return p.compare()
}

func (p *parser) compare() expr {
	n := &compareExpr{pos: p.peek().pos, first: p.sum()}
	for {
		t := p.peek()
		switch {
		case t.kind == tokOp && strings.Contains(" == != < <= > >= ", " "+t.text+" "):
			p.next()
			n.ops = append(n.ops, compareOp{t.text, p.sum()})
		case p.skipWord("in"):
			n.ops = append(n.ops, compareOp{"in", p.sum()})
		case p.isWord("not") && p.tokens[p.at+1].kind == tokName && p.tokens[p.at+1].text == "in":
			p.at += 2
			n.ops = append(n.ops, compareOp{"not in", p.sum()})
		case len(n.ops) == 0:
			return n.first
		default:
			return n
		}
	}
}

// leftToRight reads operands with operators of one level between them.
func (p *parser) leftToRight(operand func() expr, ops ...string) expr {
	e := operand()
	for {
		t := p.peek()
		found := false
		for _, op := range ops {
			found = found || t.kind == tokOp && t.text == op
		}
		if !found {
			return e
		}
		p.next()
		e = &arithExpr{t.text, e, operand(), t.pos}
	}
}

func (p *parser) sum() expr { return p.leftToRight(p.concat, "+", "-") }

func (p *parser) concat() expr {
	e := p.product()
	if !p.isOp("~") {
		return e
	}
	parts := []expr{e}
	for p.skipOp("~") {
		parts = append(parts, p.product())
	}
	return &concatExpr{parts}
}

func (p *parser) product() expr {
	e := p.leftToRight(func() expr { return p.unary(true) }, "*", "/", "//", "%")
	if t := p.peek(); p.isOp("**") {
		failAt(t.pos, "%s", unsupported("operator", "**"))
	}
	return e
}

func (p *parser) unary(filters bool) expr {
	p.enter()
	defer p.leave()
	var e expr
	t := p.peek()
	switch {
	case p.skipOp("-"):
		e = &signExpr{p.unary(false), t.pos}
	case p.isOp("+"):
		failAt(t.pos, "%s", unsupported("sign", "+"))
	default:
		e = p.primary()
	}
	e = p.postfix(e)
	if !filters {
		return e
	}
	for {
		switch {
		case p.isOp("|"):
			e = p.filterChain(e, false)
		case p.isWord("is"):
			e = p.test(e)
		case p.isOp("("):
			e = p.call(e)
		default:
			return e
		}
	}
}

func (p *parser) primary() expr {
	switch t := p.next(); t.kind {
	case tokName:
		switch t.text {
		case "true", "True":
			return &constExpr{Bool(true)}
		case "false", "False":
			return &constExpr{Bool(false)}
		case "none", "None":
			return &constExpr{None{}}
		}
		return &nameExpr{p.use(t.text, t.pos), t.pos}
	case tokString:
		text := t.text
		for p.peek().kind == tokString {
			text += p.next().text
		}
		return &constExpr{String(text)}
	case tokNumber:
		return &constExpr{t.num}
	case tokOp:
		switch t.text {
		case "(":
			e := p.tuple(true, true)
			p.expectOp(")")
			return e
		case "[":
			return &listExpr{p.items("]")}
		case "{":
			return p.dict(t.pos)
		}
		failAt(t.pos, "unexpected %s", t.describe())
	default:
		failAt(t.pos, "expected an expression, found %s", t.describe())
	}
	return nil
}

func (p *parser) items(end string) []expr {
	var items []expr
	for !p.skipOp(end) {
		if items != nil {
			p.expectOp(",")
			if p.skipOp(end) {
				break
			}
		}
		items = append(items, p.expression(true))
	}
	return items
}

func (p *parser) dict(pos int) expr {
	n := &dictExpr{pos: pos}
	for !p.skipOp("}") {
		if n.keys != nil {
			p.expectOp(",")
			if p.skipOp("}") {
				break
			}
		}
		n.keys = append(n.keys, p.expression(true))
		p.expectOp(":")
		n.vals = append(n.vals, p.expression(true))
	}
	return n
}

func (p *parser) postfix(e expr) expr {
	for {
		pos := p.peek().pos
		switch {
		case p.skipOp("."):
			switch t := p.next(); {
			case t.kind == tokName:
				e = &attrExpr{e, t.text, pos}
			case t.kind == tokNumber && t.num.typeName() == "int":
				e = &itemExpr{e, &constExpr{t.num}, pos}
			default:
				failAt(t.pos, "expected a name or a number, found %s", t.describe())
			}
		case p.skipOp("["):
			e = &itemExpr{e, p.subscript(), pos}
		case p.isOp("("):
			e = p.call(e)
		default:
			return e
		}
	}
}

func (p *parser) subscript() expr {
	if t := p.peek(); p.isOp("]") {
		failAt(t.pos, "expected an expression between the brackets")
	}
	key := p.slice()
	if t := p.peek(); p.isOp(",") {
		failAt(t.pos, "%s", unsupported("comma", "between brackets"))
	}
	p.expectOp("]")
	return key
}

func (p *parser) slice() expr {
	n := &sliceExpr{}
	if !p.isOp(":") {
		if n.from = p.expression(true); !p.isOp(":") {
			return n.from
		}
	}
	p.expectOp(":")
	part := func() expr {
		if p.isOp(":") || p.isOp("]") || p.isOp(",") {
			return nil
		}
		return p.expression(true)
	}
	n.to = part()
	if p.skipOp(":") {
		n.step = part()
	}
	return n
}

func (p *parser) call(fn expr) expr {
	pos := p.peek().pos
	if method, ok := fn.(*attrExpr); ok && isUnsupported("method", method.name) {
		failAt(pos, "%s", unsupported("method", method.name))
	}
	return &callExpr{fn, p.args(), pos}
}

func (p *parser) args() callArgs {
	var a callArgs
	p.expectOp("(")
	for first := true; !p.skipOp(")"); first = false {
		if !first {
			p.expectOp(",")
			if p.skipOp(")") {
				break
			}
		}
		t := p.peek()
		isNamed := t.kind == tokName && p.tokens[p.at+1].kind == tokOp && p.tokens[p.at+1].text == "="
		switch {
		case p.isOp("**"):
			failAt(t.pos, "%s", unsupported("argument", "**"))
		case a.spread != nil && !isNamed:
			failAt(t.pos, "an argument without a name must not follow *")
		case p.skipOp("*"):
			a.spread = p.expression(true)
		case isNamed:
			p.at += 2
			a.names = append(a.names, t.text)
			a.named = append(a.named, p.expression(true))
		case a.names != nil:
			failAt(t.pos, "an argument without a name must not follow one with a name")
		default:
			a.pos = append(a.pos, p.expression(true))
		}
	}
	return a
}

// filterChain reads | name(args) and so on. Within {% filter %} the first bar is left out.
func (p *parser) filterChain(e expr, bare bool) expr {
	for bare || p.skipOp("|") {
		bare = false
		name := p.expect(tokName)
		full := name.text
		for p.skipOp(".") {
			full += "." + p.expect(tokName).text
		}
		n := &filterExpr{in: e, name: full, fn: filterByName(full), pos: name.pos}
		if isUnsupported("filter", full) {
			failAt(name.pos, "%s", unsupported("filter", full))
		}
		if p.isOp("(") {
			n.args = p.args()
		}
		e = n
	}
	return e
}

func (p *parser) test(e expr) expr {
	p.expectWord("is")
	negated := p.skipWord("not")
	name := p.expect(tokName)
	if isUnsupported("test", name.text) {
		failAt(name.pos, "%s", unsupported("test", name.text))
	}
	n := &testExpr{in: e, name: name.text, fn: testByName(name.text), pos: name.pos}
	switch t := p.peek(); {
	case p.isOp("("):
		n.args = p.args()
	case p.isWord("is"):
		failAt(t.pos, "tests cannot be chained with is")
	case t.kind == tokName && t.text != "else" && t.text != "or" && t.text != "and",
		t.kind == tokString, t.kind == tokNumber, p.isOp("["), p.isOp("{"):
		failAt(t.pos, "%s", unsupported("test", "with an argument outside of brackets"))
	}
	if negated {
		return &notExpr{n}
	}
	return n
}
