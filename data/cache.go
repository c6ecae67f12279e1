package data

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// The token cache has one file per source, named by the hash of everything that its tokens depend on:
//
//	magic      8 bytes, with the format's version
//	key        16 bytes, as in the name
//	documents  uint64
//	tokens     uint64
//	skipped    uint64, bad rows that were left out
//	note       uint64, bytes
//	sum        16 bytes, xxh3-128 of tokens, counted and ends
//	check      8 bytes, xxh3-64 of all before and of the note
//	tokens     int32 each, padded to 8 bytes
//	counted    a bit per token, padded to 8 bytes
//	ends       uint64 per document: the tokens of it and of all before
//	note       what was wrong with the first row that was left out
//
// Integers are little-endian. A file is complete before it gets its name, and is never changed after; so two runs that
// make the same file at once do no harm, and one may be removed while another run has it mapped.
var cacheMagic = []byte("mrtoken2")

const cacheHeaderBytes = 8 + 16 + 4*8 + 16 + 8

// maxNoteBytes bounds the note.
const maxNoteBytes = 4096

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

// readCache maps the documents kept under key. Any fault of the file is an error; the caller makes it anew.
func readCache(dir string, key xxh3.Uint128, vocabSize int) (*part, error) {
	f, err := os.Open(cachePath(dir, key))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mapCache(f, key, vocabSize)
}

// mapCache maps a file and checks it. The mapping lasts as long as the program: a run has few, and uses them to its end.
func mapCache(f *os.File, key xxh3.Uint128, vocabSize int) (*part, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() < cacheHeaderBytes {
		return nil, io.ErrUnexpectedEOF
	}
	b, err := mapFile(f, info.Size())
	if err != nil {
		return nil, err
	}
	p, err := parseCache(b, key, vocabSize)
	if err != nil {
		unmapFile(b)
	}
	return p, err
}

// parseCache checks a cache file, whose tokens stay where they are. b must lie at a multiple of 8.
func parseCache(b []byte, key xxh3.Uint128, vocabSize int) (*part, error) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil, errors.New("tokens are not read in place on this machine")
	}
	if len(b) < cacheHeaderBytes {
		return nil, io.ErrUnexpectedEOF
	}
	id := key.Bytes()
	if !bytes.Equal(b[:8], cacheMagic) || !bytes.Equal(b[8:24], id[:]) {
		return nil, errors.New("not a token file of this key")
	}
	size := uint64(len(b))
	number := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	documents, tokens, skipped, note := number(24), number(32), number(40), number(48)
	words := (tokens + 63) / 64
	if documents > size/8 || tokens > size/4 || note > maxNoteBytes || skipped > 1<<48 || documents > maxDocuments ||
		size != cacheHeaderBytes+4*tokens+tokenPadding(tokens)+8*words+8*documents+note {
		return nil, errors.New("the file's size does not match its header")
	}
	p := &part{skipped: int(skipped), firstBad: string(b[size-note:])}
	if number(72) != checkHeader(b[:72], p.firstBad) {
		return nil, errors.New("the header's checksum does not match")
	}
	copy(p.run.sum[:], b[56:72])
	body := b[cacheHeaderBytes : size-note]
	if xxh3.Hash128(body).Bytes() != p.run.sum {
		return nil, errors.New("the checksum does not match")
	}
	p.run.tokens = inPlace[int32](body, tokens)
	body = body[4*tokens+tokenPadding(tokens):]
	p.run.counted = inPlace[uint64](body, words)
	p.ends = inPlace[int64](body[8*words:], documents)
	last := int64(0)
	for _, end := range p.ends {
		if end <= last {
			return nil, errors.New("documents are out of order")
		}
		last = end
	}
	if last != int64(tokens) {
		return nil, errors.New("the documents do not cover the tokens")
	}
	for _, id := range p.run.tokens {
		if id < 0 || int(id) >= vocabSize {
			return nil, fmt.Errorf("token %d is not in the vocabulary", id)
		}
	}
	return p, nil
}

// inPlace reads n numbers where they lie.
func inPlace[T int32 | int64 | uint64](b []byte, n uint64) []T {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

func checkHeader(header []byte, note string) uint64 {
	return xxh3.Hash(append(bytes.Clone(header), note...))
}

// cacheWriter is a cache file in the making.
type cacheWriter struct {
	dir string
	key xxh3.Uint128
	f   *os.File
	*builder
}

// abandonedAfter is the age at which the unfinished file of a run that is gone is removed.
const abandonedAfter = 24 * time.Hour

// createCache begins a file for key; create is os.CreateTemp.
func createCache(dir string, key xxh3.Uint128, create func(dir, pattern string) (*os.File, error)) (*cacheWriter, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	old, _ := filepath.Glob(filepath.Join(escapeGlob(dir), "new-*.tmp"))
	for _, name := range old {
		if info, err := os.Stat(name); err == nil && time.Since(info.ModTime()) > abandonedAfter {
			os.Remove(name) // if that fails it is in nobody's way
		}
	}
	f, err := create(dir, "new-*.tmp")
	if err != nil {
		return nil, err
	}
	w := &cacheWriter{dir: dir, key: key, f: f}
	if _, err := f.Seek(cacheHeaderBytes, io.SeekStart); err != nil {
		w.abandon()
		return nil, err
	}
	w.builder = newFileBuilder(f)
	return w, nil
}

// abandon removes the file.
func (w *cacheWriter) abandon() {
	w.f.Close()
	os.Remove(w.f.Name())
}

// finish completes the file, gives it its name and maps it.
func (w *cacheWriter) finish(vocabSize int) (*part, error) {
	p, err := w.builder.finish()
	if err != nil {
		w.abandon()
		return nil, err
	}
	note := p.firstBad[:min(len(p.firstBad), maxNoteBytes)]
	id := w.key.Bytes()
	header := append(append([]byte(nil), cacheMagic...), id[:]...)
	for _, v := range []uint64{uint64(len(p.ends)), uint64(w.n), uint64(p.skipped), uint64(len(note))} {
		header = binary.LittleEndian.AppendUint64(header, v)
	}
	header = append(header, p.run.sum[:]...)
	header = binary.LittleEndian.AppendUint64(header, checkHeader(header, note))
	_, err = w.f.WriteString(note)
	if err == nil {
		_, err = w.f.WriteAt(header, 0)
	}
	// No sync: a file that a crash tears fails its checksum and is made anew.
	if err == nil {
		err = os.Rename(w.f.Name(), cachePath(w.dir, w.key))
	}
	if err != nil {
		w.abandon()
		return nil, err
	}
	defer w.f.Close()
	return mapCache(w.f, w.key, vocabSize)
}
