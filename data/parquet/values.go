package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// value is one value of a leaf: a number's bits, or bytes that are valid until the next value.
type value struct {
	bits  uint64
	bytes []byte
}

// values decodes the values of a page one by one.
type values struct {
	leaf     *node
	encoding int
	data     []byte // plain values, and the bytes of DELTA_LENGTH_BYTE_ARRAY
	at       uint64 // bit of a plain boolean, or index of a byte-stream-split value
	runs     runs   // indices and booleans
	lengths  deltas // numbers, or lengths
	prefixes deltas
	last     []byte // of DELTA_BYTE_ARRAY: later values have a prefix of it
	hold     func(int) error
}

// openValues begins the values of a page.
func (c *cursor) openValues(h pageHeader, data []byte) error {
	v := &c.values
	*v = values{leaf: c.leaf, encoding: h.encoding, data: data, last: v.last[:0], hold: c.file.hold}
	isNumber := c.leaf.kind == typeInt32 || c.leaf.kind == typeInt64
	isBytes := c.leaf.kind == typeBytes || c.leaf.kind == typeFixed
	ok := true
	var err error
	switch h.encoding {
	case encodingPlain:
	case encodingPlainDictionary, encodingDictionary:
		v.encoding = encodingDictionary
		if !c.dictionary.there {
			return errors.New("it needs a dictionary, and no dictionary precedes it")
		}
		if len(data) == 0 {
			v.runs = newRuns(nil, 1) // all values are null
			break
		}
		if data[0] > 32 {
			return errRuns
		}
		v.runs = newRuns(data[1:], int(data[0]))
	case encodingRuns:
		ok = c.leaf.kind == typeBoolean
		var packed []byte
		if len(data) > 0 {
			packed, _, err = prefixed(data)
		}
		v.runs = newRuns(packed, 1)
	case encodingDelta:
		ok = isNumber
		if len(data) > 0 {
			v.lengths, err = newDeltas(data, h.values)
		}
	case encodingDeltaLengths:
		ok = c.leaf.kind == typeBytes
		if len(data) > 0 {
			err = v.openLengths(data, h.values)
		}
	case encodingDeltaStrings:
		ok = isBytes
		if len(data) == 0 {
			break
		}
		if v.prefixes, err = newDeltas(data, h.values); err == nil {
			if data, err = v.prefixes.skipAll(); err == nil {
				err = v.openLengths(data, h.values)
			}
		}
	case encodingSplit:
		ok = c.leaf.width > 0
	default:
		return fmt.Errorf("values in encoding %d are not supported", h.encoding)
	}
	if !ok {
		return fmt.Errorf("encoding %d is not for values of its type", h.encoding)
	}
	return err
}

// openLengths finds the bytes after the lengths.
func (v *values) openLengths(data []byte, most int) (err error) {
	if v.lengths, err = newDeltas(data, most); err == nil {
		v.data, err = v.lengths.skipAll()
	}
	return err
}

func (v *values) next(d *dictionary) (value, error) {
	switch v.encoding {
	case encodingDictionary:
		i, err := v.runs.next()
		if err != nil {
			return value{}, err
		}
		return d.value(v.leaf, i)
	case encodingRuns:
		b, err := v.runs.next()
		return value{bits: uint64(b)}, err
	case encodingDelta:
		n, err := v.lengths.next()
		return value{bits: uint64(n)}, err
	case encodingDeltaLengths:
		b, err := v.counted()
		return value{bytes: b}, err
	case encodingDeltaStrings:
		return v.extended()
	case encodingSplit:
		return v.split()
	}
	if v.leaf.kind == typeBoolean {
		b, ok := bitsAt(v.data, v.at, 1)
		if !ok {
			return value{}, errShort
		}
		v.at++
		return value{bits: b}, nil
	}
	if v.leaf.kind == typeBytes {
		b, rest, err := prefixed(v.data)
		if err == nil {
			v.data = rest
		}
		return value{bytes: b}, err
	}
	if v.leaf.width > len(v.data) {
		return value{}, errShort
	}
	b := v.data[:v.leaf.width]
	v.data = v.data[v.leaf.width:]
	return fixed(v.leaf, b), nil
}

// fixed is a value of a type with a fixed width.
func fixed(leaf *node, b []byte) value {
	switch leaf.width {
	case 4:
		if leaf.kind != typeFixed {
			return value{bits: uint64(int64(int32(binary.LittleEndian.Uint32(b))))}
		}
	case 8:
		if leaf.kind != typeFixed {
			return value{bits: binary.LittleEndian.Uint64(b)}
		}
	}
	return value{bytes: b}
}

// counted takes as many bytes as the next length says.
func (v *values) counted() ([]byte, error) {
	n, err := v.lengths.next()
	if err != nil {
		return nil, err
	}
	if n < 0 || n > int64(len(v.data)) {
		return nil, errShort
	}
	b := v.data[:n]
	v.data = v.data[n:]
	return b, nil
}

// extended is a prefix of the last value and more bytes.
func (v *values) extended() (value, error) {
	prefix, err := v.prefixes.next()
	if err != nil {
		return value{}, err
	}
	b, err := v.counted()
	if err != nil {
		return value{}, err
	}
	if prefix < 0 || prefix > int64(len(v.last)) {
		return value{}, errDeltas
	}
	// No value is longer than all the bytes of the page.
	before := cap(v.last)
	v.last = append(v.last[:prefix], b...)
	if grown := cap(v.last) - before; grown > 0 {
		if err := v.hold(grown); err != nil {
			return value{}, err
		}
	}
	if v.leaf.kind == typeFixed && len(v.last) != v.leaf.width {
		return value{}, errDeltas
	}
	return value{bytes: v.last}, nil
}

// split gathers a value whose first bytes, second bytes and so on stand together.
func (v *values) split() (value, error) {
	w := uint64(v.leaf.width)
	n := uint64(len(v.data)) / w
	if v.at >= n {
		return value{}, errShort
	}
	v.last = v.last[:0]
	for i := range w {
		v.last = append(v.last, v.data[i*n+v.at])
	}
	v.at++
	return fixed(v.leaf, v.last), nil
}

// dictionary has the values of a column that pages name by number.
type dictionary struct {
	there   bool
	data    []byte
	count   int
	offsets []uint32 // of byte arrays: where each ends
}

// index finds the values in the dictionary's data.
func (d *dictionary) index(f *File, leaf *node, count int) error {
	d.count = count
	switch {
	case leaf.kind == typeBoolean:
		return errors.New("a dictionary of booleans is not supported")
	case leaf.kind != typeBytes:
		if uint64(count)*uint64(leaf.width) > uint64(len(d.data)) {
			return errShort
		}
		return nil
	case count > len(d.data)/4: // each has its length before it
		return errShort
	}
	if grow := count - cap(d.offsets); grow > 0 {
		if err := f.hold(4 * grow); err != nil {
			return err
		}
		d.offsets = make([]uint32, count)
	}
	d.offsets = d.offsets[:count]
	rest := d.data
	for i := range d.offsets {
		_, r, err := prefixed(rest)
		if err != nil {
			return err
		}
		rest = r
		d.offsets[i] = uint32(len(d.data) - len(rest))
	}
	return nil
}

func (d *dictionary) value(leaf *node, i uint32) (value, error) {
	if uint64(i) >= uint64(d.count) {
		return value{}, fmt.Errorf("value %d of a dictionary of %d", i, d.count)
	}
	if leaf.kind != typeBytes {
		at := int(i) * leaf.width
		return fixed(leaf, d.data[at:at+leaf.width]), nil
	}
	start := uint32(4)
	if i > 0 {
		start += d.offsets[i-1]
	}
	return value{bytes: d.data[start:d.offsets[i]]}, nil
}
