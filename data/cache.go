package data

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/hostmem"
)

// The token cache has one file per source, named by the hash of everything that its tokens depend on:
//
//	magic      8 bytes, with the format's version
//	key        16 bytes, as in the name
//	documents  uint64
//	tokens     uint64
//	skipped    uint64, bad rows that were left out
//	note       uint64, bytes
//	columns    uint64, bits: 0 numbers for each document, 1 to 5 the columns of tokens; see columns
//	sum        16 bytes, xxh3-128 of all between check and note
//	check      8 bytes, xxh3-64 of all before and of the note
//	tokens     int32 each, padded to 8 bytes
//	counted    a bit per token, padded to 8 bytes
//	ends       uint64 per document: the tokens of it and of all before
//	numbers    float64 per document, as many as it has
//	columns    float32 per token, padded to 8 bytes, for each that there is
//	note       a cacheNote as JSON
//
// Integers are little-endian. A file is complete before it gets its name, and is never changed after; so two runs that
// make the same file at once do no harm, and one may be removed while another run has it mapped.
var cacheMagic = []byte("mrtoken4")

const cacheHeaderBytes = 8 + 16 + 5*8 + 16 + 8

// cacheNote keeps facts of the rows besides their tokens.
type cacheNote struct {
	FirstBad string     `json:"first_bad,omitempty"` // what was wrong with the first row that was left out
	Equal    int        `json:"equal,omitempty"`     // pairs that were left out
	Turns    TurnCounts `json:"turns"`
	Rewards  []string   `json:"rewards,omitempty"` // names, of rollouts
}

// maxFaultBytes bounds the fault of a row in the note, and maxNoteBytes the note: JSON spells a byte with six at most.
const (
	maxFaultBytes = 4096
	maxNoteBytes  = 6*(maxFaultBytes+mostRewards*mostRewardsBytes) + 8192
)

func cachePath(dir string, key xxh3.Uint128) string {
	return filepath.Join(dir, fmt.Sprintf("%x.tokens", key.Bytes()))
}

// readCache opens the documents kept under key. Any fault of the file is an error; the caller then writes the file
// again.
func readCache(ctx context.Context, dir string, key xxh3.Uint128, vocabSize int, accounts *hostmem.Accounts) (*part, error) {
	f, err := os.Open(cachePath(dir, key))
	if err != nil {
		return nil, err
	}
	return openCache(ctx, f, key, vocabSize, accounts)
}

// openCache takes a file over and checks it.
func openCache(ctx context.Context, f *os.File, key xxh3.Uint128, vocabSize int, accounts *hostmem.Accounts) (*part, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, firstOf(err, f.Close())
	}
	p, err := parseCache(ctx, f, info.Size(), key, vocabSize, accounts)
	if err != nil {
		return nil, firstOf(err, f.Close())
	}
	p.run.from = f
	return p, nil
}

// parseCache checks a cache file, all of which it reads once, unless ctx ends. The tokens stay there.
func parseCache(ctx context.Context, f io.ReaderAt, fileBytes int64, key xxh3.Uint128, vocabSize int, accounts *hostmem.Accounts) (p *part, err error) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil, errors.New("tokens are not read in place on this machine")
	}
	if fileBytes < cacheHeaderBytes {
		return nil, io.ErrUnexpectedEOF
	}
	b := make([]byte, cacheHeaderBytes)
	if err := readAll(f, b, 0); err != nil {
		return nil, err
	}
	id := key.Bytes()
	if !bytes.Equal(b[:8], cacheMagic) || !bytes.Equal(b[8:24], id[:]) {
		return nil, errors.New("not a token file of this key")
	}
	size := uint64(fileBytes)
	number := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	documents, tokens, skipped, noteBytes, has := number(24), number(32), number(40), number(48), columns(number(56))
	words := (tokens + 63) / 64
	columnsAt := cacheHeaderBytes + 4*tokens + tokenPadding(tokens) + 8*words + 8*documents
	if documents > size/8 || tokens > size/4 || noteBytes > maxNoteBytes || skipped > 1<<48 || documents > maxDocuments ||
		!has.areKnown() || size != columnsAt+has.bytes(documents, tokens)+noteBytes {
		return nil, errors.New("the file's size does not match its header")
	}
	note := make([]byte, noteBytes)
	if err := readAll(f, note, fileBytes-int64(noteBytes)); err != nil {
		return nil, err
	}
	if number(80) != checkHeader(b[:80], string(note)) {
		return nil, errors.New("the header's checksum does not match")
	}
	var known cacheNote
	if err := json.Unmarshal(note, &known); err != nil {
		return nil, fmt.Errorf("the note: %w", err)
	}
	p = &part{skipped: int(skipped), firstBad: known.FirstBad, equal: known.Equal, turns: known.Turns,
		rewards: known.Rewards}
	if n := has.numbers(); n > 1 && n != rolloutFields+len(known.Rewards) {
		return nil, errors.New("the note names another number of rewards")
	}
	p.run.has = has
	copy(p.run.sum[:], b[64:80])
	p.run.size = int64(tokens)
	section := func(from, bytes uint64) *io.SectionReader { return io.NewSectionReader(f, int64(from), int64(bytes)) }
	countedAt := cacheHeaderBytes + 4*tokens + tokenPadding(tokens)
	p.run.tokens, p.run.counted = section(cacheHeaderBytes, 4*tokens), section(countedAt, 8*words)
	p.run.columns = has.readers(func(from, bytes uint64) *io.SectionReader { return section(columnsAt+from, bytes) },
		documents, tokens)
	if p.run.index, err = newIndex(accounts, int(documents), has); err != nil {
		return nil, err
	}
	body := &countedReader{ctx: ctx, in: section(cacheHeaderBytes, size-noteBytes-cacheHeaderBytes)}
	err = p.readBody(body, section(columnsAt-8*documents, 8*documents), vocabSize)
	if err = firstOf(err, p.run.readDocumentNumbers(section(columnsAt, size-noteBytes-columnsAt))); err != nil {
		return nil, firstOf(err, p.run.region.Close())
	}
	return p, nil
}

// readBody compares what stands between header and note with its checksum, and makes the index.
func (p *part) readBody(body, ends io.Reader, vocabSize int) error {
	sum := xxh3.New128()
	buf := make([]byte, 1<<20)
	for left := 4 * p.run.size; left > 0; {
		b := buf[:min(int64(len(buf)), left)]
		if _, err := io.ReadFull(body, b); err != nil {
			return err
		}
		for _, id := range hostmem.I32(b) {
			if id < 0 || int(id) >= vocabSize {
				return fmt.Errorf("token %d is not in the vocabulary", id)
			}
		}
		sum.Write(b) // a hash does not fail
		left -= int64(len(b))
	}
	if _, err := io.CopyBuffer(sum, body, buf); err != nil {
		return err
	}
	if sum.Sum128().Bytes() != p.run.sum {
		return errors.New("the checksum does not match")
	}
	if err := p.run.read(ends); err != nil {
		return err
	}
	if n := len(p.run.lengths); n == 0 && p.run.size > 0 || n > 0 && p.run.end(n-1) != p.run.size {
		return errors.New("the documents do not cover the tokens")
	}
	return nil
}

// readAll reads len(b) bytes at an offset.
func readAll(f io.ReaderAt, b []byte, off int64) error {
	if n, err := f.ReadAt(b, off); n < len(b) {
		return err
	}
	return nil
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

// createCache begins a file for key.
func createCache(dir string, key xxh3.Uint128, o Options) (*cacheWriter, error) {
	create := o.cacheFile
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	old, _ := filepath.Glob(filepath.Join(escapeGlob(dir), "new-*.tmp"))
	for _, name := range old {
		if info, err := os.Stat(name); err == nil && time.Since(info.ModTime()) > abandonedAfter {
			os.Remove(name) // if that fails, the file does no harm
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
	if w.builder, err = newFileBuilder(f, func() (*os.File, error) { return create(dir, "new-*.tmp") }); err != nil {
		w.abandon()
		return nil, err
	}
	w.room = newRoom(func() (int64, error) { return o.freeBytes(dir) })
	return w, nil
}

// abandon removes the file.
func (w *cacheWriter) abandon() {
	if w.builder != nil {
		w.discard()
	}
	w.f.Close()
	os.Remove(w.f.Name())
}

// finish completes the file, gives it its name and opens it.
func (w *cacheWriter) finish(ctx context.Context, vocabSize int, accounts *hostmem.Accounts) (*part, error) {
	if err := w.builder.finish(); err != nil {
		w.abandon()
		return nil, err
	}
	note, err := json.Marshal(cacheNote{w.firstBad[:min(len(w.firstBad), maxFaultBytes)], w.equal, w.turns, w.rewards})
	if err != nil {
		w.abandon()
		return nil, err
	}
	id := w.key.Bytes()
	header := append(append([]byte(nil), cacheMagic...), id[:]...)
	for _, v := range []uint64{uint64(w.documents), uint64(w.n), uint64(w.skipped), uint64(len(note)), uint64(w.run.has)} {
		header = binary.LittleEndian.AppendUint64(header, v)
	}
	header = append(header, w.run.sum[:]...)
	header = binary.LittleEndian.AppendUint64(header, checkHeader(header, string(note)))
	_, err = w.f.Write(note)
	if err == nil {
		_, err = w.f.WriteAt(header, 0)
	}
	// No sync: a file that a crash tears fails its checksum and is written again.
	if err == nil {
		err = os.Rename(w.f.Name(), cachePath(w.dir, w.key))
	}
	if err != nil {
		w.abandon()
		return nil, err
	}
	return openCache(ctx, w.f, w.key, vocabSize, accounts)
}
