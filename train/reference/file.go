package reference

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/vfs"
)

// A file has the log-probabilities of all documents of a part, in their order, by chunks of documents. A token has one
// number, its log-probability, or of a teacher 2K: the K likeliest tokens in its place (int32), the likeliest first,
// and then their log-probabilities.
//
//	magic      8 bytes, with the format's version
//	key        16 bytes, as in the name
//	chunks, each:
//	  first    uint64, number of its first document
//	  count    uint64, documents
//	  values   uint64, how many follow
//	  values   4 bytes each, float32 except tokens: of each document, of every token after its first
//	  check    uint64, xxh3-64 of the key and of the chunk before this
//
// Integers are little-endian. A file that is being made has another name; its whole chunks count, and an evaluation
// that was stopped continues after the last of them. Once complete it gets its name, and is never changed after.
var fileMagic = []byte("mrlogpr1")

const (
	headerBytes = 8 + 16
	chunkHeader = 3 * 8
	checkBytes  = 8
)

// Bounds of a chunk: it ends before the document with which it would have more. An evaluation that is killed loses a
// chunk.
const (
	chunkDocuments = 1024
	chunkTokens    = 32 << 10 // fewer of more than wideToken numbers each
	wideToken      = 128
)

// FileSuffix ends the names of files.
const FileSuffix = ".logprobs"

// Temporary files have such names, and one that is older is of a process that is gone.
const (
	tempNames      = "new-*" + FileSuffix
	abandonedAfter = 7 * 24 * time.Hour
)

// chunk is a row of documents.
type chunk struct {
	first, count int
	values       int64
	at           int64 // offset of its values in the file
}

// chunksOf cuts the documents of a part, each with rowLen tokens at most, which have that many numbers each.
func chunksOf(p data.Part, rowLen, width int) (all []chunk) {
	at, tokens, most := int64(headerBytes), 0, chunkTokens/max(width/wideToken, 1)
	for i := range p.Len() {
		n := min(p.Length(i), rowLen)
		if len(all) == 0 || all[len(all)-1].count == chunkDocuments || tokens+n > most {
			if len(all) > 0 {
				at += 4*all[len(all)-1].values + checkBytes
			}
			at += chunkHeader
			all, tokens = append(all, chunk{first: i, at: at}), 0
		}
		c := &all[len(all)-1]
		c.count, c.values, tokens = c.count+1, c.values+int64(width*(n-1)), tokens+n
	}
	return all
}

// file is a file with its part.
type file struct {
	part   data.Part
	rowLen int
	width  int // numbers of a token
	key    xxh3.Uint128
	chunks []chunk
	f      *os.File
	whole  int       // chunks that are there
	path   string    // of the whole file; open makes one of the key where it is empty
	lock   io.Closer // of a file that is being made; nil: no other process makes it
	isTemp bool      // it is gone when it is closed
}

// bytes is the length of a whole file.
func (f *file) bytes() int64 {
	if len(f.chunks) == 0 {
		return headerBytes
	}
	last := f.chunks[len(f.chunks)-1]
	return last.at + 4*last.values + checkBytes
}

func (f *file) isWhole() bool { return f.whole == len(f.chunks) }

// open finds the file in a directory, as far as it was made. Without a directory it is a temporary one.
func (f *file) open(dir string) (err error) {
	f.chunks = chunksOf(f.part, f.rowLen, f.width)
	if dir == "" {
		return f.openTemp("")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if f.path == "" {
		f.path = filepath.Join(dir, fmt.Sprintf("%x%s", f.key.Bytes(), FileSuffix))
	}
	if f.f, err = vfs.OpenRegular(f.path); err == nil {
		if err := f.check(); err == nil && f.isWhole() {
			return nil
		}
		if err := errors.Join(f.f.Close(), os.Remove(f.path)); err != nil { // it is damaged
			return err
		}
	}
	part := f.path + ".part"
	lock, err := vfs.OS{}.Lock(part)
	if errors.Is(err, vfs.ErrLocked) { // another process makes the same
		return f.openTemp(dir)
	}
	if err != nil {
		return err
	}
	f.lock = lock
	if f.f, err = os.OpenFile(part, os.O_RDWR, 0o600); err != nil {
		return err
	}
	if f.check() != nil {
		f.whole = 0
	}
	if err := f.begin(); err != nil || !f.isWhole() {
		return err
	}
	return f.finish() // all but its name was there
}

// openTemp makes a file of a name that no other process has, and removes those of processes that were killed.
func (f *file) openTemp(dir string) (err error) {
	if f.isTemp = dir == ""; !f.isTemp {
		old, _ := filepath.Glob(filepath.Join(filepath.Dir(f.path), tempNames))
		for _, name := range old {
			if info, err := os.Stat(name); err == nil && time.Since(info.ModTime()) > abandonedAfter {
				os.Remove(name) // if that fails, the file does no harm
			}
		}
	}
	if f.f, err = os.CreateTemp(dir, tempNames); err != nil {
		return err
	}
	return f.begin()
}

// begin cuts off what is no whole chunk, and writes the header.
func (f *file) begin() error {
	end := int64(headerBytes)
	if f.whole > 0 {
		c := f.chunks[f.whole-1]
		end = c.at + 4*c.values + checkBytes
	}
	if err := f.f.Truncate(end); err != nil {
		return err
	}
	key := f.key.Bytes()
	_, err := f.f.WriteAt(append(bytes.Clone(fileMagic), key[:]...), 0)
	return err
}

// check counts the whole chunks from the beginning on. An error says that the file has another header.
func (f *file) check() error {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return errors.New("numbers are not read in place on this machine")
	}
	in := bufio.NewReaderSize(io.NewSectionReader(f.f, 0, math.MaxInt64), 1<<20)
	header, key := make([]byte, headerBytes), f.key.Bytes()
	if _, err := io.ReadFull(in, header); err != nil || !bytes.Equal(header[:8], fileMagic) || !bytes.Equal(header[8:],
		key[:]) {
		return errors.New("not a file of this key")
	}
	var buf []byte
	for f.whole = 0; f.whole < len(f.chunks); f.whole++ {
		c := f.chunks[f.whole]
		buf = slices.Grow(buf[:0], int(chunkHeader+4*c.values+checkBytes))[:chunkHeader+4*c.values+checkBytes]
		if _, err := io.ReadFull(in, buf); err != nil || !f.isChunk(c, buf) {
			break
		}
	}
	return nil
}

// isChunk reports whether bytes are those of a chunk.
func (f *file) isChunk(c chunk, b []byte) bool {
	body := b[:len(b)-checkBytes]
	return bytes.Equal(body[:chunkHeader], c.header()) && binary.LittleEndian.Uint64(b[len(body):]) == f.sum(body)
}

func (c chunk) header() (b []byte) {
	for _, v := range []uint64{uint64(c.first), uint64(c.count), uint64(c.values)} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

func (f *file) sum(body []byte) uint64 {
	h, key := xxh3.New(), f.key.Bytes()
	h.Write(key[:]) // a hash does not fail
	h.Write(body)
	return h.Sum64()
}

// append writes the next chunk. On this machine numbers are in memory as they are in files (check).
func (f *file) append(values []byte) error {
	c := f.chunks[f.whole]
	b := append(slices.Grow(c.header(), len(values)+checkBytes), values...)
	b = binary.LittleEndian.AppendUint64(b, f.sum(b))
	if _, err := f.f.WriteAt(b, c.at-chunkHeader); err != nil {
		return err
	}
	f.whole++
	return nil
}

// finish gives a whole file its name. A crash that tears it is found by its checksums.
func (f *file) finish() error {
	if f.isTemp {
		return nil
	}
	if err := os.Rename(f.f.Name(), f.path); err != nil {
		return err
	}
	if f.lock == nil {
		return nil
	}
	err := f.lock.Close()
	f.lock = nil
	return err
}

// read reads the numbers of a document's tokens after the first.
func (f *file) read(dst []byte, document int) error {
	if len(dst) == 0 {
		return nil
	}
	i, found := slices.BinarySearchFunc(f.chunks, document, func(c chunk, d int) int { return c.first - d })
	if !found {
		i--
	}
	at := f.chunks[i].at
	for d := f.chunks[i].first; d < document; d++ {
		at += 4 * int64(f.width*(min(f.part.Length(d), f.rowLen)-1))
	}
	if n, err := f.f.ReadAt(dst, at); n < len(dst) {
		return fmt.Errorf("read the reference's log-probabilities: %w: the file was changed while it was used; start again",
			err)
	}
	return nil
}

func (f *file) close() (err error) {
	if f.f != nil {
		err = f.f.Close()
	}
	if f.f != nil && (f.isTemp || !f.isWhole() && f.lock == nil) {
		err = errors.Join(err, os.Remove(f.f.Name()))
	}
	if f.lock != nil {
		err = errors.Join(err, f.lock.Close())
	}
	return err
}
