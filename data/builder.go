package data

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/hostmem"
)

// part is the tokens of one source on their way into a dataset.
type part struct {
	run      tokenRun
	skipped  int
	firstBad string
	equal    int      // pairs that were left out since their sides are equal
	rewards  []string // names, of rollouts
	asked    asked
	turns    TurnCounts
}

// builder collects examples: in memory, or in files, so that they need not fit. The data that follow the tokens in a
// cache file wait in files of their own until the tokens are complete.
type builder struct {
	part
	documents             int
	n                     int64 // tokens
	sum                   *xxh3.Hasher128
	tokens, counted, ends sink
	numbers               sink               // of documents
	columns               [tokenColumns]sink // of tokens
	newSink               func() (sink, error)
	word                  uint64 // of counted, that is not complete
	buf                   []byte
	number                [8]byte

	most   int64 // bytes that may be collected in memory; 0: any number
	room   room
	failed error // why a file cannot be written
}

// sink collects bytes, to be read when all are there.
type sink struct {
	memory *bytes.Buffer // nil: they are in file
	file   *os.File
	out    *bufio.Writer
}

// sinkBytes bounds the bytes that a sink buffers before it writes them.
const sinkBytes = 256 << 10

func fileSink(f *os.File) sink { return sink{file: f, out: bufio.NewWriterSize(f, sinkBytes)} }

func (s *sink) Write(b []byte) (int, error) {
	if s.memory != nil {
		return s.memory.Write(b)
	}
	return s.out.Write(b)
}

// reader reads what was collected.
func (s *sink) reader() (io.Reader, error) {
	if s.memory != nil {
		return bytes.NewReader(s.memory.Bytes()), nil
	}
	if err := s.out.Flush(); err != nil {
		return nil, err
	}
	_, err := s.file.Seek(0, io.SeekStart)
	return s.file, err
}

// discard removes the file of a sink, if it has one.
func (s *sink) discard() {
	if s.file != nil {
		s.file.Close()
		os.Remove(s.file.Name()) // if that fails, it goes with what else is abandoned
		s.file = nil
	}
}

// newBuilder collects in memory.
func newBuilder() *builder {
	memory := func() sink { return sink{memory: &bytes.Buffer{}} }
	return &builder{sum: xxh3.New128(), tokens: memory(), counted: memory(), ends: memory(),
		newSink: func() (sink, error) { return memory(), nil }}
}

// newFileBuilder collects tokens in a file, from its current offset on, and the rest in files that create makes,
// until finish or discard.
func newFileBuilder(f *os.File, create func() (*os.File, error)) (*builder, error) {
	b := &builder{sum: xxh3.New128(), tokens: fileSink(f), newSink: func() (sink, error) {
		file, err := create()
		if err != nil {
			return sink{}, err
		}
		return fileSink(file), nil
	}}
	for _, s := range []*sink{&b.counted, &b.ends} {
		var err error
		if *s, err = b.newSink(); err != nil {
			b.discard()
			return nil, err
		}
	}
	return b, nil
}

// discard removes what finish would have used up.
func (b *builder) discard() {
	for _, s := range b.after() {
		s.discard()
	}
}

// after are the sinks of what stands after the tokens, in order.
func (b *builder) after() []*sink {
	all := []*sink{&b.counted, &b.ends}
	if b.run.has&documentNumbers != 0 {
		all = append(all, &b.numbers)
	}
	for i := range b.columns {
		if b.run.has&tokenColumn(i) != 0 {
			all = append(all, &b.columns[i])
		}
	}
	return all
}

// begin makes room for the columns that the first document has, and so all.
func (b *builder) begin(has columns) (err error) {
	b.run.has = has
	for _, s := range b.after()[2:] {
		if *s, err = b.newSink(); err != nil {
			b.failed = err
			return err
		}
	}
	return nil
}

// append takes a document.
func (b *builder) append(e Example) error { return b.appendDocument(document{Example: e}) }

// appendDocument takes the next section of a document. One that more follow may have no tokens.
func (b *builder) appendDocument(e document) error {
	s := e.section
	if len(e.InputIDs) > 0 || !s.isOpen {
		if err := checkExample(e.Example); err != nil {
			return err
		}
	}
	if b.documents == 0 && b.n == 0 && e.has != b.run.has {
		if err := b.begin(e.has); err != nil {
			return err
		}
	}
	if err := e.check(b.run.has); err != nil {
		return err
	}
	if e.rollout != nil {
		if b.documents == 0 {
			b.rewards = e.rollout.names
		} else if !slices.Equal(b.rewards, e.rollout.names) {
			return fmt.Errorf("it has the rewards %q, and the first row has %q: all rows of an entry must have the same names, "+
				"with null for one that is missing", e.rollout.names, b.rewards)
		}
	}
	for t, id := range e.InputIDs {
		if e.Labels[t] == id {
			b.word |= 1 << (b.n % 64)
		}
		if b.n++; b.n%64 == 0 {
			b.writeWord()
		}
		b.buf = binary.LittleEndian.AppendUint32(b.buf, uint32(id))
		if len(b.buf) >= sinkBytes {
			b.writeTokens()
		}
	}
	b.writeTokens()
	if !s.isOpen {
		b.documents++
		b.writeNumber(&b.ends, uint64(b.n))
		if b.run.has&documentNumbers != 0 {
			for _, x := range e.numbers() {
				b.writeNumber(&b.numbers, math.Float64bits(x))
			}
		}
	}
	if e.asked != nil {
		b.sum.Write(e.asked)
		b.asked.append(e.asked)
	}
	for i, column := range e.columns {
		for _, v := range column {
			b.buf = binary.LittleEndian.AppendUint32(b.buf, math.Float32bits(v))
		}
		if len(column) > 0 {
			b.write(&b.columns[i], b.buf)
		}
		b.buf = b.buf[:0]
	}
	return b.failed
}

// writeTokens writes the tokens that wait in buf, and looks for room for more.
func (b *builder) writeTokens() {
	b.sum.Write(b.buf) // a hash does not fail
	b.write(&b.tokens, b.buf)
	b.buf = b.buf[:0]
	if b.failed != nil {
		return
	}
	if b.tokens.file != nil {
		b.failed = b.room.check(b.bytes())
	} else if b.most > 0 && b.bytes() > b.most {
		b.failed = tooManyTokens(b.most)
	}
}

// bytes is the size of the tokens, of their columns, and of the rows of prompts.
func (b *builder) bytes() int64 {
	return 4*b.n + int64(b.run.has.bytes(0, uint64(b.n))) + int64(len(b.asked.rows))
}

func tooManyTokens(most int64) error {
	return fmt.Errorf("its tokens take more than %d MiB, the most that the memory lets be held: have room for the token "+
		"cache (MILLRACE_CACHE), set max_samples, or raise memory.host", most>>20)
}

// room is the space that files of the cache may take: the last eighth of what was free stays free.
type room struct {
	free func() (int64, error) // nil: it is not known
	keep int64                 // bytes
	next int64                 // of the tokens, after which it is looked at again
}

// roomEvery counts the bytes that are written between two looks at the space that is left.
const roomEvery = 16 << 20

func newRoom(free func() (int64, error)) room {
	now, err := free()
	if err != nil {
		return room{}
	}
	return room{free: free, keep: now / 8, next: roomEvery}
}

// check is an error if the space has become too little once written bytes are there.
func (r *room) check(written int64) error {
	if r.free == nil || written < r.next {
		return nil
	}
	r.next = written + roomEvery
	if now, err := r.free(); err == nil && now < r.keep {
		return fmt.Errorf("it would leave less than %d MiB free there: free space, or name another place "+
			"with MILLRACE_CACHE", r.keep>>20)
	}
	return nil
}

// write adds bytes to a sink, and notes the first error.
func (b *builder) write(to *sink, bytes []byte) {
	if _, err := to.Write(bytes); b.failed == nil {
		b.failed = err
	}
}

// writeWord writes the word of counted that is complete now.
func (b *builder) writeWord() {
	b.writeNumber(&b.counted, b.word)
	b.word = 0
}

func (b *builder) writeNumber(to *sink, v uint64) {
	binary.LittleEndian.PutUint64(b.number[:], v)
	b.write(to, b.number[:])
}

// finish puts what stands after the tokens there, each padded to 8 bytes and little-endian: counted, ends and the
// columns.
func (b *builder) finish() error {
	defer b.discard()
	if b.n%64 != 0 {
		b.writeWord()
	}
	if b.failed != nil {
		return b.failed
	}
	padding := make([]byte, tokenPadding(uint64(b.n)))
	for i := range b.columns {
		if b.run.has&tokenColumn(i) != 0 {
			b.write(&b.columns[i], padding[:tokenPadding(b.run.has.width(i)*uint64(b.n))])
		}
	}
	if b.failed != nil {
		return b.failed
	}
	b.sum.Write(padding)
	to := io.Writer(b.sum)
	if b.tokens.file != nil {
		if _, err := b.tokens.Write(padding); err != nil {
			return err
		}
		to = io.MultiWriter(b.sum, &b.tokens)
	}
	for _, s := range b.after() {
		from, err := s.reader()
		if err != nil {
			return err
		}
		if _, err := io.Copy(to, from); err != nil {
			return err
		}
	}
	b.run.sum = b.sum.Sum128().Bytes()
	if b.tokens.file != nil {
		return b.tokens.out.Flush()
	}
	return nil
}

// finishInMemory ends the collection and returns its bytes as a part in memory.
func (b *builder) finishInMemory(accounts *hostmem.Accounts) (*part, error) {
	if err := b.finish(); err != nil {
		return nil, err
	}
	kept := [][]byte{b.tokens.memory.Bytes(), b.counted.memory.Bytes()}
	for i := range b.columns {
		if b.columns[i].memory != nil {
			kept = append(kept, b.columns[i].memory.Bytes())
		}
	}
	size := 0
	for _, k := range kept {
		size += len(k)
	}
	held, err := reserveAs(TokensPurpose, accounts, int64(size))
	if err != nil {
		return nil, err
	}
	if b.run.index, err = newIndex(accounts, b.documents, b.run.has); err != nil {
		return nil, firstOf(err, held.Close())
	}
	at := 0
	for _, k := range kept {
		at += copy(held.Bytes()[at:], k)
	}
	whole := bytes.NewReader(held.Bytes())
	section := func(from, bytes uint64) *io.SectionReader {
		return io.NewSectionReader(whole, int64(from), int64(bytes))
	}
	countedAt, columnsAt := uint64(len(kept[0])), uint64(len(kept[0])+len(kept[1]))
	b.run.size, b.run.from = b.n, held
	b.run.tokens, b.run.counted = section(0, countedAt), section(countedAt, uint64(len(kept[1])))
	b.run.columns = (b.run.has &^ documentNumbers).readers(
		func(from, bytes uint64) *io.SectionReader { return section(columnsAt+from, bytes) }, 0, uint64(b.n))
	err = b.run.read(bytes.NewReader(b.ends.memory.Bytes()))
	if b.asked.ends != nil {
		err = firstOf(err, b.asked.keep(accounts))
		b.run.asked, b.asked = b.asked, asked{}
	}
	if b.run.numbers != nil {
		err = firstOf(err, b.run.readDocumentNumbers(bytes.NewReader(b.numbers.memory.Bytes())))
	}
	// The part outlives these.
	b.tokens, b.counted, b.ends, b.numbers, b.columns = sink{}, sink{}, sink{}, sink{}, [tokenColumns]sink{}
	if err != nil {
		return nil, firstOf(err, b.run.close())
	}
	return &b.part, nil
}

// tokenPadding returns the number of bytes of padding after tokens, so that the next data begin at a multiple of 8.
func tokenPadding(tokens uint64) uint64 { return tokens % 2 * 4 }
