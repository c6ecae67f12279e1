package runfile

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/runfile/othertrainers"
)

// runFileWalk holds a document against the types of its keys before the library reads it: that speaks of Go's types,
// stops at the first of several unknown keys, and cuts 3.5 to an integer's 3. It also finds what the decoded
// configuration cannot tell apart: keys without a value, and data sets that are switched off.
type runFileWalk struct {
	anchors map[string]ast.Node
	nodes   int // that were visited; those of an alias count each time
	errs    lineErrors
	empty   []string        // keys without a value, which have their defaults
	off     map[string]bool // entries of lists, such as datasets[1], with weight 0
	foreign int             // unknown keys that other trainers have
}

// maxNodes bounds the values of a run file with all aliases followed: a few lines of aliases can stand for billions.
const maxNodes = 20_000

func newRunFileWalk(body ast.Node) *runFileWalk {
	w := &runFileWalk{anchors: map[string]ast.Node{}, off: map[string]bool{}}
	ast.Walk(w, body)
	return w
}

// Visit notes an anchor, for ast.Walk.
func (w *runFileWalk) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok {
		w.anchors[a.Name.String()] = a.Value
	}
	return w
}

// mostErrors bounds the errors that are told at once. An example of LLaMA-Factory has 24 keys with other names.
const mostErrors = 40

// fail notes an error once: what an alias repeats is wrong in one place.
func (w *runFileWalk) fail(n ast.Node, format string, args ...any) {
	w.note(lineError{line: lineOf(n.GetToken()), text: fmt.Sprintf(format, args...)})
}

func (w *runFileWalk) note(e lineError) {
	if len(w.errs) < mostErrors && !slices.Contains(w.errs, e) {
		w.errs = append(w.errs, e)
	}
}

// selfReader reads its own YAML, and says itself what it takes.
type selfReader interface {
	UnmarshalYAML(func(any) error) error
}

// listOf are the lists that types of one value may be instead.
var listOf = map[reflect.Type]reflect.Type{
	reflect.TypeFor[Names]():       reflect.TypeFor[[]string](),
	reflect.TypeFor[Losses]():      reflect.TypeFor[[]string](),
	reflect.TypeFor[Paths]():       reflect.TypeFor[[]string](),
	reflect.TypeFor[data.Prompt](): reflect.TypeFor[[]data.Message](),
}

// mappingOf are the mappings that types of one value may be instead.
var mappingOf = map[reflect.Type]reflect.Type{reflect.TypeFor[Tracker](): reflect.TypeFor[MLflow](),
	reflect.TypeFor[Sampler](): reflect.TypeFor[samplerMapping]()}

// check holds a value against the type of its key.
func (w *runFileWalk) check(n ast.Node, t reflect.Type, key string) {
	if w.nodes++; w.nodes > maxNodes {
		if w.nodes == maxNodes+1 {
			w.fail(n, "with its aliases (*) followed, the run file has more than %d values; write them out", maxNodes)
		}
		return
	}
	switch v := n.(type) {
	case nil:
		return
	case *ast.NullNode:
		if key != "" && !strings.Contains(key, "[") {
			w.empty = append(w.empty, key)
		}
		return
	case *ast.AliasNode:
		if to, ok := w.anchors[v.Value.String()]; ok { // else the library says what is missing
			w.check(to, t, key)
		}
		return
	case *ast.AnchorNode:
		w.check(v.Value, t, key)
		return
	case *ast.TagNode:
		w.check(v.Value, t, key)
		return
	}
	text, isScalar := scalarText(n)
	if _, isList := n.(*ast.SequenceNode); isList && listOf[t] != nil {
		w.checkList(n, listOf[t], key)
		return
	}
	if mappingOf[t] != nil && pairs(n) != nil {
		w.checkStruct(n, mappingOf[t], key)
		return
	}
	if read, ok := reflect.New(t).Interface().(selfReader); ok {
		if !isScalar {
			w.must(n, key, "one value")
		} else if err := read.UnmarshalYAML(func(to any) error { *to.(*string) = text; return nil }); err != nil {
			w.fail(n, "%s: %v", key, err)
		}
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		w.checkStruct(n, t, key)
	case reflect.Map:
		w.checkMap(n, key)
	case reflect.Slice, reflect.Array:
		w.checkList(n, t, key)
	case reflect.String:
		if !isScalar {
			w.must(n, key, "one text")
		}
	case reflect.Bool:
		if _, ok := n.(*ast.BoolNode); !ok {
			w.must(n, key, "true or false")
		}
	case reflect.Int, reflect.Int64:
		i, err := strconv.ParseInt(text, 0, 64)
		if !isScalar || err != nil {
			w.must(n, key, "a whole number")
		} else {
			w.checkZero(n, key, i == 0)
		}
	case reflect.Uint64:
		if _, err := strconv.ParseUint(text, 0, 64); !isScalar || err != nil {
			w.must(n, key, "a whole number that is not negative")
		}
	case reflect.Float64:
		switch n.(type) {
		case *ast.NanNode, *ast.InfinityNode: // what the key takes of them is for Check
			return
		}
		x, err := strconv.ParseFloat(text, 64)
		if !isScalar || err != nil {
			w.must(n, key, "a number")
		} else {
			w.checkZero(n, key, x == 0)
		}
	}
}

func scalarText(n ast.Node) (string, bool) {
	scalar, ok := n.(ast.ScalarNode)
	if !ok {
		return "", false
	}
	if tok := n.GetToken(); tok != nil && n.Type() != ast.LiteralType {
		return tok.Value, true
	}
	return fmt.Sprint(scalar.GetValue()), true
}

// must notes that a value is of another kind than its key's.
func (w *runFileWalk) must(n ast.Node, key, want string) {
	text := n.String()
	if line, _, more := strings.Cut(text, "\n"); more || len(line) > 40 {
		text = strings.ToValidUTF8(line[:min(len(line), 40)], "") + " ..."
	}
	if key == "" {
		key = "the run file"
	}
	w.fail(n, "%s must be %s, not %s", key, want, strings.TrimSpace(text))
}

// checkZero is for the keys whose zero is told from a missing one here only.
func (w *runFileWalk) checkZero(n ast.Node, key string, isZero bool) {
	entry, isWeight := strings.CutSuffix(key, "].weight")
	switch {
	case !isZero:
	case isWeight:
		w.off[entry+"]"] = true
	case key == "max_steps":
		w.fail(n, "max_steps is 0: it must be at least 1; leave it out to train for epochs")
	case key == "epochs":
		w.fail(n, "epochs is 0: it must be above 0; leave it out to train for max_steps")
	}
}

// switchedOn is a list of data sets without those that have weight 0.
func (w *runFileWalk) switchedOn(key string, sets []data.Source) []data.Source {
	var on []data.Source
	for i, s := range sets {
		if !w.off[fmt.Sprintf("%s[%d]", key, i)] {
			on = append(on, s)
		}
	}
	return on
}

func (w *runFileWalk) checkStruct(n ast.Node, t reflect.Type, key string) {
	values := pairs(n)
	if values == nil {
		w.must(n, key, "a mapping, such as {"+keysOf(t)[0]+": ...}")
		return
	}
	for _, p := range values {
		if p.Key.IsMergeKey() {
			w.merge(p.Value, t, key)
			continue
		}
		name := keyText(p.Key)
		inner := strings.TrimPrefix(key+"."+name, ".")
		if f, ok := fieldOf(t, name); ok {
			w.check(p.Value, f.Type, inner)
		} else if len(w.errs) < mostErrors {
			w.note(lineError{lineOf(p.Key.GetToken()), w.meantKey(name, key, t), inner})
		}
	}
}

// merge goes into what << merges into a mapping: one mapping, or a list of them.
func (w *runFileWalk) merge(n ast.Node, t reflect.Type, key string) {
	if list, ok := n.(*ast.SequenceNode); ok {
		for _, e := range list.Values {
			w.check(e, t, key)
		}
		return
	}
	w.check(n, t, key)
}

func (w *runFileWalk) checkList(n ast.Node, t reflect.Type, key string) {
	list, ok := n.(*ast.SequenceNode)
	switch {
	case t.Kind() == reflect.Array && (!ok || len(list.Values) != t.Len()):
		w.must(n, key, fmt.Sprintf("a list of %d", t.Len()))
	case !ok:
		w.must(n, key, `a list; begin each entry with "- "`)
	default:
		for i, e := range list.Values {
			w.check(e, t.Elem(), fmt.Sprintf("%s[%d]", key, i))
		}
	}
}

// checkMap holds a mapping of names of the user's own to what JSON has.
func (w *runFileWalk) checkMap(n ast.Node, key string) {
	values := pairs(n)
	if values == nil {
		w.must(n, key, "a mapping, such as {enable_thinking: false}")
	}
	for _, p := range values {
		if _, ok := p.Key.(*ast.StringNode); !ok {
			w.fail(p.Key, "%s has the key %s, which is no name: put it in quotes", key, keyText(p.Key))
			continue
		}
		w.checkValue(p.Value, key+"."+keyText(p.Key))
	}
}

// checkValue holds a value of any kind to what JSON has.
func (w *runFileWalk) checkValue(n ast.Node, key string) {
	w.nodes++
	switch v := n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode, *ast.SequenceNode:
		if list, ok := v.(*ast.SequenceNode); ok {
			for i, e := range list.Values {
				w.checkValue(e, fmt.Sprintf("%s[%d]", key, i))
			}
			return
		}
		w.checkMap(n, key)
	case *ast.NullNode, *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode, *ast.StringNode, *ast.LiteralNode:
	default:
		w.must(n, key, "a text, a number, true, false, null, a list or a mapping, written out")
	}
}

func keyText(key ast.MapKeyNode) string {
	if s, ok := key.(*ast.StringNode); ok {
		return s.Value
	}
	return key.GetToken().Value
}

// meantKey says what to write instead of a key that is not known: what the same thing is called here, what is spelled
// nearly so, or what there is.
func (w *runFileWalk) meantKey(name, within string, t reflect.Type) string {
	lookup := map[reflect.Type]func(string) (othertrainers.Row, bool){
		reflect.TypeFor[Config](): othertrainers.Lookup, reflect.TypeFor[data.Source](): othertrainers.LookupEntry}[t]
	if lookup != nil {
		if row, ok := lookup(name); ok {
			w.foreign++
			return ": " + row.Advice()
		}
	}
	if question := spelling.Question(name, keysOf(t)); question != "" {
		return question
	}
	if within == "" {
		return ": remove it; docs/run-yaml.md has every key"
	}
	return fmt.Sprintf(": keys of %s are %s", within, strings.Join(keysOf(t), ", "))
}

// pairs returns the entries of a mapping; nil where n is not a mapping.
func pairs(n ast.Node) []*ast.MappingValueNode {
	switch m := n.(type) {
	case *ast.MappingNode:
		if m.Values == nil {
			return []*ast.MappingValueNode{}
		}
		return m.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{m}
	}
	return nil
}

// fieldOf is the field of a struct that a key sets.
func fieldOf(t reflect.Type, key string) (reflect.StructField, bool) {
	for i := range t.NumField() {
		if f := t.Field(i); yamlName(f) == key {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// Order returns the position of a key in a run file that has every key, from 0; -1 if there is no such key.
func Order(key string) int { return slices.Index(keysOf(reflect.TypeFor[Config]()), key) }

// keysOf are a struct's keys, in order.
func keysOf(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		keys = append(keys, yamlName(t.Field(i)))
	}
	return keys
}

func yamlName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return name
}

func lineOf(t *token.Token) int {
	if t == nil || t.Position == nil {
		return 0
	}
	return t.Position.Line
}
