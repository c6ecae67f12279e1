package parquet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"
)

// Page types.
const (
	pageData       = 0
	pageIndex      = 1
	pageDictionary = 2
	pageDataV2     = 3
)

// Encodings.
const (
	encodingPlain           = 0
	encodingPlainDictionary = 2
	encodingRuns            = 3
	encodingDelta           = 5
	encodingDeltaLengths    = 6
	encodingDeltaStrings    = 7
	encodingDictionary      = 8
	encodingSplit           = 9
)

// cursor goes through the entries of one column: values and, for each null or empty list, an entry that says so by
// its levels.
type cursor struct {
	ctx  context.Context
	file *File
	leaf *node

	at, end int64 // where the next page's header is, and the chunk ends
	codec   int
	left    int64 // entries of the chunk that were not taken
	inPage  int   // those of the page

	peeked   bool
	rep, def int // of the next entry, when peeked

	reps, defs runs
	values     values
	dictionary dictionary

	window   []byte // bytes of the file from at on
	buffer   []byte // the memory of window
	unpacked []byte
	dictData []byte
	page     int64 // where the current page's header is, for messages
}

func (c *cursor) failf(format string, args ...any) error {
	return fmt.Errorf("column %.200q: %w", c.file.root.path(c.leaf.from), fmt.Errorf(format, args...))
}

// open begins a chunk.
func (c *cursor) open(chunk chunk) error {
	c.at, c.end, c.codec, c.left = chunk.start, chunk.end, chunk.codec, chunk.values
	c.page = chunk.start
	c.inPage, c.peeked, c.window = 0, false, nil
	c.dictionary.there = false
	if c.left > 0 && !supported(c.codec) {
		return c.failf("its compression, %s, is not supported: write the file with zstd or snappy", codecName(c.codec))
	}
	return nil
}

// peek looks at the levels of the next entry. Without one ok is false.
func (c *cursor) peek() (ok bool, err error) {
	if c.peeked {
		return true, nil
	}
	if c.left == 0 {
		return false, nil
	}
	for c.inPage == 0 {
		if err := c.ctx.Err(); err != nil {
			return false, err
		}
		if err := c.nextPage(); err != nil {
			return false, c.failf("page at byte %d: %w", c.page, err)
		}
	}
	c.rep, c.def = 0, c.leaf.def
	if c.leaf.rep > 0 {
		v, err := c.reps.next()
		if err != nil || int(v) > c.leaf.rep {
			return false, c.failf("page at byte %d: its repetition levels are damaged", c.page)
		}
		c.rep = int(v)
	}
	if c.leaf.def > 0 {
		v, err := c.defs.next()
		if err != nil || int(v) > c.leaf.def {
			return false, c.failf("page at byte %d: its definition levels are damaged", c.page)
		}
		c.def = int(v)
	}
	c.peeked = true
	return true, nil
}

// take passes the entry that peek has seen, and returns its value if it has one.
func (c *cursor) take() (value, error) {
	c.peeked = false
	c.inPage--
	c.left--
	if err := c.file.spend(valueCost); err != nil {
		return value{}, err
	}
	if c.def < c.leaf.def {
		return value{}, nil
	}
	v, err := c.values.next(&c.dictionary)
	if err != nil {
		return v, c.failf("page at byte %d: %w", c.page, err)
	}
	return v, nil
}

// readAheadBytes is the size of a read of the file where less is asked for.
const readAheadBytes = 64 << 10

// look makes sure that window has n bytes, or all that the chunk still has.
func (c *cursor) look(n int) error {
	left := c.end - c.at
	n = int(min(int64(n), left))
	if n <= len(c.window) {
		return nil
	}
	n = int(min(int64(max(n, readAheadBytes)), left))
	have := c.window
	buffer, err := c.file.room(c.buffer, n)
	if err != nil {
		return err
	}
	copy(buffer, have) // which overlap, where the buffer stays
	c.buffer, c.window = buffer, buffer[:n]
	if err := readFull(c.file.in, c.window[len(have):], c.at+int64(len(have))); err != nil {
		c.window = nil
		return err
	}
	return nil
}

// pageHeader is Parquet's PageHeader with the fields of its kinds of pages.
type pageHeader struct {
	kind             int
	unpacked, packed int
	crc              uint32
	hasCRC           bool
	values           int
	encoding         int
	defEncoding      int
	repEncoding      int
	defBytes         int
	repBytes         int
	isPacked         bool
	found            bool // the fields of that kind
}

func (t *thrift) pageHeader() pageHeader {
	h := pageHeader{kind: -1, unpacked: -1, packed: -1, defEncoding: encodingRuns, repEncoding: encodingRuns, isPacked: true}
	t.structure(func(id int, kind byte) {
		switch id {
		case 1:
			h.kind = t.asSize(kind)
		case 2:
			h.unpacked = t.asSize(kind)
		case 3:
			h.packed = t.asSize(kind)
		case 4:
			h.crc, h.hasCRC = uint32(t.asInteger(kind)), true
		case 5, 7, 8:
			h.found = true
			t.asStructure(kind, func(field int, kind byte) {
				switch {
				case field == 1:
					h.values = t.asSize(kind)
				case field == 2 && id != 8, field == 4 && id == 8:
					h.encoding = t.asSize(kind)
				case field == 3 && id == 5:
					h.defEncoding = t.asSize(kind)
				case field == 4 && id == 5:
					h.repEncoding = t.asSize(kind)
				case field == 5 && id == 8:
					h.defBytes = t.asSize(kind)
				case field == 6 && id == 8:
					h.repBytes = t.asSize(kind)
				case field == 7 && id == 8:
					h.isPacked = t.asBool(kind)
				default:
					t.skip(kind)
				}
			})
		default:
			t.skip(kind)
		}
	})
	return h
}

// readHeader reads the header at the cursor and leaves window after it.
func (c *cursor) readHeader() (pageHeader, error) {
	for n := 1 << 10; ; n *= 4 { // statistics in it may be long
		if err := c.look(n); err != nil {
			return pageHeader{}, err
		}
		t := &thrift{data: c.window}
		h := t.pageHeader()
		switch {
		case t.err == errShort && int64(len(c.window)) < c.end-c.at && n <= c.file.limits.PageBytes:
			continue
		case t.err != nil:
			return h, fmt.Errorf("its header is damaged: %w", t.err)
		}
		c.window, c.at = c.window[t.at:], c.at+int64(t.at)
		return h, nil
	}
}

// nextPage goes to the next page with values, and reads a dictionary that is before it.
func (c *cursor) nextPage() error {
	for {
		c.page = c.at
		if c.at >= c.end {
			return fmt.Errorf("the column ends with %d values missing", c.left)
		}
		h, err := c.readHeader()
		if err != nil {
			return err
		}
		most := c.file.limits.PageBytes
		switch {
		case h.packed < 0 || h.unpacked < 0:
			return errors.New("its header has no sizes")
		case int64(h.packed) > c.end-c.at:
			return fmt.Errorf("it is said to have %d bytes, and the column has %d", h.packed, c.end-c.at)
		case max(h.packed, h.unpacked) > most:
			return fmt.Errorf("it is said to have %d bytes, and at most %d are read: write the file with smaller pages", max(h.packed, h.unpacked), most)
		case h.values > most:
			return fmt.Errorf("it is said to have %d values, and at most %d are read: write the file with smaller pages", h.values, most)
		}
		if err := c.file.spend(h.unpacked); err != nil {
			return err
		}
		if err := c.look(h.packed); err != nil {
			return err
		}
		data := c.window[:h.packed]
		c.window, c.at = c.window[h.packed:], c.at+int64(h.packed)
		if h.hasCRC && crc32.ChecksumIEEE(data) != h.crc {
			return errors.New("its checksum is wrong")
		}
		switch h.kind {
		case pageDictionary:
			err = c.openDictionary(h, data)
		case pageData:
			err = c.openPage(h, data)
		case pageDataV2:
			err = c.openPageV2(h, data)
		case pageIndex:
			continue
		default:
			return fmt.Errorf("page type %d is unknown", h.kind)
		}
		if err != nil {
			return err
		}
		if h.kind == pageDictionary || h.values == 0 {
			continue
		}
		if int64(h.values) > c.left {
			return fmt.Errorf("it has %d values where the column has %d left", h.values, c.left)
		}
		c.inPage = h.values
		return nil
	}
}

// openPage begins a page of version 1, in which levels and values are packed together.
func (c *cursor) openPage(h pageHeader, data []byte) error {
	if !h.found {
		return errors.New("its header says nothing of its values")
	}
	data, err := c.unpackPage(data, h.unpacked)
	if err != nil {
		return err
	}
	for _, l := range []struct {
		to            *runs
		max, encoding int
	}{{&c.reps, c.leaf.rep, h.repEncoding}, {&c.defs, c.leaf.def, h.defEncoding}} {
		if l.max == 0 {
			continue
		}
		if l.encoding != encodingRuns {
			return fmt.Errorf("levels in encoding %d are not supported", l.encoding)
		}
		levels, rest, err := prefixed(data)
		if err != nil {
			return err
		}
		*l.to, data = newRuns(levels, bits.Len(uint(l.max))), rest
	}
	return c.openValues(h, data)
}

// prefixed takes bytes off that have their length before them.
func prefixed(data []byte) (b, rest []byte, err error) {
	if len(data) < 4 {
		return nil, nil, errShort
	}
	n := binary.LittleEndian.Uint32(data)
	data = data[4:]
	if uint64(n) > uint64(len(data)) {
		return nil, nil, errShort
	}
	return data[:n], data[n:], nil
}

// openPageV2 begins a page of version 2, in which the levels are not packed.
func (c *cursor) openPageV2(h pageHeader, data []byte) error {
	levels := h.repBytes + h.defBytes
	if !h.found || levels > len(data) || levels > h.unpacked {
		return errors.New("its levels are larger than it")
	}
	c.reps = newRuns(data[:h.repBytes], bits.Len(uint(c.leaf.rep)))
	c.defs = newRuns(data[h.repBytes:levels], bits.Len(uint(c.leaf.def)))
	data = data[levels:]
	if h.isPacked {
		var err error
		if data, err = c.unpackPage(data, h.unpacked-levels); err != nil {
			return err
		}
	}
	return c.openValues(h, data)
}

func (c *cursor) unpackPage(data []byte, size int) (_ []byte, err error) {
	if c.codec == codecNone {
		return data, nil
	}
	if err := plausible(c.codec, len(data), size); err != nil {
		return nil, err
	}
	if c.unpacked, err = c.file.room(c.unpacked, size); err != nil {
		return nil, err
	}
	return c.unpacked, c.file.unpack.into(c.unpacked, data, c.codec)
}

// openDictionary reads the values that later pages name by number.
func (c *cursor) openDictionary(h pageHeader, data []byte) error {
	if h.encoding != encodingPlain && h.encoding != encodingPlainDictionary {
		return fmt.Errorf("a dictionary in encoding %d is not supported", h.encoding)
	}
	size := h.unpacked
	if c.codec == codecNone {
		size = len(data)
	} else if err := plausible(c.codec, len(data), size); err != nil {
		return err
	}
	var err error
	if c.dictData, err = c.file.room(c.dictData, size); err != nil {
		return err
	}
	if c.codec == codecNone {
		copy(c.dictData, data)
	} else if err := c.file.unpack.into(c.dictData, data, c.codec); err != nil {
		return err
	}
	c.dictionary.data, c.dictionary.there = c.dictData, true
	return c.dictionary.index(c.file, c.leaf, h.values)
}
