package parquet

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Physical types.
const (
	typeBoolean = iota
	typeInt32
	typeInt64
	typeInt96
	typeFloat
	typeDouble
	typeBytes
	typeFixed
)

// Repetitions of a field.
const (
	required = iota
	optional
	repeated
)

// maxDepth bounds how deep columns are nested, and so every level.
const maxDepth = 64

// maxElements bounds the schema's fields at all levels.
const maxElements = 100_000

var errEncrypted = errors.New("it is encrypted: decrypt it first")

// node is a field of the schema.
type node struct {
	name       string
	repetition int
	logical    logicalType
	meaning    meaning // of a leaf's values, or whether a group can be read
	why        string  // a refused node's reason
	isMap      bool    // from texts
	isEntry    bool    // the entries of a map, or one of their two fields
	kind       int     // physical type of a leaf
	width      int     // bytes of a fixed-length value
	fields     []*node

	// rep and def are the repetition and definition levels of the node itself (Melnik et al., "Dremel: interactive analysis of
	// web-scale datasets", VLDB 2010): a value is there from level def on, and items of it follow each other at level rep.
	rep, def int
	from, to int // its leaves
}

func (n *node) isLeaf() bool { return len(n.fields) == 0 }

// leaf is the one with the given number.
func (n *node) leaf(number int) *node {
	for !n.isLeaf() {
		n = n.above(number)
	}
	return n
}

// above is the field that a leaf is, or is below.
func (n *node) above(number int) *node {
	i, _ := slices.BinarySearchFunc(n.fields, number, func(f *node, number int) int {
		if f.to <= number {
			return -1
		}
		return 1
	})
	return n.fields[i]
}

// path is a leaf's names from the top, for messages. It is not kept: a long name would cost its length for each leaf below it.
func (n *node) path(leaf int) string {
	var names []string
	for !n.isLeaf() {
		n = n.above(leaf)
		names = append(names, n.name)
	}
	return strings.Join(names, ".")
}

type rowGroup struct {
	rows   int64
	chunks []chunk // by leaf
}

// chunk locates a column's values of a row group in the file.
type chunk struct {
	start, end int64
	values     int64
	codec      int
}

// element is an item of the schema's list, in which the children follow their parent.
type element struct {
	node
	children int
	hasKind  bool
}

// parseFooter reads FileMetaData (parquet.thrift of apache/parquet-format).
func (f *File) parseFooter(data []byte) error {
	t := &thrift{data: data}
	var elements []element
	var problem error
	t.structure(func(id int, kind byte) {
		switch id {
		case 2:
			t.asList(kind, func(kind byte) {
				if len(elements) == maxElements {
					t.fail(fmt.Errorf("the schema has more than %d elements", maxElements))
				}
				elements = append(elements, t.element(kind))
			})
			if t.err == nil && problem == nil {
				problem = f.buildSchema(elements)
			}
		case 4:
			t.asList(kind, func(kind byte) {
				group, err := f.rowGroup(t, kind)
				if problem == nil {
					problem = err
				}
				if problem != nil {
					t.fail(problem)
				}
				f.groups = append(f.groups, group)
			})
		case 8:
			problem = errEncrypted
			t.skip(kind)
		default:
			t.skip(kind)
		}
		if problem != nil {
			t.fail(problem)
		}
	})
	if t.err == nil && f.root == nil {
		return errors.New("there is no schema")
	}
	return t.err
}

// element reads a SchemaElement.
func (t *thrift) element(kind byte) (e element) {
	t.asStructure(kind, func(id int, kind byte) {
		switch id {
		case 1:
			e.kind, e.hasKind = t.asSize(kind), true
		case 2:
			e.width = t.asSize(kind)
		case 3:
			e.repetition = t.asSize(kind)
		case 4:
			e.name = string(t.asBinary(kind))
		case 5:
			e.children = t.asSize(kind)
		case 6: // ConvertedType, of older writers and together with the newer form
			if converted := convertedType(t.asSize(kind)); e.logical.annotation == annotatedNothing {
				e.logical = converted
			}
		case 10:
			e.logical = t.logicalType(kind)
		default:
			t.skip(kind)
		}
	})
	return e
}

// buildSchema makes the tree of the elements.
func (f *File) buildSchema(elements []element) error {
	if len(elements) == 0 {
		return errors.New("there is no schema")
	}
	root, rest, err := buildNode(elements, nil, 0, 0)
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return errors.New("the schema has elements that belong to no column")
	case root.isLeaf():
		return errors.New("there are no columns")
	}
	f.root = root
	return nil
}

// buildNode takes a node and all below it off the elements. The parent is nil for the root, which has no level of its own.
func buildNode(elements []element, parent *node, leaf, depth int) (*node, []element, error) {
	if len(elements) == 0 {
		return nil, nil, errors.New("the schema ends too early")
	}
	e := elements[0]
	n := &e.node
	n.from = leaf
	if parent != nil {
		n.rep, n.def = parent.rep, parent.def
		switch n.repetition {
		case required:
		case optional:
			n.def++
		case repeated:
			n.rep++
			n.def++
		default:
			return nil, nil, fmt.Errorf("column %.200q: repetition type %d is unknown", n.name, n.repetition)
		}
	}
	elements = elements[1:]
	if e.children == 0 && parent != nil {
		switch {
		case !e.hasKind:
			return nil, nil, fmt.Errorf("column %.200q is a group without fields, which is not supported", n.name)
		case n.kind > typeFixed:
			return nil, nil, fmt.Errorf("column %.200q: type %d is unknown", n.name, n.kind)
		case n.kind == typeFixed && n.width == 0:
			return nil, nil, fmt.Errorf("column %.200q: values of no bytes", n.name)
		}
		switch n.kind {
		case typeInt32, typeFloat:
			n.width = 4
		case typeInt64, typeDouble:
			n.width = 8
		case typeInt96:
			n.width = 12
		}
		n.to = leaf + 1
		n.meaning, n.why = leafMeaning(n.kind, n.logical)
		return n, elements, nil
	}
	if depth > maxDepth {
		return nil, nil, fmt.Errorf("columns are nested deeper than %d", maxDepth)
	}
	if e.children > len(elements) {
		return nil, nil, errors.New("the schema ends too early")
	}
	n.fields = make([]*node, e.children)
	n.to = leaf
	for i := range n.fields {
		field, rest, err := buildNode(elements, n, n.to, depth+1)
		if err != nil {
			return nil, nil, err
		}
		n.fields[i], n.to, elements = field, field.to, rest
	}
	n.meaning, n.why = groupMeaning(n.logical)
	n.openMap()
	return n, elements, nil
}

// rowGroup reads a RowGroup and checks that its chunks are in the file.
func (f *File) rowGroup(t *thrift, kind byte) (group rowGroup, err error) {
	if f.root == nil {
		return group, errors.New("row groups without a schema")
	}
	t.asStructure(kind, func(id int, kind byte) {
		switch id {
		case 1:
			t.asList(kind, func(kind byte) {
				if len(group.chunks) == f.root.to {
					t.fail(fmt.Errorf("a row group has more chunks than the %d columns", f.root.to))
					return
				}
				c := t.columnChunk(kind)
				leaf := len(group.chunks)
				// Without values nothing is read there: pyarrow writes the place of a page that does not exist.
				if t.err == nil && c.values > 0 && (c.start < 4 || c.end < c.start || c.end > f.body) {
					t.fail(fmt.Errorf("column %.200q is said to be at bytes %d to %d, and pages are between 4 and %d",
						f.root.path(leaf), c.start, c.end, f.body))
				}
				group.chunks = append(group.chunks, c)
			})
		case 3:
			group.rows = t.asInteger(kind)
		default:
			t.skip(kind)
		}
	})
	switch {
	case t.err != nil:
		return group, nil
	case len(group.chunks) != f.root.to:
		return group, fmt.Errorf("a row group has %d chunks for %d columns", len(group.chunks), f.root.to)
	case group.rows < 0:
		return group, fmt.Errorf("a row group is said to have %d rows", group.rows)
	}
	return group, nil
}

// columnChunk reads a ColumnChunk with its ColumnMetaData.
func (t *thrift) columnChunk(kind byte) chunk {
	var c chunk
	var dataPage, dictionary, packed int64
	found := false
	t.asStructure(kind, func(id int, kind byte) {
		switch id {
		case 1:
			if len(t.asBinary(kind)) > 0 {
				t.fail(errors.New("its columns are in other files, which is not supported"))
			}
		case 3:
			found = true
			t.asStructure(kind, func(id int, kind byte) {
				switch id {
				case 4:
					c.codec = t.asSize(kind)
				case 5:
					c.values = t.asInteger(kind)
				case 7:
					packed = t.asInteger(kind)
				case 9:
					dataPage = t.asInteger(kind)
				case 11:
					dictionary = t.asInteger(kind)
				default:
					t.skip(kind)
				}
			})
		case 8, 9:
			t.fail(errEncrypted)
		default:
			t.skip(kind)
		}
	})
	if t.err == nil && (!found || c.values < 0 || packed < 0) {
		t.fail(errThrift)
	}
	c.start = dataPage
	if dictionary > 0 && dictionary < dataPage {
		c.start = dictionary
	}
	c.end = c.start + packed // an overflow ends before the start, which is checked
	return c
}
