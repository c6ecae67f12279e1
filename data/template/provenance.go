package template

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Whether a template has written a text cannot be told by looking for the text: "user" stands in every header, the name
// of a tool in its declaration, and one call's arguments in another call. So the conversation is rendered once more, with
// a mark before and after each text. A text is written where its two marks stand with nothing but the text between
// them. Without its marks the marked rendering has to be the real one, except for white space; a template that looks at
// texts, and so writes something else for marked ones, proves nothing.
//
// A text has its marks inside of the tags at its ends, and of the white space there: templates look for <think> and
// <tool_response>, and strip texts. The assistant's texts are cut at all tags, since templates take thoughts out of
// them, and each stretch has marks of its own.
//
// Numbers and truth values cannot have marks, and neither can keys, by whose order some templates write arguments. They
// have to stand in what a template writes between the marks of a call.

// Part says what a text of a conversation is.
type Part uint8

const (
	Content Part = iota
	Thoughts
	CallName
	Argument // of a call: a text in it, or a key with a value that is no text
	OtherKey // of a message
	ToolName
	ToolText // the description of a tool
)

// Text is a text of a conversation, or a stretch of one between tags.
type Text struct {
	Part    Part
	Message int    // -1: it is of a tool
	Index   int    // of the call in its message, or of the tool
	Key     string // of the message, or of the arguments
	Said    string
	// In has, for each place where the template writes the text, the index of the span there, -1 where none is.
	In []int

	lead, trail string // tags and white space around it, which have no marks
	isNumber    bool   // a value that is no text
	message     *Dict
}

// Marks of texts are private characters: one that opens or closes, and two digits.
const (
	marksFrom    = 0x100000
	markDigits   = 0x1000
	marksPerBase = 2*markDigits + 2
	markBases    = 7
)

// tracer marks the texts of a conversation.
type tracer struct {
	base   rune // of marks
	texts  []Text
	isText func(key, text string) bool
}

// Texts marks the texts of a conversation, renders it once more, and finds where each text stands in the text that the
// conversation has. isText says which texts of other keys of a message are meant: by key and value.
func (t *Template) Texts(ctx context.Context, in Input, c Conversation, isText func(key, text string) bool) ([]Text, error) {
	r := &tracer{isText: isText}
	for r.base = marksFrom; hasRunes(c.Text, r.base, marksPerBase); r.base += marksPerBase {
		if r.base >= marksFrom+(markBases-1)*marksPerBase {
			return nil, errors.New("the texts have too many private characters of Unicode: remove those above U+100000")
		}
	}
	marked := in
	marked.Messages, marked.Tools = r.messages(in.Messages), r.tools(in.Tools)
	out, err := t.Render(ctx, marked)
	if err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", errLooksAtTexts, err)
	}
	return r.texts, r.place(out.Text, c)
}

// errLooksAtTexts refuses a template whose text depends on what is said.
var errLooksAtTexts = errors.New("the chat template looks at what the texts say, or writes a part of one, so that it is " +
	"not known what it leaves out: use one that writes texts as they are")

func hasRunes(text string, first rune, n int) bool {
	return strings.ContainsFunc(text, func(r rune) bool { return r >= first && r < first+rune(n) })
}

func (r *tracer) mark(id int, closes bool) string {
	open := r.base + 2*markDigits
	if closes {
		open++
	}
	return string([]rune{open, r.base + rune(id/markDigits), r.base + markDigits + rune(id%markDigits)})
}

// tag matches the marks by which templates take thoughts out of a text: <think>, </think>, [/THINK], <channel|>.
var tag = regexp.MustCompile(`<[^<>\s]{1,40}>|\[[A-Z/ _]{1,40}\]`)

// text marks a text as a whole, inside of tags at its ends.
func (r *tracer) text(of Text, text string) String {
	if isBlank(text) {
		return String(text)
	}
	from, to := 0, len(text)
	if all := tag.FindAllStringIndex(text, -1); all != nil {
		for _, at := range all {
			if !isBlank(text[from:at[0]]) {
				break
			}
			from = at[1]
		}
		for _, at := range slices.Backward(all) {
			if at[0] < from || !isBlank(text[at[1]:to]) {
				break
			}
			to = at[0]
		}
		if isBlank(text[from:to]) { // there are tags alone
			from, to = 0, len(text)
		}
	}
	return String(text[:from] + r.stretch(of, text[:from], text[from:to], text[to:]) + text[to:])
}

// stretch marks a stretch of a text, inside of its white space.
func (r *tracer) stretch(of Text, lead, text, trail string) string {
	core := strings.TrimFunc(text, isSpace)
	if core == "" {
		return text
	}
	at := strings.Index(text, core)
	id := len(r.texts)
	of.Said = core
	of.lead = strings.TrimLeftFunc(lead+text[:at], isSpace)
	of.trail = strings.TrimRightFunc(text[at+len(core):]+trail, isSpace)
	r.texts = append(r.texts, of)
	return text[:at] + r.mark(id, false) + core + r.mark(id, true) + text[at+len(core):]
}

// stretches marks what stands between the tags of a text of the assistant. Thoughts are all before </think>.
func (r *tracer) stretches(of Text, text string) String {
	var b strings.Builder
	at, thoughts := 0, strings.LastIndex(text, endOfThoughts)
	add := func(to int) {
		part := of
		if to <= thoughts && of.Part == Content {
			part.Part = Thoughts
		}
		b.WriteString(r.stretch(part, "", text[at:to], ""))
	}
	n := len(r.texts)
	for _, tag := range tag.FindAllStringIndex(text, -1) {
		add(tag[0])
		b.WriteString(text[tag[0]:tag[1]])
		at = tag[1]
	}
	add(len(text))
	if len(r.texts) == n && !isBlank(text) { // there are tags alone
		return r.text(of, text)
	}
	return String(b.String())
}

func (r *tracer) messages(messages []Value) []Value {
	all := make([]Value, len(messages))
	for i, v := range messages {
		all[i] = v
		if d, ok := v.(*Dict); ok {
			all[i] = r.message(i, d)
		}
	}
	return all
}

func (r *tracer) message(i int, d *Dict) *Dict {
	role := roleOf(d)
	out := d.clone()
	thoughts := map[String]String{} // marked; a text may have two keys, of which a template reads one
	for k, key := range d.Keys() {
		name, _ := key.(String)
		of := Text{Message: i, Key: string(name), message: d}
		text, ok := d.At(k).(String)
		switch {
		case !ok || name == "role":
		case name == "content":
			if role == "assistant" {
				out.Set("content", r.stretches(of, string(text)))
			} else {
				out.Set("content", r.text(of, string(text)))
			}
		case slices.Contains(reasoningKeys, string(name)):
			of.Part = Thoughts
			if _, ok := thoughts[text]; !ok {
				thoughts[text] = r.stretches(of, string(text))
			}
			out.Set(string(name), thoughts[text])
		case r.isText(string(name), string(text)):
			of.Part = OtherKey
			out.Set(string(name), r.text(of, string(text)))
		}
	}
	var calls []Value
	for n, v := range callsOf(d) {
		if call, ok := v.(*Dict); ok {
			v = r.call(Text{Message: i, Index: n, message: d}, call)
		}
		calls = append(calls, v)
	}
	if calls != nil {
		out.Set("tool_calls", &List{calls})
	}
	return out
}

// call marks a call, which may have its function inside or be one.
func (r *tracer) call(of Text, call *Dict) *Dict {
	call = call.clone()
	function := call
	if v, ok := call.Get("function"); ok {
		inner, ok := v.(*Dict)
		if !ok {
			return call
		}
		function = inner.clone()
		call.Set("function", function)
	}
	if name, ok := function.Get("name"); ok {
		if s, ok := name.(String); ok {
			of.Part = CallName
			function.Set("name", r.text(of, string(s)))
		}
	}
	if arguments, ok := function.Get("arguments"); ok {
		of.Part = Argument
		function.Set("arguments", r.argument(of, arguments, 0))
	}
	return call
}

func (r *tracer) argument(of Text, v Value, depth int) Value {
	if depth > maxNesting {
		return v
	}
	switch v := v.(type) {
	case String:
		return r.text(of, string(v))
	case *List:
		items := make([]Value, len(v.items))
		for i, item := range v.items {
			items[i] = r.argument(of, item, depth+1)
		}
		return &List{items}
	case *Dict:
		out := v.clone()
		for k, key := range v.Keys() {
			name, _ := key.(String)
			of.Key = string(name)
			out.Set(string(name), r.argument(of, v.At(k), depth+1))
		}
		return out
	}
	if said, ok := textOfNumber(v); ok {
		of.Said, of.isNumber = said, true
		r.texts = append(r.texts, of)
	}
	return v
}

func textOfNumber(v Value) (string, bool) {
	switch v.(type) {
	case Bool, Int, bigInt, Float, None:
		return JSON(v)
	}
	return "", false
}

func (r *tracer) tools(tools []Value) []Value {
	if tools == nil {
		return nil
	}
	all := make([]Value, len(tools))
	for i, v := range tools {
		all[i] = v
		tool, ok := v.(*Dict)
		if !ok {
			continue
		}
		inner, _ := tool.Get("function")
		function, ok := inner.(*Dict)
		if !ok {
			continue
		}
		function = function.clone()
		for _, text := range []struct {
			key  string
			part Part
		}{{"name", ToolName}, {"description", ToolText}} {
			if v, _ := function.Get(text.key); v != nil {
				if s, ok := v.(String); ok {
					function.Set(text.key, r.text(Text{Part: text.part, Message: -1, Index: i, Key: text.key}, string(s)))
				}
			}
		}
		tool = tool.clone()
		tool.Set("function", function)
		all[i] = tool
	}
	return all
}

// squeezed is a text without white space.
func squeezed(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, text)
}

// placed is a mark in a squeezed text.
type placed struct {
	id     int
	closes bool
	at     int
}

// unmark squeezes a marked text, and takes the marks out. Marks may be spelled as Python and JSON escape characters.
func (r *tracer) unmark(text string) (clean string, marks []placed) {
	b := make([]byte, 0, len(text))
	var digits []rune
	for len(text) > 0 {
		c, n := utf8.DecodeRuneInString(text)
		if c == '\\' {
			if escaped, size, ok := escapedRune(text); ok && escaped >= r.base && escaped < r.base+marksPerBase {
				c, n = escaped, size
			}
		}
		switch {
		case c >= r.base+2*markDigits && c < r.base+marksPerBase:
			digits = append(digits[:0], c)
		case c >= r.base && c < r.base+marksPerBase:
			if digits = append(digits, c); len(digits) == 3 {
				id := int(digits[1]-r.base)*markDigits + int(digits[2]-r.base) - markDigits
				marks = append(marks, placed{id, digits[0] > r.base+2*markDigits, len(b)})
				digits = digits[:0]
			}
		case !unicode.IsSpace(c):
			b = append(b, text[:n]...)
		}
		text = text[n:]
	}
	return string(b), marks
}

// escapedRune reads a character above U+FFFF that is spelled as \U0010abcd or as \udabc\udabc.
func escapedRune(text string) (r rune, n int, ok bool) {
	if v, err := parseHex(text, `\U`, 8); err == nil {
		return rune(v), 10, true
	}
	high, err1 := parseHex(text, `\u`, 4)
	if err1 != nil || high < 0xD800 || high > 0xDBFF {
		return 0, 0, false
	}
	low, err2 := parseHex(text[6:], `\u`, 4)
	if err2 != nil || low < 0xDC00 || low > 0xDFFF {
		return 0, 0, false
	}
	return rune(high-0xD800)<<10 + rune(low-0xDC00) + 0x10000, 12, true
}

func parseHex(text, prefix string, digits int) (v uint32, err error) {
	if len(text) < 2+digits || text[:2] != prefix {
		return 0, errNoHex
	}
	for _, c := range []byte(text[2 : 2+digits]) {
		switch {
		case c >= '0' && c <= '9':
			v = v<<4 + uint32(c-'0')
		case c >= 'a' && c <= 'f':
			v = v<<4 + uint32(c-'a') + 10
		case c >= 'A' && c <= 'F':
			v = v<<4 + uint32(c-'A') + 10
		default:
			return 0, errNoHex
		}
	}
	return v, nil
}

var errNoHex = errors.New("no escaped character")

// place finds where the texts stand.
func (r *tracer) place(marked string, c Conversation) error {
	clean, marks := r.unmark(marked)
	if clean != squeezed(c.Text) {
		return errLooksAtTexts
	}
	spans := squeezedSpans(c)
	opened := map[int]int{}
	for _, m := range marks {
		if m.id < 0 || m.id >= len(r.texts) {
			return errLooksAtTexts
		}
		if !m.closes {
			opened[m.id] = m.at
			continue
		}
		at, ok := opened[m.id]
		if text := &r.texts[m.id]; ok && text.isIn(clean, at, m.at) {
			text.In = append(text.In, spanAt(spans, at, m.at))
		}
		delete(opened, m.id)
	}
	r.placeArguments(clean, marks, spans)
	return nil
}

// squeezedSpans are the spans of a conversation, which are in order, in its squeezed text.
func squeezedSpans(c Conversation) []Span {
	spans := make([]Span, len(c.Spans))
	raw, at := 0, 0
	to := func(next int) int {
		if next > raw {
			raw, at = next, at+len(squeezed(c.Text[raw:next]))
		}
		return at
	}
	for i, s := range c.Spans {
		spans[i] = Span{to(s.Start), to(s.End), s.Message}
	}
	return spans
}

// spanAt is the span that has a stretch, -1 if none has.
func spanAt(spans []Span, from, to int) int {
	i := sort.Search(len(spans), func(i int) bool { return spans[i].Start > from }) - 1
	if i >= 0 && to <= spans[i].End {
		return i
	}
	return -1
}

// isIn reports whether a squeezed text has this one from a place to another: as it is, or as JSON or Python spell it.
func (x *Text) isIn(clean string, from, to int) bool {
	if x.Part == ToolText {
		return true // some templates break its lines, or put them into comments
	}
	lead, said, trail := spellings(x.lead), spellings(x.Said), spellings(x.trail)
	for i := range said {
		if clean[from:to] == said[i] && strings.HasSuffix(clean[:from], lead[i]) && strings.HasPrefix(clean[to:], trail[i]) {
			return true
		}
	}
	return false
}

// spellings are a text as it is, as JSON, as JSON of JSON, as JSON without other characters than ASCII, and as Python
// spells it, all squeezed.
func spellings(text string) [5]string {
	inside := func(quoted []byte) string { return string(quoted[1 : len(quoted)-1]) }
	once := inside(appendJSONString(nil, text, false))
	return [5]string{squeezed(text), squeezed(once), squeezed(inside(appendJSONString(nil, once, false))),
		squeezed(inside(appendJSONString(nil, text, true))), squeezed(inside(appendQuoted(nil, text)))}
}

// callArea holds the text that a template writes of a call without the texts that have marks: from the name on, up to
// the next text that is no argument.
type callArea struct {
	text   strings.Builder
	from   int    // after what was found last
	key    string // that was found last
	budget int    // bytes that may be searched
}

// placeArguments looks for the keys of arguments, and for values without marks. A call's arguments come after its name.
func (r *tracer) placeArguments(clean string, marks []placed, spans []Span) {
	if !slices.ContainsFunc(r.texts, func(x Text) bool { return x.Part == Argument }) {
		return
	}
	type call struct{ message, index int }
	areas := map[call]*callArea{}
	var now *callArea
	depth, at := 0, 0
	for _, m := range marks {
		if depth == 0 && now != nil {
			now.text.WriteString(clean[at:m.at])
		}
		at = m.at
		if m.closes {
			depth = max(depth-1, 0)
			continue
		}
		depth++
		switch x := &r.texts[m.id]; {
		case x.Part == CallName:
			key := call{x.Message, x.Index}
			if now = areas[key]; now == nil {
				now = &callArea{}
				areas[key] = now
			}
		case x.Part != Argument:
			now = nil
		}
	}
	if now != nil {
		now.text.WriteString(clean[at:])
	}
	spanOf := map[int]int{}
	for i, s := range spans {
		spanOf[s.Message] = i
	}
	for i := range r.texts {
		x := &r.texts[i]
		if x.Part != Argument {
			continue
		}
		area := areas[call{x.Message, x.Index}]
		switch {
		case area == nil || !area.find(x):
			x.In = nil
		case x.isNumber:
			in, ok := spanOf[x.Message]
			if !ok {
				in = -1
			}
			x.In = []int{in}
		}
	}
}

// find looks for the key of an argument, and for the argument if it has no marks. Most templates write arguments in
// their order, so that each search begins after the last; others sort them, and are searched from the beginning.
func (a *callArea) find(x *Text) bool {
	text := a.text.String()
	if a.budget == 0 {
		a.budget = 64*len(text) + 1<<20
	}
	search := func(from int, words ...string) bool {
		first := -1
		for _, word := range words {
			if word == "" || a.budget < 0 {
				continue
			}
			at := strings.Index(text[from:], word)
			if at < 0 {
				a.budget -= len(text) - from
				continue
			}
			a.budget -= at
			if first < 0 || from+at+len(word) < first {
				first = from + at + len(word)
			}
		}
		if first >= 0 {
			a.from = first
		}
		return first >= 0
	}
	if key := squeezed(x.Key); key != "" && key != a.key {
		quoted := appendJSONString(nil, x.Key, false)
		words := []string{key, squeezed(string(quoted[1 : len(quoted)-1]))}
		if !search(a.from, words...) && !search(0, words...) {
			return false
		}
		a.key = key
	}
	if !x.isNumber {
		return true
	}
	words := []string{x.Said, pythonNames[x.Said]}
	return search(a.from, words...) || search(0, words...)
}

// pythonNames are the words of Python for those of JSON.
var pythonNames = map[string]string{"true": "True", "false": "False", "null": "None"}

// JSON is a value as the filter tojson writes it; false where JSON has no such value.
func JSON(v Value) (text string, ok bool) {
	s := &state{ctx: context.Background(), limits: Limits{}.orDefaults()}
	s.stepsLeft, s.nextCheck, s.allocLeft = s.limits.Steps, 0, s.limits.AllocBytes
	defer s.use.End()
	defer func() {
		if recover() != nil {
			text, ok = "", false
		}
	}()
	return string(s.appendJSON(nil, v, &jsonStyle{item: ", ", key: ": "}, 0)), true
}

// VariablesKey is a text that is the same for the same variables.
func VariablesKey(variables map[string]Value) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		text, _ := JSON(variables[name])
		fmt.Fprintf(&b, "%q=%s\n", name, text)
	}
	return b.String()
}

// tryForm notes which parts of a last turn of a form the template writes.
func (c *Contract) tryForm(f *turnFinder, turn func(*Dict) []Value, form form) {
	in := f.in
	in.Messages = turn(madeUp(form, "zcontent"))
	out, err := c.t.Render(f.ctx, in)
	if err != nil {
		return
	}
	texts, err := c.t.Texts(f.ctx, in, Conversation{Text: out.Text}, func(string, string) bool { return false })
	if err != nil {
		return
	}
	written := map[Part]bool{}
	for _, x := range texts {
		if x.Message == len(in.Messages)-1 {
			has, known := written[x.Part]
			written[x.Part] = len(x.In) > 0 && (has || !known)
		}
	}
	c.written[form] = written
}

// WritesLast reports whether the template writes a text where its message is the last one. known is false where no
// made-up message of the form renders.
func (c *Contract) WritesLast(x Text) (writes, known bool) {
	written, known := c.written[formOf(x.message)]
	return written[x.Part], known
}
