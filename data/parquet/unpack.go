package parquet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
)

// Compressions of pages.
const (
	codecNone   = 0
	codecSnappy = 1
	codecGzip   = 2
	codecBrotli = 4
	codecZstd   = 6
	codecLZ4Raw = 7
)

func supported(codec int) bool {
	switch codec {
	case codecNone, codecSnappy, codecGzip, codecBrotli, codecZstd, codecLZ4Raw:
		return true
	}
	return false
}

func codecName(codec int) string {
	names := []string{"none", "snappy", "gzip", "LZO", "Brotli", "LZ4 in Hadoop's frames", "zstd", "LZ4"}
	if codec < len(names) {
		return names[codec]
	}
	return fmt.Sprintf("number %d", codec)
}

// plausible refuses pages that are said to unpack to more than their compression can do, before there is memory for
// them.
func plausible(codec, packed, unpacked int) error {
	most := uint64(packed)
	switch codec {
	case codecSnappy:
		most *= 64 // copies of at most 64 bytes have two bytes and more
	case codecGzip:
		most *= 1032 // a match of 258 bytes has two bits and more
	case codecBrotli:
		most *= 16 << 20 / 2 // a meta-block of at most 16 MiB has two bytes and more
	case codecZstd:
		most *= 128 << 10 / 4 // a block of at most 128 KiB has four bytes and more
	case codecLZ4Raw:
		most *= 256 // each byte lengthens a match by 255 at most
	}
	if uint64(unpacked) > most {
		return fmt.Errorf("it is said to unpack from %d bytes to %d, which %s cannot do", packed, unpacked, codecName(codec))
	}
	return nil
}

// unpackers are made when they are needed, and kept.
type unpackers struct {
	gzip   *gzip.Reader
	brotli *brotli.Reader // its window has at most 16 MiB
	zstd   *zstd.Decoder
}

var errUnpacked = errors.New("it unpacks to another size than is said")

// into unpacks data that must fill out.
func (u *unpackers) into(out, data []byte, codec int) error {
	fail := func(err error) error { return fmt.Errorf("its %s data are damaged: %w", codecName(codec), err) }
	switch codec {
	case codecSnappy:
		if n, err := snappy.DecodedLen(data); err != nil {
			return fail(err)
		} else if n != len(out) {
			return errUnpacked
		}
		if _, err := snappy.Decode(out, data); err != nil {
			return fail(err)
		}
	case codecGzip:
		var err error
		if u.gzip == nil {
			u.gzip, err = gzip.NewReader(bytes.NewReader(data))
		} else {
			err = u.gzip.Reset(bytes.NewReader(data))
		}
		if err != nil {
			return fail(err)
		}
		if err := fill(out, u.gzip); err == errUnpacked {
			return err
		} else if err != nil {
			return fail(err)
		}
	case codecBrotli:
		if u.brotli == nil {
			u.brotli = brotli.NewReader(nil)
		}
		if err := u.brotli.Reset(bytes.NewReader(data)); err != nil {
			return fail(err)
		}
		if err := fill(out, u.brotli); err == errUnpacked {
			return err
		} else if err != nil {
			return fail(err)
		}
	case codecZstd:
		if u.zstd == nil {
			var err error
			if u.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true)); err != nil {
				return err
			}
		}
		got, err := u.zstd.DecodeAll(data, out[:0:len(out)])
		if err != nil {
			return fail(err)
		}
		if len(got) != len(out) {
			return errUnpacked
		}
	case codecLZ4Raw:
		return unpackLZ4(out, data)
	default:
		return fmt.Errorf("compression %s is not supported", codecName(codec))
	}
	return nil
}

// fill fills out with all that a reader has, to the end of its data: a checksum may follow them.
func fill(out []byte, in io.Reader) error {
	if _, err := io.ReadFull(in, out); err != nil {
		return err
	}
	var more [1]byte
	if n, err := in.Read(more[:]); n > 0 {
		return errUnpacked
	} else if err != io.EOF {
		return err
	}
	return nil
}

var errLZ4 = errors.New("its LZ4 data are damaged")

// unpackLZ4 unpacks a block (lz4_Block_format.md of lz4/lz4): sequences of literals and a match in what is unpacked
// already; the last has literals only.
func unpackLZ4(out, data []byte) error {
	at := 0
	length := func(nibble byte) (int, bool) {
		n := int(nibble)
		if nibble < 15 {
			return n, true
		}
		for {
			if len(data) == 0 || n > len(out) {
				return 0, false
			}
			c := data[0]
			data = data[1:]
			n += int(c)
			if c < 255 {
				return n, true
			}
		}
	}
	for {
		if len(data) == 0 {
			return errLZ4
		}
		token := data[0]
		data = data[1:]
		n, ok := length(token >> 4)
		if !ok || n > len(data) || n > len(out)-at {
			return errLZ4
		}
		at += copy(out[at:], data[:n])
		data = data[n:]
		if len(data) == 0 {
			break
		}
		if len(data) < 2 {
			return errLZ4
		}
		back := int(binary.LittleEndian.Uint16(data))
		data = data[2:]
		n, ok = length(token & 15)
		n += 4
		if !ok || back == 0 || back > at || n > len(out)-at {
			return errLZ4
		}
		// A match may overlap what it makes: each round doubles what there is to copy.
		for from, end := at-back, at+n; at < end; {
			at += copy(out[at:end], out[from:at])
		}
	}
	if at != len(out) {
		return errUnpacked
	}
	return nil
}
