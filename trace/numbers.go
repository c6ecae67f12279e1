package trace

import (
	"bytes"
	"errors"
	"math"
	"strconv"

	"github.com/millrace/millrace/internal/budget"
)

// maxDepth bounds the nesting of a record: hosts have lists of lanes, at depth 3.
const maxDepth = 6

var errNotRecord = errors.New("is not a record of metrics")

// numbers reads lines of metrics.jsonl, of which a run may have a hundred thousand: it decodes their numbers alone,
// with no value in memory for each. encoding/json is its reference, see TestNumbers.
type numbers struct {
	line []byte
	at   int
	path []byte
	// take gets each number of the record with its name, which is valid during the call: names of nested objects with
	// slashes between them, and the index in a list before the list's own name, as in experts/0/busiest. A number that
	// is null is NaN.
	take func(name []byte, value float64)
	time []byte // the text of the key time, without quotes
	// isOdd is set by what numbers does not tell apart, and a reader by types may refuse: words, texts of other keys than
	// time and those of hosts, numbers that no float64 is.
	isOdd bool
}

// read reads the line. An error says that it is no JSON object of our kind; numbers before the fault were taken.
func (n *numbers) read(line []byte) error {
	n.line, n.at, n.path, n.time, n.isOdd = line, 0, n.path[:0], nil, false
	if n.skip() != '{' || !n.value(0, 0) || n.skip() != 0 {
		return errNotRecord
	}
	return nil
}

// skip returns the next byte that is not a space, without taking it; 0 at the end.
func (n *numbers) skip() byte {
	for n.at < len(n.line) {
		switch c := n.line[n.at]; c {
		case ' ', '\t', '\r', '\n':
			n.at++
		default:
			return c
		}
	}
	return 0
}

// value reads a value whose name is the path; the object that has its key begins the path with parent bytes. It
// reports whether it could.
func (n *numbers) value(parent, depth int) bool {
	if depth > maxDepth {
		return false
	}
	switch c := n.skip(); c {
	case '{':
		return n.object(depth)
	case '[':
		return n.list(parent, depth)
	case '"':
		text, ok := n.text()
		if string(n.path) == "time" {
			n.time = text
		} else if string(n.path) != "hosts/slowest" {
			n.isOdd = true
		}
		return ok
	case 't':
		n.isOdd = true
		return n.word("true")
	case 'f':
		n.isOdd = true
		return n.word("false")
	case 'n':
		if !n.word("null") {
			return false
		}
		n.take(n.path, math.NaN())
		return true
	}
	from := n.at
	for n.at < len(n.line) && isOfNumber(n.line[n.at]) {
		n.at++
	}
	x, err := strconv.ParseFloat(string(n.line[from:n.at]), 64)
	if errors.Is(err, strconv.ErrRange) {
		x, err, n.isOdd = math.NaN(), nil, true
	}
	if err != nil {
		return false
	}
	n.take(n.path, x)
	return true
}

func isOfNumber(c byte) bool {
	return c >= '0' && c <= '9' || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E'
}

// word takes a word that stands for a value.
func (n *numbers) word(w string) bool {
	if !bytes.HasPrefix(n.line[n.at:], []byte(w)) {
		return false
	}
	n.at += len(w)
	return true
}

// object reads an object, whose keys continue the path.
func (n *numbers) object(depth int) bool {
	parent := len(n.path)
	n.at++
	if n.skip() == '}' {
		n.at++
		return true
	}
	for {
		if n.skip() != '"' {
			return false
		}
		key, ok := n.text()
		if !ok || n.skip() != ':' {
			return false
		}
		n.at++
		if parent > 0 {
			n.path = append(n.path, '/')
		}
		n.path = append(n.path, key...)
		if !n.value(parent, depth+1) {
			return false
		}
		n.path = n.path[:parent]
		if more, ok := n.more('}'); !more {
			return ok
		}
	}
}

// list reads a list. The index of an element comes before the list's own name, which is the path after its parent; in
// the record itself it comes after it.
func (n *numbers) list(parent, depth int) bool {
	own := bytes.Clone(bytes.TrimPrefix(n.path[parent:], []byte("/")))
	n.at++
	if n.skip() == ']' {
		n.at++
		return true
	}
	for i := 0; ; i++ {
		n.path = n.path[:parent]
		if parent == 0 {
			n.path = append(append(n.path, own...), '/')
			n.path = strconv.AppendInt(n.path, int64(i), 10)
		} else {
			n.path = strconv.AppendInt(append(n.path, '/'), int64(i), 10)
			n.path = append(append(n.path, '/'), own...)
		}
		if !n.value(parent, depth+1) {
			return false
		}
		if more, ok := n.more(']'); !more {
			return ok
		}
	}
}

// more takes the comma before the next element, or the end of the object or list.
func (n *numbers) more(end byte) (more, ok bool) {
	c := n.skip()
	n.at++
	return c == ',', c == ',' || c == end
}

// text takes a string, and returns what it says.
func (n *numbers) text() (text []byte, ok bool) {
	from := n.at
	n.at++
	escaped := false
	for ; n.at < len(n.line); n.at++ {
		switch c := n.line[n.at]; {
		case c == '\\':
			escaped = true
			n.at++
		case c == '"':
			n.at++
			if !escaped {
				return n.line[from+1 : n.at-1], true
			}
			var s string
			if budget.Unmarshal(n.line[from:n.at], &s) != nil {
				return nil, false
			}
			return []byte(s), true
		case c < ' ':
			return nil, false
		}
	}
	return nil, false
}
