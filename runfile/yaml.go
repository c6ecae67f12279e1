package runfile

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// MaxBytes bounds what is parsed: the longest run file that makes sense has some kB.
const MaxBytes = 256 << 10

// maxMarks bounds each of YAML's marks, since the parser's time grows with the square of some: 100,000 of [ take it
// half a minute.
const maxMarks = 10_000

// fewForeign is the number of keys of other trainers that make a whole file likely to be another trainer's.
const fewForeign = 3

// parse reads a document over the configuration. It reports all faults at once, with lines, in the order of the
// document: unknown keys, and values of another kind than their keys'.
func (c *Config) parse(doc []byte) error {
	doc, err := plainText(doc)
	if err != nil {
		return err
	}
	body, err := parseYAML(doc)
	if err != nil || body == nil {
		return err
	}
	w := newRunFileWalk(body)
	w.check(body, reflect.TypeFor[Config](), "")
	if w.foreign >= fewForeign {
		w.errs = append(w.errs, lineError{text: "millrace convert makes a run file of another trainer's file"})
	}
	if len(w.errs) > 0 {
		return w.errs
	}
	if err := decodeYAML(doc, c); err != nil {
		return err
	}
	defaults := undecided()
	for _, key := range w.empty {
		reset(reflect.ValueOf(c).Elem(), reflect.ValueOf(&defaults).Elem(), strings.Split(key, "."))
	}
	if c.Datasets = w.switchedOn("datasets", c.Datasets); len(w.off) > 0 && len(c.Datasets) == 0 {
		return lineErrors{{text: "datasets: all of them have weight 0; one must be above 0"}}
	}
	c.Eval.Datasets = w.switchedOn("eval.datasets", c.Eval.Datasets)
	return nil
}

// plainText is a document without the mark that some editors begin a file with, if all of it can be read as text.
func plainText(doc []byte) ([]byte, error) {
	if len(doc) > MaxBytes {
		return nil, lineErrors{{text: fmt.Sprintf("more than %d KiB: this is not a run file; name another", MaxBytes>>10)}}
	}
	if bytes.HasPrefix(doc, []byte("\xff\xfe")) || bytes.HasPrefix(doc, []byte("\xfe\xff")) {
		return nil, lineErrors{{text: "it is UTF-16; save it as UTF-8"}}
	}
	doc = bytes.TrimPrefix(doc, []byte("\xef\xbb\xbf"))
	line, marks := 1, [utf8.RuneSelf]int{}
	for at := 0; at < len(doc); {
		r, n := utf8.DecodeRune(doc[at:])
		switch {
		case r == utf8.RuneError && n == 1:
			return nil, lineErrors{{line: line, text: fmt.Sprintf("the byte 0x%02x is not UTF-8; a name with such bytes "+
				"cannot be in a run file: rename it", doc[at])}}
		case r == '\n':
			line++
		case unicode.IsControl(r) && r != '\t' && r != '\r':
			return nil, lineErrors{{line: line, text: fmt.Sprintf("there is a control character, U+%04X; remove it", r)}}
		case r < utf8.RuneSelf && strings.ContainsRune("[{:-?&*!", r):
			if marks[r]++; marks[r] > maxMarks {
				return nil, lineErrors{{line: line, text: fmt.Sprintf("more than %d times %q: this is not a run file; name another",
					maxMarks, r)}}
			}
		}
		at += n
	}
	return doc, nil
}

// parseYAML is the one document of a run file; nil if it has nothing but comments.
func parseYAML(doc []byte) (body ast.Node, err error) {
	defer recovered(&err)
	file, err := parser.ParseBytes(doc, 0)
	if err != nil {
		return nil, placed(err)
	}
	for _, d := range file.Docs {
		if d.Body == nil || d.Body.Type() == ast.CommentType {
			continue
		}
		if body != nil {
			return nil, lineErrors{{line: lineOf(d.Body.GetToken()), text: "a second YAML document begins here; a run file " +
				"has one: remove the line ---, or what follows it"}}
		}
		body = d.Body
	}
	return body, nil
}

// decodeYAML decodes what has been checked. The parser refuses keys that are there twice; here a mapping repeats those
// that << has merged.
func decodeYAML(doc []byte, c *Config) (err error) {
	defer recovered(&err)
	return placed(yaml.UnmarshalWithOptions(doc, c, yaml.DisallowUnknownField(), yaml.AllowDuplicateMapKey()))
}

// recovered makes a panic of the library an error: some tags are enough for one.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = lineErrors{{text: "this is not YAML that can be read; write it without tags (!)"}}
	}
}

// reset gives a key the value that it has in another configuration.
func reset(to, from reflect.Value, key []string) {
	for _, name := range key {
		f, _ := fieldOf(to.Type(), name)
		to, from = to.FieldByIndex(f.Index), from.FieldByIndex(f.Index)
	}
	to.Set(from)
}

// lineErrors are errors in lines of a document.
type lineErrors []lineError

type lineError struct {
	line int // from 1; 0: not known
	text string
	key  string // that is unknown, and text says what to do; else empty
}

// Error has the errors in the order of their lines. Unknown keys of which the same is said are one.
func (all lineErrors) Error() string {
	var texts []string
	for i, e := range all {
		same := func(other lineError) bool { return other.key != "" && other.text == e.text }
		lines, keys := []string{fmt.Sprint(e.line)}, []string{e.key}
		if e.key != "" {
			if slices.ContainsFunc(all[:i], same) {
				continue
			}
			for _, other := range all[i+1:] {
				if same(other) {
					lines, keys = append(lines, fmt.Sprint(other.line)), append(keys, other.key)
				}
			}
			e.text = plural("unknown key", keys) + e.text
		}
		if e.line > 0 {
			e.text = plural("line", slices.Compact(lines)) + ": " + e.text
		}
		texts = append(texts, e.text)
	}
	return strings.Join(texts, "; ")
}

// plural is a noun before one thing or several.
func plural(noun string, things []string) string {
	if len(things) > 1 {
		noun += "s"
	}
	return noun + " " + strings.Join(things, ", ")
}

// alreadyThere matches the library's error for a key that is there twice.
var alreadyThere = regexp.MustCompile(`^mapping key "(.*)" already defined at \[(\d+):`)

// placed is the library's error without its picture of the source.
func placed(err error) error {
	var y yaml.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &y):
		text := y.GetMessage()
		if key := alreadyThere.FindStringSubmatch(text); key != nil {
			text = fmt.Sprintf("key %s is in line %s already: remove one of them", key[1], key[2])
		} else {
			text += ": check quotes, brackets and spaces there"
		}
		return lineErrors{{line: lineOf(y.GetToken()), text: text}}
	}
	return lineErrors{{text: strings.Join(strings.Fields(err.Error()), " ")}}
}
