package data

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"
)

// separators are the characters between the cells of tables in text, by the endings of their files.
var separators = map[string]rune{".csv": ',', ".tsv": '\t'}

func isSeparated(name string) bool { return separators[unpacked(name)] != 0 }

// readSeparated calls yield for each row of a table in text (RFC 4180), until it returns false. The first row has the
// names of the columns. A row is the JSON object of the columns that the type looks at; all values are texts, and an
// empty cell of a column that the type can do without is as one that is missing.
func (s rowReader) readSeparated(name string, in io.Reader, yield func(row) bool) error {
	bound := &boundedRows{in: in, limits: s.limits, most: int64(s.limits.rowBytes(maxRowBytes))}
	buffered := bufio.NewReaderSize(bound, 1<<16)
	if mark, _ := buffered.Peek(len(byteOrderMark)); bytes.Equal(mark, byteOrderMark) {
		buffered.Discard(len(byteOrderMark))
	}
	table := csv.NewReader(buffered) // which takes the buffer as its own
	table.Comma, table.ReuseRecord = separators[unpacked(name)], true
	header, err := table.Read()
	if err == io.EOF {
		return nil
	}
	if err != nil {
		return row{file: name, line: 1}.errorf("%w", tableError(err, 0, 0))
	}
	columns, err := s.findColumns(name, header)
	if err != nil {
		return err
	}
	cells := len(header)
	for {
		bound.from = table.InputOffset()
		record, err := table.Read()
		if err == io.EOF {
			return nil
		}
		r := row{file: name}
		if syntax := (*csv.ParseError)(nil); errors.As(err, &syntax) {
			r.line = syntax.StartLine
			r.err = r.errorf("%w", tableError(err, len(record), cells))
		} else if err != nil {
			line := 1
			if len(record) > 0 {
				line, _ = table.FieldPos(0)
			}
			return row{file: name, line: line}.errorf("%w", err)
		} else {
			r.line, _ = table.FieldPos(0)
			r.data, r.err = columns.object(r, record)
		}
		if !yield(r) {
			return nil
		}
	}
}

// tableError says what is wrong with a row, and what to do.
func tableError(err error, has, cells int) error {
	switch {
	case errors.Is(err, csv.ErrFieldCount):
		return fmt.Errorf("the row has %d cells, and the first row %d: put a text with a separator or a line break in "+
			"quotes", has, cells)
	case errors.Is(err, csv.ErrBareQuote), errors.Is(err, csv.ErrQuote):
		return errors.New("a quotation mark is not where one may be: put a text that has some in quotes, and write " +
			`"" for each`)
	}
	return err
}

// tableColumns are the columns that a type looks at.
type tableColumns struct {
	names    []string
	at       []int // in a row; -1: the table has no such column
	required int   // the first ones
}

// findColumns finds the columns of a source in a header.
func (s rowReader) findColumns(name string, header []string) (c tableColumns, err error) {
	place := row{file: name, line: 1}
	for _, column := range header {
		if at := firstInvalid([]byte(column)); at >= 0 {
			return c, place.errorf("byte 0x%02x is not UTF-8: convert the file", column[at])
		}
	}
	wanted, required := s.columns()
	c = tableColumns{required: required}
	for _, column := range header {
		if !slices.Contains(wanted, column) && s.looksAt(column) {
			wanted = append(wanted, column)
		}
	}
	for i, column := range wanted {
		at := slices.Index(header, column)
		switch {
		case at < 0 && i < required:
			return c, place.errorf("there is no column %q: the first row has %s; name the one to take in the entry of "+
				"datasets", column, someOf(nearestFirst(column, slices.Clone(header))))
		case at >= 0 && slices.Contains(header[at+1:], column):
			return c, place.errorf("two columns are called %q: rename one", column)
		}
		c.names, c.at = append(c.names, column), append(c.at, at)
	}
	return c, nil
}

// object is a row as a JSON object.
func (c tableColumns) object(r row, record []string) ([]byte, error) {
	object := make(map[string]string, len(c.names))
	for i, at := range c.at {
		if at < 0 || i >= c.required && record[at] == "" {
			continue
		}
		text := record[at]
		if !utf8.ValidString(text) {
			invalid := text[firstInvalid([]byte(text))]
			return nil, r.errorf("byte 0x%02x of column %q is not UTF-8: convert the file", invalid, c.names[i])
		}
		object[c.names[i]] = text
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	err := e.Encode(object)
	return out.Bytes(), err
}

// boundedRows bounds the bytes of a row: one quote that is not closed would make a row of the rest of the file. What a
// row of nothing but separators takes is in memoryPerTextByte.
type boundedRows struct {
	in     io.Reader
	limits limits
	read   int64
	from   int64 // where the row begins
	most   int64 // bytes from there on
}

func (b *boundedRows) Read(p []byte) (int, error) {
	const ahead = 1 << 17 // what is read beyond a row at most
	if b.read-b.from > b.most+ahead {
		return 0, b.limits.tooLarge("the row", int(b.most), maxRowBytes)
	}
	n, err := b.in.Read(p)
	b.read += int64(n)
	return n, err
}
