package data

import (
	"fmt"
	"io"
	"math"
	"math/bits"

	"github.com/millrace/millrace/hostmem"
)

// columns says which numbers documents have besides their tokens. All documents of a source have the same ones.
type columns uint64

const documentNumbers columns = 1 // a float64 for each document: the margin of its pair, or its label

// tokenColumns counts the columns that have a float32 for each token. Column i is the bit i+1 of columns.
const tokenColumns = 3

func tokenColumn(i int) columns { return documentNumbers << (i + 1) }

const allColumns columns = 1<<(tokenColumns+1) - 1

// bytes is the size of the columns in a file.
func (c columns) bytes(documents, tokens uint64) (n uint64) {
	if c&documentNumbers != 0 {
		n = 8 * documents
	}
	return n + uint64(bits.OnesCount64(uint64(c&^documentNumbers)))*(4*tokens+tokenPadding(tokens))
}

// readers are the columns of tokens, nil where the source has no such column. section reads the bytes of all columns.
func (c columns) readers(section func(from, bytes uint64) *io.SectionReader,
	documents, tokens uint64) (all [tokenColumns]io.ReaderAt) {
	at := (c & documentNumbers).bytes(documents, tokens)
	for i := range all {
		if column := c & tokenColumn(i); column != 0 {
			all[i] = section(at, 4*tokens)
			at += column.bytes(documents, tokens)
		}
	}
	return all
}

// document is an example on its way into a dataset.
type document struct {
	Example
	section section
	has     columns
	number  float64
	columns [tokenColumns][]float32 // each is nil or has an entry for each token
}

// check returns what is wrong with the numbers of a document whose source has some columns.
func (d *document) check(has columns) error {
	if d.has != has {
		return fmt.Errorf("it has other numbers than the rows before it: all rows of an entry must have the same keys")
	}
	for i, column := range d.columns {
		if n := len(column); d.has&tokenColumn(i) == 0 && n > 0 || d.has&tokenColumn(i) != 0 && n != len(d.InputIDs) {
			return fmt.Errorf("column %d has %d numbers for %d tokens", i, n, len(d.InputIDs))
		}
	}
	return nil
}

// readColumn reads numbers of tokens, from one on, of a column that the run has.
func (r *tokenRun) readColumn(column int, dst []float32, from int64) error {
	if err := readNumbers(r.columns[column], dst, from); err != nil {
		return err
	}
	for t, v := range dst {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return fmt.Errorf("the number of token %d is %v", t, v)
		}
	}
	return nil
}

// readDocumentNumbers fills the index with the numbers of documents, one after the other.
func (x *index) readDocumentNumbers(in io.Reader) error {
	buf := make([]byte, 8<<10)
	for i := 0; i < len(x.numbers); {
		b := buf[:min(len(buf), 8*(len(x.numbers)-i))]
		if _, err := io.ReadFull(in, b); err != nil {
			return err
		}
		for _, v := range hostmem.F64(b) {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return fmt.Errorf("the number of document %d is %v", i, v)
			}
			x.numbers[i] = v
			i++
		}
	}
	return nil
}
