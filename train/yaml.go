package train

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// parse reads a document over the configuration. An unknown key, or a value of another kind than the key's, is an error that
// names its line.
func (c *Config) parse(doc []byte) error {
	file, err := parser.ParseBytes(doc, 0)
	if err != nil {
		return placed(err)
	}
	for _, d := range file.Docs {
		if err := checkKind(d.Body, reflect.TypeFor[Config](), ""); err != nil {
			return err
		}
	}
	return placed(yaml.UnmarshalWithOptions(doc, c, yaml.Strict()))
}

// lineError is an error in one line of a document.
type lineError struct {
	line int // from 1; 0: not known
	text string
}

func (e *lineError) Error() string {
	if e.line == 0 {
		return e.text
	}
	return fmt.Sprintf("line %d: %s", e.line, e.text)
}

// placed is the library's error without its picture of the source.
func placed(err error) error {
	var y yaml.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &y):
		return &lineError{lineOf(y.GetToken()), y.GetMessage()}
	}
	return &lineError{0, strings.Join(strings.Fields(err.Error()), " ")}
}

func lineOf(t *token.Token) int {
	if t == nil || t.Position == nil {
		return 0
	}
	return t.Position.Line
}

// unmarshaler is what reads its own YAML, and says itself what it takes.
var unmarshaler = reflect.TypeFor[interface {
	UnmarshalYAML(func(any) error) error
}]()

// checkKind holds a value against the type of its key, before the library does: that speaks of Go's types, and cuts 3.5 to an
// integer's 3. Aliases and unknown keys are left to the library.
func checkKind(n ast.Node, t reflect.Type, key string) error {
	if n == nil || reflect.PointerTo(t).Implements(unmarshaler) {
		return nil
	}
	switch v := n.(type) {
	case *ast.NullNode, *ast.AliasNode, *ast.MergeKeyNode, *ast.CommentGroupNode:
		return nil
	case *ast.AnchorNode:
		return checkKind(v.Value, t, key)
	case *ast.TagNode:
		return checkKind(v.Value, t, key)
	}
	bad := func(want string) error {
		text := n.String()
		if line, _, more := strings.Cut(text, "\n"); more || len(line) > 40 {
			text = line[:min(len(line), 40)] + " ..."
		}
		what := key
		if key == "" {
			what = "the run file"
		}
		return &lineError{lineOf(n.GetToken()), fmt.Sprintf("%s must be %s, not %s", what, want, strings.TrimSpace(text))}
	}
	scalar, isScalar := n.(ast.ScalarNode)
	text := ""
	if isScalar {
		text = fmt.Sprint(scalar.GetValue())
		if tok := n.GetToken(); tok != nil {
			text = tok.Value
		}
	}
	switch t.Kind() {
	case reflect.Struct:
		values := pairs(n)
		if values == nil {
			return bad("a mapping, such as {" + strings.Join(keysOf(t)[:1], "") + ": ...}")
		}
		for _, p := range values {
			name := p.Key.String()
			if f, ok := fieldOf(t, name); ok {
				if err := checkKind(p.Value, f.Type, strings.TrimPrefix(key+"."+name, ".")); err != nil {
					return err
				}
			}
		}
	case reflect.Slice, reflect.Array:
		list, ok := n.(*ast.SequenceNode)
		if !ok || t.Kind() == reflect.Array && len(list.Values) != t.Len() {
			if t.Kind() == reflect.Array {
				return bad(fmt.Sprintf("a list of %d", t.Len()))
			}
			return bad("a list; begin each entry with \"- \"")
		}
		for i, e := range list.Values {
			if err := checkKind(e, t.Elem(), fmt.Sprintf("%s[%d]", key, i)); err != nil {
				return err
			}
		}
	case reflect.String:
		if !isScalar {
			return bad("one text")
		}
	case reflect.Bool:
		if _, ok := n.(*ast.BoolNode); !ok {
			return bad("true or false")
		}
	case reflect.Int, reflect.Int64:
		if _, err := strconv.ParseInt(text, 0, 64); !isScalar || err != nil {
			return bad("a whole number")
		}
	case reflect.Uint64:
		if _, err := strconv.ParseUint(text, 0, 64); !isScalar || err != nil {
			return bad("a whole number that is not negative")
		}
	case reflect.Float64:
		switch n.(type) {
		case *ast.NanNode, *ast.InfinityNode: // what the key takes of them is for Check
			return nil
		}
		if _, err := strconv.ParseFloat(text, 64); !isScalar || err != nil {
			return bad("a number")
		}
	}
	return nil
}

// pairs are the entries of a mapping; nil where n is none.
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
