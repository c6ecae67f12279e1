package data

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/parquet-go/parquet-go"
)

// columns are the keys of a row that the source's type looks at; those that it must have come first.
func (s Source) columns() (all []string, required int) {
	switch s.Type {
	case Text:
		return []string{s.Field}, 1
	case PromptResponse:
		return []string{s.Prompt, s.Response}, 2
	case Alpaca:
		return []string{s.Prompt, s.Response, s.Input, s.System, s.History}, 2
	case ShareGPT:
		return []string{s.Messages, s.System, s.Tools}, 1
	}
	return []string{s.Messages, s.Tools}, 1
}

// readParquet calls yield for each row of a Parquet file, as the JSON object of the columns that the type looks at, until
// it returns false.
func (s Source) readParquet(ctx context.Context, name string, f *os.File, yield func(row) bool) error {
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return s.readTable(ctx, name, f, info.Size(), yield)
}

// parquetRows is how many rows are read at a time.
const parquetRows = 32

func (s Source) readTable(ctx context.Context, name string, in io.ReaderAt, size int64, yield func(row) bool) (err error) {
	number := 0
	defer func() {
		// The library panics on some files that are not what they say.
		if failure := recover(); failure != nil {
			err = fmt.Errorf("%s: row %d: the Parquet file is damaged: %v", name, number+1, oneLine(fmt.Sprint(failure)))
		}
	}()
	if err := checkFooter(in, size); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	file, err := parquet.OpenFile(in, size, parquet.SkipBloomFilters(true), parquet.SkipPageIndex(true))
	if err != nil {
		return fmt.Errorf("%s: %s", name, oneLine(err.Error()))
	}
	t, err := s.tableOf(file.Schema())
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var buffer [parquetRows]parquet.Row
	for _, group := range file.RowGroups() {
		rows := group.Rows()
		for {
			n, err := rows.ReadRows(buffer[:])
			for _, values := range buffer[:n] {
				number++
				r := row{file: name, line: number, table: true}
				if r.data, r.err = t.object(values); r.err != nil {
					r.err = r.errorf("%w", r.err)
				}
				if !yield(r) {
					return rows.Close()
				}
			}
			if err == io.EOF {
				break
			}
			if err == nil && n == 0 {
				err = io.ErrNoProgress
			}
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				rows.Close()
				return fmt.Errorf("%s: row %d: %w", name, number+1, err)
			}
		}
		if err := rows.Close(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if number == 0 {
		return fmt.Errorf("%s: the file has no rows", name)
	}
	return nil
}

// checkFooter refuses a file whose end names a footer that is longer than it: the library makes room for that first.
func checkFooter(in io.ReaderAt, size int64) error {
	const ends = 4 + 4 + 4 // the mark in front, the footer's length, and the mark behind
	var tail [8]byte
	if size < ends {
		return errors.New("it is too short for a Parquet file")
	}
	if _, err := in.ReadAt(tail[:], size-8); err != nil {
		return err
	}
	if string(tail[4:]) != "PAR1" {
		return errors.New("it is not a Parquet file, or it is cut off, or encrypted")
	}
	if length := int64(binary.LittleEndian.Uint32(tail[:])); length > size-ends {
		return fmt.Errorf("its footer is said to have %d bytes, and the file has %d", length, size)
	}
	return nil
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// table writes rows of a Parquet file as JSON. Values come with levels from which the nesting is assembled (Melnik et
// al., "Dremel: interactive analysis of web-scale datasets", VLDB 2010).
type table struct {
	columns []tableColumn
	leaves  int
	values  [][]parquet.Value // by leaf
	out     []byte
}

type tableColumn struct {
	name   string
	node   parquet.Node
	leaves [2]int // from, to
}

// tableOf finds the columns of a source in a schema.
func (s Source) tableOf(schema *parquet.Schema) (*table, error) {
	wanted, required := s.columns()
	t := &table{}
	var has []string
	for _, f := range schema.Fields() {
		from := t.leaves
		t.leaves += countLeaves(f)
		has = append(has, f.Name())
		if slices.Contains(wanted, f.Name()) {
			t.columns = append(t.columns, tableColumn{f.Name(), f, [2]int{from, t.leaves}})
		}
	}
	for _, name := range wanted[:required] {
		if !slices.Contains(has, name) {
			return nil, fmt.Errorf("there is no column %q: the file has %s", name, someOf(has))
		}
	}
	t.values = make([][]parquet.Value, t.leaves)
	return t, nil
}

func countLeaves(n parquet.Node) int {
	if n.Leaf() {
		return 1
	}
	sum := 0
	for _, f := range n.Fields() {
		sum += countLeaves(f)
	}
	return sum
}

var errDamaged = errors.New("the nesting of the Parquet file is damaged")

// object is a row as JSON. Fields that are null are left out, as templates ask whether a key is there.
func (t *table) object(row parquet.Row) ([]byte, error) {
	clear(t.values)
	for len(row) > 0 {
		column := row[0].Column()
		n := 1
		for n < len(row) && row[n].Column() == column {
			n++
		}
		if column < 0 || column >= t.leaves || t.values[column] != nil {
			return nil, errDamaged
		}
		t.values[column] = row[:n:n]
		row = row[n:]
	}
	t.out = append(t.out[:0], '{')
	first := true
	for _, c := range t.columns {
		if err := t.field(c.name, c.node, t.values[c.leaves[0]:c.leaves[1]], 0, 0, &first); err != nil {
			return nil, err
		}
	}
	t.out = append(t.out, '}')
	if len(t.out) > maxRowBytes {
		return nil, fmt.Errorf("the row is larger than %d MiB", maxRowBytes>>20)
	}
	return slices.Clone(t.out), nil
}

// field writes a name and a value, or nothing for null.
func (t *table) field(name string, n parquet.Node, leaves [][]parquet.Value, rep, def int, first *bool) error {
	if len(leaves) == 0 || len(leaves[0]) == 0 {
		return errDamaged
	}
	if n.Optional() && leaves[0][0].DefinitionLevel() <= def {
		return nil
	}
	if !*first {
		t.out = append(t.out, ',')
	}
	*first = false
	t.text(name)
	t.out = append(t.out, ':')
	return t.value(n, leaves, rep, def)
}

// value writes a value whose surroundings have the given levels.
func (t *table) value(n parquet.Node, leaves [][]parquet.Value, rep, def int) error {
	if len(leaves) == 0 || len(leaves[0]) == 0 {
		return errDamaged
	}
	switch {
	case n.Optional():
		def++
		if leaves[0][0].DefinitionLevel() < def {
			t.out = append(t.out, "null"...)
			return nil
		}
	case n.Repeated():
		rep, def = rep+1, def+1
		return t.list(leaves, rep, def, func(item [][]parquet.Value) error { return t.present(n, item, rep, def) })
	}
	return t.present(n, leaves, rep, def)
}

// list writes the items of a repeated node, whose own levels are given.
func (t *table) list(leaves [][]parquet.Value, rep, def int, write func(item [][]parquet.Value) error) error {
	t.out = append(t.out, '[')
	if leaves[0][0].DefinitionLevel() >= def {
		rest := slices.Clone(leaves)
		item := make([][]parquet.Value, len(leaves))
		for first := true; len(rest[0]) > 0; first = false {
			for i, column := range rest {
				if len(column) == 0 {
					return errDamaged
				}
				end := 1
				for end < len(column) && column[end].RepetitionLevel() > rep {
					end++
				}
				item[i], rest[i] = column[:end], column[end:]
			}
			if !first {
				t.out = append(t.out, ',')
			}
			if err := write(item); err != nil {
				return err
			}
		}
	}
	t.out = append(t.out, ']')
	return nil
}

// present writes a value that is not null, or one item of a repeated node.
func (t *table) present(n parquet.Node, leaves [][]parquet.Value, rep, def int) error {
	if n.Leaf() {
		return t.leaf(leaves[0][0])
	}
	fields := n.Fields()
	if repeated, ok := listOf(n); ok {
		if inner := repeated.Fields(); !repeated.Leaf() && len(inner) == 1 && repeated.Name() != "array" && !strings.HasSuffix(repeated.Name(), "_tuple") {
			// The item is the only field of the group, and may be null or a list itself.
			rep, def := rep+1, def+1
			return t.list(leaves, rep, def, func(item [][]parquet.Value) error { return t.value(inner[0], item, rep, def) })
		}
		return t.value(repeated, leaves, rep, def)
	}
	t.out = append(t.out, '{')
	first := true
	at := 0
	for _, f := range fields {
		count := countLeaves(f)
		if at+count > len(leaves) {
			return errDamaged
		}
		part := leaves[at : at+count]
		at += count
		if err := t.field(f.Name(), f, part, rep, def, &first); err != nil {
			return err
		}
	}
	t.out = append(t.out, '}')
	return nil
}

// listOf is the repeated field of a group that stands for a list: one with that annotation, or with a name that old writers
// gave it.
func listOf(n parquet.Node) (parquet.Field, bool) {
	fields := n.Fields()
	if len(fields) != 1 || !fields[0].Repeated() {
		return nil, false
	}
	logical := n.Type().LogicalType()
	isList := logical != nil && logical.String() == "LIST"
	return fields[0], isList || fields[0].Name() == "list" || fields[0].Name() == "bag"
}

// leaf writes a single value.
func (t *table) leaf(v parquet.Value) error {
	switch v.Kind() {
	case parquet.Boolean:
		t.out = strconv.AppendBool(t.out, v.Boolean())
	case parquet.Int32:
		t.out = strconv.AppendInt(t.out, int64(v.Int32()), 10)
	case parquet.Int64:
		t.out = strconv.AppendInt(t.out, v.Int64(), 10)
	case parquet.Float:
		t.number(float64(v.Float()), 32)
	case parquet.Double:
		t.number(v.Double(), 64)
	case parquet.ByteArray, parquet.FixedLenByteArray:
		t.text(string(v.ByteArray()))
	default:
		t.out = append(t.out, "null"...)
	}
	return nil
}

func (t *table) number(x float64, bits int) {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		t.out = append(t.out, "null"...)
		return
	}
	t.out = strconv.AppendFloat(t.out, x, 'g', -1, bits)
}

// text writes a string. Bytes that are no UTF-8 stay: the reader of the row names them.
func (t *table) text(s string) {
	t.out = append(t.out, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			t.out = append(t.out, '\\', c)
		case c < 0x20:
			t.out = append(t.out, `\u00`...)
			t.out = append(t.out, "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		default:
			t.out = append(t.out, c)
		}
	}
	t.out = append(t.out, '"')
}
