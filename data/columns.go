package data

import (
	"fmt"
	"io"
	"math"

	"github.com/millrace/millrace/hostmem"
)

// columns says which numbers documents have besides their tokens, and in its upper half how many tokens of a teacher
// there are at each place. All documents of a source have the same ones.
type columns uint64

// documentNumbers are numbers of 64 bits for each document: the margin of its pair, or its label, or what is known of a
// rollout. There is one, or as many as the bits from moreNumbers on say, up to mostNumbers.
const (
	documentNumbers columns = 1
	moreNumbers             = 16
	mostNumbers             = 1 << 8
)

// tokenColumns counts the columns that have numbers of 32 bits for each token: one, or of teacherColumn as many tokens
// of a teacher as there are, int32, and then their log-probabilities. Column i is the bit i+1 of columns.
const (
	tokenColumns  = 6
	teacherColumn = 3
)

func tokenColumn(i int) columns { return documentNumbers << (i + 1) }

const allColumns columns = 1<<(tokenColumns+1) - 1

// numbers counts the numbers of a document, and withNumbers are columns with that many.
func (c columns) numbers() int {
	if c&documentNumbers == 0 {
		return 0
	}
	return max(int(c>>moreNumbers)&(1<<moreNumbers-1), 1)
}

func withNumbers(n int) columns { return documentNumbers | columns(n)<<moreNumbers }

// topK is the number of tokens of a teacher at each place, and withTeacher are columns with that many.
func (c columns) topK() int { return int(c >> 32) }

func withTeacher(topK int) columns { return tokenColumn(teacherColumn) | columns(topK)<<32 }

// areKnown says whether there can be such columns.
func (c columns) areKnown() bool {
	own := c & (1<<moreNumbers - 1)
	return own <= allColumns && c.topK() <= MaxTopK && (c.topK() > 0) == (c&tokenColumn(teacherColumn) != 0) &&
		c.numbers() <= mostNumbers && (c&documentNumbers != 0 || uint32(c)>>moreNumbers == 0)
}

// width is the numbers of a token in column i.
func (c columns) width(i int) uint64 {
	if i == teacherColumn {
		return 2 * uint64(c.topK())
	}
	return 1
}

// bytes is the size of the columns in a file.
func (c columns) bytes(documents, tokens uint64) (n uint64) {
	n = 8 * uint64(c.numbers()) * documents
	for i := range tokenColumns {
		if c&tokenColumn(i) != 0 {
			n += 4*c.width(i)*tokens + tokenPadding(c.width(i)*tokens)
		}
	}
	return n
}

// readers are the columns of tokens, nil where the source has no such column. section reads the bytes of all columns.
func (c columns) readers(section func(from, bytes uint64) *io.SectionReader,
	documents, tokens uint64) (all [tokenColumns]io.ReaderAt) {
	at := 8 * uint64(c.numbers()) * documents
	for i := range all {
		if column := c & tokenColumn(i); column != 0 {
			column |= c >> 32 << 32
			all[i] = section(at, 4*c.width(i)*tokens)
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
	columns [tokenColumns][]float32 // each is nil or has numbers for each token: bits of these
	rollout *rolloutNumbers         // in place of number; nil: the document is no rollout
	asked   []byte                  // the row of a prompt, as Asked in JSON; nil: the document is no prompt
}

// numbers returns those of the document itself.
func (d *document) numbers() []float64 {
	if d.rollout != nil {
		return d.rollout.numbers
	}
	return []float64{d.number}
}

// check returns what is wrong with the numbers of a document whose source has some columns.
func (d *document) check(has columns) error {
	if k := has.topK(); k > 0 && d.has.topK() > 0 && d.has.topK() != k {
		return fmt.Errorf("its longest list has %d tokens of the teacher, and that of the first row has %d: "+
			"all rows of an entry must have as many", d.has.topK(), k)
	}
	if d.rollout != nil && d.has.numbers() != has.numbers() {
		return fmt.Errorf("it has %d rewards by name, and the first row has %d: all rows of an entry must have the same "+
			"names, with null for one that is missing", d.has.numbers()-rolloutFields, has.numbers()-rolloutFields)
	}
	if d.has != has {
		return fmt.Errorf("it has other numbers than the rows before it: all rows of an entry must have the same keys")
	}
	for i, column := range d.columns {
		if n := len(column); d.has&tokenColumn(i) == 0 && n > 0 ||
			d.has&tokenColumn(i) != 0 && n != int(has.width(i))*len(d.InputIDs) {
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
