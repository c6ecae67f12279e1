package data

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/zeebo/xxh3"
)

// The token cache has one file per source, named by the hash of everything that its tokens depend on:
//
//	magic     8 bytes, with the format's version
//	key       16 bytes, as in the name
//	documents uint64
//	tokens    uint64
//	arrays    as Dataset.encode writes them
//	checksum  16 bytes, xxh3-128 of all before
//
// Integers are little-endian. A file is complete before it gets its name, and is never changed after; so two runs that
// make the same file at once do no harm.
var cacheMagic = []byte("mrtoken1")

const cacheHeaderBytes = 8 + 16 + 8 + 8

// DefaultCacheDir is where tokens are kept unless a run says otherwise: millrace/tokens in the user's cache directory.
func DefaultCacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("token cache: %w", err)
	}
	return filepath.Join(dir, "millrace", "tokens"), nil
}

func cachePath(dir string, key xxh3.Uint128) string {
	return filepath.Join(dir, fmt.Sprintf("%x.tokens", key.Bytes()))
}

// readCache returns the documents kept under key. Any fault of the file is an error; the caller makes it anew.
func readCache(dir string, key xxh3.Uint128, vocabSize int) (*Dataset, error) {
	f, err := os.Open(cachePath(dir, key))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return decodeCache(f, info.Size(), key, vocabSize)
}

func decodeCache(in io.Reader, size int64, key xxh3.Uint128, vocabSize int) (*Dataset, error) {
	sum := xxh3.New128()
	hashed := io.TeeReader(in, sum)
	var header [cacheHeaderBytes]byte
	if _, err := io.ReadFull(hashed, header[:]); err != nil {
		return nil, err
	}
	id := key.Bytes()
	if !bytes.Equal(header[:8], cacheMagic) || !bytes.Equal(header[8:24], id[:]) {
		return nil, errors.New("not a token file of this key")
	}
	// The counts must explain the file's size before anything is allocated for them.
	documents, tokens := binary.LittleEndian.Uint64(header[24:]), binary.LittleEndian.Uint64(header[32:])
	if documents > uint64(size)/8 || tokens > uint64(size)/4 || documents > maxDocuments ||
		uint64(size) != cacheHeaderBytes+8*documents+4*tokens+(tokens+63)/64*8+16 {
		return nil, errors.New("the file's size does not match its header")
	}
	d := &Dataset{ends: make([]int64, documents), tokens: make([]int32, tokens), counted: make([]uint64, (tokens+63)/64)}
	if err := d.decode(hashed); err != nil {
		return nil, err
	}
	want := sum.Sum128().Bytes()
	var got [16]byte
	if _, err := io.ReadFull(in, got[:]); err != nil {
		return nil, err
	}
	if got != want {
		return nil, errors.New("the checksum does not match")
	}
	last := int64(0)
	for _, end := range d.ends {
		if end <= last {
			return nil, errors.New("documents are out of order")
		}
		last = end
	}
	if last != int64(tokens) {
		return nil, errors.New("the documents do not cover the tokens")
	}
	for _, id := range d.tokens {
		if id < 0 || int(id) >= vocabSize {
			return nil, fmt.Errorf("token %d is not in the vocabulary", id)
		}
	}
	return d, nil
}

// decode fills the arrays, whose lengths are set, with what encode wrote.
func (d *Dataset) decode(r io.Reader) error {
	const chunk = 1 << 13
	buf := make([]byte, 8*chunk)
	each := func(n, width int, set func(i int, b []byte)) error {
		for at := 0; at < n; at += chunk {
			m := min(chunk, n-at)
			if _, err := io.ReadFull(r, buf[:m*width]); err != nil {
				return err
			}
			for i := range m {
				set(at+i, buf[i*width:])
			}
		}
		return nil
	}
	if err := each(len(d.ends), 8, func(i int, b []byte) { d.ends[i] = int64(binary.LittleEndian.Uint64(b)) }); err != nil {
		return err
	}
	if err := each(len(d.tokens), 4, func(i int, b []byte) { d.tokens[i] = int32(binary.LittleEndian.Uint32(b)) }); err != nil {
		return err
	}
	return each(len(d.counted), 8, func(i int, b []byte) { d.counted[i] = binary.LittleEndian.Uint64(b) })
}

// writeCache keeps the documents under key.
func writeCache(dir string, key xxh3.Uint128, d *Dataset) (err error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "new-*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	sum := xxh3.New128()
	w := io.MultiWriter(f, sum)
	id := key.Bytes()
	header := append(append([]byte(nil), cacheMagic...), id[:]...)
	header = binary.LittleEndian.AppendUint64(header, uint64(len(d.ends)))
	header = binary.LittleEndian.AppendUint64(header, uint64(len(d.tokens)))
	if _, err := w.Write(header); err != nil {
		return err
	}
	if err := d.encode(w); err != nil {
		return err
	}
	check := sum.Sum128().Bytes()
	if _, err := f.Write(check[:]); err != nil {
		return err
	}
	// No sync: a file that a crash tears fails its checksum and is made anew.
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), cachePath(dir, key))
}
