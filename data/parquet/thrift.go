package parquet

import (
	"encoding/binary"
	"errors"
)

// errShort says that a decoder ran out of bytes: for a page header there may be more in the file.
var errShort = errors.New("the data end too early")

var errThrift = errors.New("the Thrift structure is damaged")

// Types of Thrift's compact protocol.
const (
	thriftTrue   = 1
	thriftFalse  = 2
	thriftByte   = 3
	thriftDouble = 7
	thriftBinary = 8
	thriftList   = 9
	thriftSet    = 10
	thriftMap    = 11
	thriftStruct = 12
	thriftUUID   = 13
)

// maxThriftDepth bounds how deep structures are nested that are only skipped; those of Parquet have at most six levels.
const maxThriftDepth = 32

// thrift reads the compact protocol (thrift-compact-protocol.md of apache/thrift). The first error sticks: all later reads return
// zeros and every list and structure is at its end, so callers look at err when they are through.
type thrift struct {
	data []byte
	at   int
	err  error
}

func (t *thrift) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

func (t *thrift) byte() byte {
	if t.err == nil && t.at >= len(t.data) {
		t.fail(errShort)
	}
	if t.err != nil {
		return 0
	}
	t.at++
	return t.data[t.at-1]
}

func (t *thrift) varint() uint64 {
	if t.err != nil {
		return 0
	}
	v, n := binary.Uvarint(t.data[t.at:])
	switch {
	case n == 0:
		t.fail(errShort)
		return 0
	case n < 0:
		t.fail(errThrift)
		return 0
	}
	t.at += n
	return v
}

// integer reads a zigzag number of any width.
func (t *thrift) integer() int64 { return unzigzag(t.varint()) }

func unzigzag(v uint64) int64 { return int64(v>>1) ^ -int64(v&1) }

func (t *thrift) skipBytes(n uint64) []byte {
	if t.err == nil && n > uint64(len(t.data)-t.at) {
		t.fail(errShort)
	}
	if t.err != nil {
		return nil
	}
	t.at += int(n)
	return t.data[t.at-int(n) : t.at]
}

func (t *thrift) binary() []byte { return t.skipBytes(t.varint()) }

// structure calls field for each field with its id and type. field must read the value, or leave it to skip.
func (t *thrift) structure(field func(id int, kind byte)) {
	for id := 0; t.err == nil; {
		head := t.byte()
		kind := head & 15
		if t.err != nil || head == 0 {
			return
		}
		if delta := int(head >> 4); delta > 0 {
			id += delta
		} else {
			id = int(int16(t.integer()))
		}
		field(id, kind)
	}
}

// list calls item for each item with its type.
func (t *thrift) list(item func(kind byte)) {
	head := t.byte()
	n := uint64(head >> 4)
	if n == 15 {
		n = t.varint()
	}
	// Each item has a byte at least.
	if t.err == nil && n > uint64(len(t.data)-t.at) {
		t.fail(errShort)
	}
	for i := uint64(0); i < n && t.err == nil; i++ {
		item(head & 15)
	}
}

func (t *thrift) skip(kind byte) { t.skipNested(kind, 0, false) }

func (t *thrift) skipNested(kind byte, depth int, inList bool) {
	if depth > maxThriftDepth {
		t.fail(errThrift)
		return
	}
	switch kind {
	case thriftTrue, thriftFalse:
		if inList { // a field's truth is its type, an item's a byte
			t.byte()
		}
	case thriftByte:
		t.byte()
	case 4, 5, 6: // integers of 16, 32 and 64 bits
		t.varint()
	case thriftDouble:
		t.skipBytes(8)
	case thriftBinary:
		t.binary()
	case thriftUUID:
		t.skipBytes(16)
	case thriftList, thriftSet:
		t.list(func(kind byte) { t.skipNested(kind, depth+1, true) })
	case thriftMap:
		n := t.varint()
		if n == 0 {
			return
		}
		kinds := t.byte()
		for i := uint64(0); i < n && t.err == nil; i++ {
			before := t.at
			t.skipNested(kinds>>4, depth+1, true)
			t.skipNested(kinds&15, depth+1, true)
			if t.at == before {
				t.fail(errThrift)
			}
		}
	case thriftStruct:
		t.structure(func(_ int, kind byte) { t.skipNested(kind, depth+1, false) })
	default:
		t.fail(errThrift)
	}
}

// asInteger reads a field that must be an integer.
func (t *thrift) asInteger(kind byte) int64 {
	switch kind {
	case 4, 5, 6:
		return t.integer()
	case thriftByte:
		return int64(int8(t.byte()))
	}
	t.fail(errThrift)
	return 0
}

// asSize reads a field that must be an integer that is not negative and fits an int32.
func (t *thrift) asSize(kind byte) int {
	v := t.asInteger(kind)
	if v < 0 || v > 1<<31-1 {
		t.fail(errThrift)
		return 0
	}
	return int(v)
}

func (t *thrift) asBinary(kind byte) []byte {
	if kind != thriftBinary {
		t.fail(errThrift)
		return nil
	}
	return t.binary()
}

func (t *thrift) asStructure(kind byte, field func(id int, kind byte)) {
	if kind != thriftStruct {
		t.fail(errThrift)
		return
	}
	t.structure(field)
}

func (t *thrift) asList(kind byte, item func(kind byte)) {
	if kind != thriftList {
		t.fail(errThrift)
		return
	}
	t.list(item)
}

func (t *thrift) asBool(kind byte) bool {
	if kind != thriftTrue && kind != thriftFalse {
		t.fail(errThrift)
	}
	return kind == thriftTrue
}
