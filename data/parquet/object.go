package parquet

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// rows puts rows together.
type rows struct {
	file    *File
	fields  []*node
	leaves  []int     // those below fields
	cursors []*cursor // by leaf
	out     []byte
	passed  map[*node]bool // refused ones of which no value is needed
	fault   error          // the row's: its rest is gone through and not written
}

// row reads the next row into out.
func (r *rows) row() error {
	r.out, r.fault = append(r.out[:0], '{'), nil
	first := true
	for _, n := range r.fields {
		if err := r.field(n, 0, &first); err != nil {
			return err
		}
	}
	r.out = append(r.out, '}')
	if err := r.bound(); err != nil {
		return err
	}
	return r.file.spend(len(r.out))
}

// bound gives up what is written of a row that gets too large, the rest of which is still to be gone through.
func (r *rows) bound() error {
	if len(r.out) <= r.file.limits.RowBytes {
		return nil
	}
	err := r.file.spend(len(r.out))
	r.fault, r.out = ErrRowTooLarge, r.out[:0]
	return err
}

// levels returns the levels of the next entry of a node's first leaf, which must begin at the repetition level of the
// node's value.
func (r *rows) levels(n *node, rep int) (def int, err error) {
	c := r.cursors[n.from]
	ok, err := c.peek()
	if err != nil {
		return 0, err
	}
	if !ok || c.rep != rep {
		return 0, c.failf("its nesting does not agree with the nesting of its neighbours")
	}
	return c.def, nil
}

// field writes a name and a value, or nothing for null. rep is the repetition level at which the value begins.
func (r *rows) field(n *node, rep int, first *bool) error {
	def, err := r.levels(n, rep)
	if err != nil {
		return err
	}
	if n.repetition == optional && def < n.def {
		return r.skip(n, rep, n.def)
	}
	if !*first {
		r.out = append(r.out, ',')
	}
	*first = false
	r.out = appendText(r.out, n.name)
	r.out = append(r.out, ':')
	return r.value(n, rep)
}

// value writes a value that may be null or repeated.
func (r *rows) value(n *node, rep int) error {
	switch n.repetition {
	case optional:
		def, err := r.levels(n, rep)
		if err != nil {
			return err
		}
		if def < n.def {
			r.out = append(r.out, "null"...)
			return r.skip(n, rep, n.def)
		}
	case repeated:
		return r.list(n, rep, func(rep int) error { return r.present(n, rep) })
	}
	return r.present(n, rep)
}

// skip passes one entry of each leaf below a node, all of which must be below a definition level.
func (r *rows) skip(n *node, rep, below int) error {
	for leaf := n.from; leaf < n.to; leaf++ {
		c := r.cursors[leaf]
		ok, err := c.peek()
		if err != nil {
			return err
		}
		if !ok || c.rep != rep || c.def >= below {
			return c.failf("its nesting does not agree with the nesting of its neighbours")
		}
		if _, err := c.take(); err != nil {
			return err
		}
	}
	return nil
}

// list writes the items of a repeated node.
func (r *rows) list(n *node, rep int, item func(rep int) error) error {
	def, err := r.levels(n, rep)
	if err != nil {
		return err
	}
	r.out = append(r.out, '[')
	if def < n.def {
		r.out = append(r.out, ']')
		return r.skip(n, rep, n.def)
	}
	c := r.cursors[n.from]
	for first := true; ; first = false {
		if !first {
			r.out = append(r.out, ',')
		}
		if err := item(rep); err != nil {
			return err
		}
		if err := r.bound(); err != nil {
			return err
		}
		ok, err := c.peek()
		if err != nil {
			return err
		}
		if !ok || c.rep != n.rep {
			break
		}
		rep = n.rep
	}
	r.out = append(r.out, ']')
	return nil
}

// present writes a value that is not null, or one item of a repeated node.
func (r *rows) present(n *node, rep int) error {
	if n.meaning == isRefused && !r.passed[n] {
		return r.file.refused(n)
	}
	if n.isLeaf() {
		return r.leaf(n, rep)
	}
	if n.isMap {
		return r.entries(n.fields[0], rep)
	}
	if items, item, ok := n.listItem(); ok {
		if item != nil {
			return r.list(items, rep, func(rep int) error { return r.value(item, rep) })
		}
		return r.value(items, rep)
	}
	r.out = append(r.out, '{')
	first := true
	for _, f := range n.fields {
		if err := r.field(f, rep, &first); err != nil {
			return err
		}
	}
	r.out = append(r.out, '}')
	return nil
}

// entries writes the entries of a map as an object.
func (r *rows) entries(n *node, rep int) error {
	from := len(r.out)
	err := r.list(n, rep, func(rep int) error {
		if err := r.present(n.fields[0], rep); err != nil {
			return err
		}
		r.out = append(r.out, ':')
		return r.value(n.fields[1], rep)
	})
	if err == nil && len(r.out) > from { // else the row is too large
		r.out[from], r.out[len(r.out)-1] = '{', '}'
	}
	return err
}

// listItem returns the repeated field of a group that stands for a list: one with that annotation, or with a name that old
// writers gave it; and the item below it, which may be null or a list itself, or nil where the repeated field is the item
// (LogicalTypes.md of apache/parquet-format, "Backward-compatibility rules").
func (n *node) listItem() (items, item *node, ok bool) {
	if len(n.fields) != 1 || n.fields[0].repetition != repeated || n.isMap {
		return nil, nil, false
	}
	items = n.fields[0]
	if n.logical.annotation != annotatedList && items.name != "list" && items.name != "bag" {
		return nil, nil, false
	}
	if !items.isLeaf() && len(items.fields) == 1 && items.name != "array" && !strings.HasSuffix(items.name, "_tuple") {
		item = items.fields[0]
	}
	return items, item, true
}

// leaf writes a single value.
func (r *rows) leaf(n *node, rep int) error {
	def, err := r.levels(n, rep)
	if err != nil {
		return err
	}
	c := r.cursors[n.from]
	if def < n.def {
		return c.failf("its nesting does not agree with the nesting of its neighbours")
	}
	v, err := c.take()
	if err != nil {
		return err
	}
	if r.fault != nil { // what is not kept need not be written
		return nil
	}
	switch n.meaning {
	case isBoolean:
		r.out = strconv.AppendBool(r.out, v.bits != 0)
	case isSigned:
		if n.kind == typeInt32 {
			r.out = strconv.AppendInt(r.out, int64(int32(v.bits)), 10)
		} else {
			r.out = strconv.AppendInt(r.out, int64(v.bits), 10)
		}
	case isUnsigned:
		if n.kind == typeInt32 {
			r.out = strconv.AppendUint(r.out, uint64(uint32(v.bits)), 10)
		} else {
			r.out = strconv.AppendUint(r.out, v.bits, 10)
		}
	case isReal:
		if n.kind == typeFloat {
			r.number(float64(math.Float32frombits(uint32(v.bits))), 32)
		} else {
			r.number(math.Float64frombits(v.bits), 64)
		}
	case isText, isJSON:
		switch {
		case len(v.bytes) > r.file.limits.RowBytes:
			r.fault = ErrRowTooLarge
		case n.meaning == isText:
			r.out = appendText(r.out, v.bytes)
		case !json.Valid(v.bytes):
			r.fault = fmt.Errorf("column %.200s is annotated as JSON, and holds a text that is not JSON", r.file.root.field(n))
		default:
			r.out = append(r.out, v.bytes...)
		}
	default: // refused, and the caller passes over it
		r.out = append(r.out, "null"...)
	}
	return r.bound()
}

func (r *rows) number(x float64, bits int) {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		r.out = append(r.out, "null"...)
		return
	}
	r.out = strconv.AppendFloat(r.out, x, 'g', -1, bits)
}

// appendText writes a string. Bytes that are no UTF-8 stay: who decodes the row sees them.
func appendText[T string | []byte](out []byte, s T) []byte {
	out = append(out, '"')
	from := 0
	for i := range len(s) {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		out = append(out, s[from:i]...)
		from = i + 1
		if c < 0x20 {
			out = append(out, '\\', 'u', '0', '0', "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		} else {
			out = append(out, '\\', c)
		}
	}
	return append(append(out, s[from:]...), '"')
}
