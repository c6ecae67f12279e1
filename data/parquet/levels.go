package parquet

import (
	"encoding/binary"
	"errors"
)

// runs reads the hybrid of run-length encoding and bit packing in which levels, dictionary indices and booleans are
// stored.
type runs struct {
	data  []byte
	width int // bits of a value, at most 32

	left   uint64 // values of the current run
	packed bool
	value  uint32 // of a run of equal values
	bits   []byte // of packed values, from the one at bit `at`
	at     uint64
}

var errRuns = errors.New("a run of values is damaged")

func newRuns(data []byte, width int) runs { return runs{data: data, width: width} }

// next is the next value. Without bits every value is zero, and needs no data.
func (r *runs) next() (uint32, error) {
	for r.left == 0 {
		if r.width == 0 && len(r.data) == 0 {
			return 0, nil
		}
		if err := r.open(); err != nil {
			return 0, err
		}
	}
	r.left--
	if !r.packed {
		return r.value, nil
	}
	if r.width == 0 {
		return 0, nil
	}
	v, ok := bitsAt(r.bits, r.at, r.width)
	if !ok {
		return 0, errShort
	}
	r.at += uint64(r.width)
	return uint32(v), nil
}

func (r *runs) open() error {
	head, n := binary.Uvarint(r.data)
	if n == 0 {
		return errShort
	}
	if n < 0 {
		return errRuns
	}
	r.data = r.data[n:]
	r.packed = head&1 == 1
	if r.packed {
		// Groups of eight values have as many bytes as a value has bits. Some writers leave out the padding of the last one.
		groups := head >> 1
		if groups > 1<<32 {
			return errRuns
		}
		r.left, r.at = groups*8, 0
		size := min(groups*uint64(r.width), uint64(len(r.data)))
		r.bits, r.data = r.data[:size], r.data[size:]
		return nil
	}
	r.left = head >> 1
	size := (r.width + 7) / 8
	if size > len(r.data) {
		return errShort
	}
	r.value = 0
	for i := range size {
		r.value |= uint32(r.data[i]) << (8 * i)
	}
	r.data = r.data[size:]
	if r.width < 32 && r.value>>r.width != 0 {
		return errRuns
	}
	return nil
}

// bitsAt reads a little-endian number of width bits, at most 64, that starts at a bit of b.
func bitsAt(b []byte, at uint64, width int) (uint64, bool) {
	if width == 0 {
		return 0, true
	}
	first, shift := at/8, at%8
	if at+uint64(width) > uint64(len(b))*8 {
		return 0, false
	}
	var v uint64
	if first+8 <= uint64(len(b)) {
		v = binary.LittleEndian.Uint64(b[first:]) >> shift
	} else {
		for i, c := range b[first:] {
			v |= uint64(c) << (8 * i)
		}
		v >>= shift
	}
	if shift > 0 && shift+uint64(width) > 64 {
		v |= uint64(b[first+8]) << (64 - shift)
	}
	return v & (1<<width - 1), true
}

// deltas reads DELTA_BINARY_PACKED: blocks with a smallest difference, and miniblocks of packed rests.
type deltas struct {
	data  []byte
	total uint64 // values that are left
	value int64  // the next one

	blockValues, miniValues uint64
	minDelta                int64
	widths                  []byte // of the miniblocks that are left of the block
	bits                    []byte // of the miniblock
	width                   int
	left                    uint64 // values of the miniblock
	at                      uint64 // bit
}

var errDeltas = errors.New("delta-encoded values are damaged")

func (d *deltas) varint() (uint64, error) {
	v, n := binary.Uvarint(d.data)
	if n == 0 {
		return 0, errShort
	}
	if n < 0 {
		return 0, errDeltas
	}
	d.data = d.data[n:]
	return v, nil
}

// newDeltas reads the header. The values must not be more than the page has.
func newDeltas(data []byte, most int) (deltas, error) {
	d := deltas{data: data}
	var head [4]uint64
	for i := range head {
		var err error
		if head[i], err = d.varint(); err != nil {
			return d, err
		}
	}
	miniblocks := head[1]
	d.blockValues, d.total, d.value = head[0], head[2], unzigzag(head[3])
	if d.blockValues == 0 || d.blockValues%128 != 0 || d.blockValues > 1<<24 || miniblocks == 0 || miniblocks > 1<<16 ||
		d.blockValues%miniblocks != 0 || d.blockValues/miniblocks%8 != 0 || d.total > uint64(most) {
		return d, errDeltas
	}
	d.miniValues = d.blockValues / miniblocks
	return d, nil
}

func (d *deltas) next() (int64, error) {
	if d.total == 0 {
		return 0, errShort
	}
	v := d.value
	d.total--
	if d.total == 0 {
		return v, nil
	}
	if d.left == 0 {
		if err := d.open(); err != nil {
			return 0, err
		}
	}
	rest, ok := bitsAt(d.bits, d.at, d.width)
	if !ok {
		return 0, errShort
	}
	d.at += uint64(d.width)
	d.left--
	d.value = v + d.minDelta + int64(rest)
	return v, nil
}

// open begins the next miniblock.
func (d *deltas) open() error {
	if len(d.widths) == 0 {
		v, err := d.varint()
		if err != nil {
			return err
		}
		n := int(d.blockValues / d.miniValues)
		if n > len(d.data) {
			return errShort
		}
		d.minDelta, d.widths, d.data = unzigzag(v), d.data[:n], d.data[n:]
	}
	d.width, d.widths = int(d.widths[0]), d.widths[1:]
	if d.width > 64 {
		return errDeltas
	}
	// The last miniblock may lack its padding.
	size := min(d.miniValues/8*uint64(d.width), uint64(len(d.data)))
	d.bits, d.data = d.data[:size], d.data[size:]
	d.left, d.at = d.miniValues, 0
	return nil
}

// skipAll reads past the values and returns the bytes after them.
func (d deltas) skipAll() ([]byte, error) {
	for d.total > 0 {
		if _, err := d.next(); err != nil {
			return nil, err
		}
	}
	return d.data, nil
}
