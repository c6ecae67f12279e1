package parquet

import (
	"math"
	"strconv"
	"strings"
)

// rows puts rows together.
type rows struct {
	file     *File
	fields   []*node
	leaves   []int     // those below fields
	cursors  []*cursor // by leaf
	out      []byte
	tooLarge bool
}

// row reads the next row into out.
func (r *rows) row() error {
	r.out, r.tooLarge = append(r.out[:0], '{'), false
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
	r.tooLarge, r.out = true, r.out[:0]
	return err
}

// levels are those of the next entry of a node's first leaf, which must begin at the repetition level where the
// node's value does.
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
	if n.isLeaf() {
		return r.leaf(n, rep)
	}
	if items, ok := n.listOf(); ok {
		if !items.isLeaf() && len(items.fields) == 1 && items.name != "array" && !strings.HasSuffix(items.name, "_tuple") {
			// The item is the only field of the group, and may be null or a list itself.
			return r.list(items, rep, func(rep int) error { return r.value(items.fields[0], rep) })
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

// listOf is the repeated field of a group that stands for a list: one with that annotation, or with a name that old
// writers gave it (LogicalTypes.md of apache/parquet-format, "Backward-compatibility rules").
func (n *node) listOf() (*node, bool) {
	if len(n.fields) != 1 || n.fields[0].repetition != repeated {
		return nil, false
	}
	f := n.fields[0]
	return f, n.isList || f.name == "list" || f.name == "bag"
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
	if r.tooLarge { // what is not kept need not be written
		return nil
	}
	switch n.kind {
	case typeBoolean:
		r.out = strconv.AppendBool(r.out, v.bits != 0)
	case typeInt32:
		if n.unsigned {
			r.out = strconv.AppendUint(r.out, uint64(uint32(v.bits)), 10)
		} else {
			r.out = strconv.AppendInt(r.out, int64(int32(v.bits)), 10)
		}
	case typeInt64:
		if n.unsigned {
			r.out = strconv.AppendUint(r.out, v.bits, 10)
		} else {
			r.out = strconv.AppendInt(r.out, int64(v.bits), 10)
		}
	case typeFloat:
		r.number(float64(math.Float32frombits(uint32(v.bits))), 32)
	case typeDouble:
		r.number(math.Float64frombits(v.bits), 64)
	case typeBytes, typeFixed:
		if len(v.bytes) > r.file.limits.RowBytes {
			r.tooLarge = true
			break
		}
		r.out = appendText(r.out, v.bytes)
	default:
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
