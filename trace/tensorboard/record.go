package tensorboard

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"strings"
)

// castagnoli is the table of CRC-32C, which TFRecord uses.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// MaskedCRC is TFRecord's checksum of bytes: CRC-32C, rotated and moved so that data with checksums in them have no
// weak one.
func MaskedCRC(data []byte) uint32 {
	const maskDelta = 0xa282ead8
	sum := crc32.Checksum(data, castagnoli)
	return (sum>>15 | sum<<17) + maskDelta
}

// appendRecord appends a TFRecord: length, its checksum, the data, their checksum, all little-endian.
func appendRecord(to, data []byte) []byte {
	at := len(to)
	to = binary.LittleEndian.AppendUint64(to, uint64(len(data)))
	to = binary.LittleEndian.AppendUint32(to, MaskedCRC(to[at:]))
	to = append(to, data...)
	return binary.LittleEndian.AppendUint32(to, MaskedCRC(data))
}

// message is a message of protocol buffers that is being written: fields append themselves.
type message []byte

// Wire types.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
	wireFixed32 = 5
)

func (m message) key(field, wire int) message {
	return binary.AppendUvarint(m, uint64(field)<<3|uint64(wire))
}

func (m message) varint(field int, x int64) message {
	return binary.AppendUvarint(m.key(field, wireVarint), uint64(x))
}

func (m message) double(field int, x float64) message {
	return binary.LittleEndian.AppendUint64(m.key(field, wireFixed64), math.Float64bits(x))
}

func (m message) float(field int, x float32) message {
	return binary.LittleEndian.AppendUint32(m.key(field, wireFixed32), math.Float32bits(x))
}

func (m message) bytes(field int, data []byte) message {
	return append(binary.AppendUvarint(m.key(field, wireBytes), uint64(len(data))), data...)
}

// text is a field whose bytes readers take for UTF-8.
func (m message) text(field int, text string) message {
	return m.bytes(field, []byte(strings.ToValidUTF8(text, "\uFFFD")))
}
