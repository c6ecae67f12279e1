package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/tensor"
)

// mostHashedBytes bounds what Load hashes of a directory to compare with a server.
const mostHashedBytes = 256 << 20

// mostRows is the number of tensors whose first rows are asked for.
const mostRows = 4

// compare holds what the server says of its tensors against the files: their first rows and their checksums, where it
// can tell. Tensors that are equal there, or have changed as in the files, are counted. Others say nothing: a server
// may have several as one, in parts, or in fewer bits. It is an error if the server still has what it had before.
func (s *server) compare(ctx context.Context, before, now *loaded, h *Handover) error {
	if now.manifest == nil {
		return nil
	}
	if before == nil || before.manifest == nil {
		before = &loaded{manifest: &Manifest{}}
	}
	var changed []string
	for _, name := range slices.Sorted(maps.Keys(now.manifest.Tensors)) {
		if before.manifest.Tensors[name] != now.manifest.Tensors[name] {
			changed = append(changed, name)
		}
	}
	if err := s.compareRows(ctx, before, now, changed, h); err != nil {
		return err
	}
	var err error
	now.digests, err = s.engine.digests(ctx)
	if errors.Is(err, errUnknown) {
		return nil
	}
	if err != nil {
		return err
	}
	changed = slices.DeleteFunc(changed, func(name string) bool { return now.digests[name] == "" })
	same, err := equal(ctx, now.dir, now.manifest, changed, now.digests)
	if h.Tensors = max(h.Tensors, same); err != nil || before.digests == nil {
		return err
	}
	for _, name := range changed {
		if before.digests[name] != now.digests[name] {
			h.Moved++
		}
	}
	if len(changed) > 0 && h.Moved == 0 {
		return fmt.Errorf("none of its tensors has changed, and %d have in %s: %w", len(changed), now.dir, errOld)
	}
	return nil
}

// errOld ends a run whose server would sample with other weights than it is said to have.
var errOld = errors.New("the server still has old weights")

// compareRows asks for the first rows of some tensors that have changed there.
func (s *server) compareRows(ctx context.Context, before, now *loaded, changed []string, h *Handover) error {
	asked := 0
	for i := 0; i < len(changed) && asked < mostRows; i += max(1, len(changed)/(4*mostRows)) {
		name := changed[i]
		row, err := firstRow(now.dir, name)
		if err != nil {
			return err
		}
		was, err := firstRow(before.dir, name)
		if hasBefore := err == nil; hasBefore && slices.Equal(was, row) {
			continue
		}
		has, err := s.engine.row(ctx, name)
		if errors.Is(err, errUnknown) {
			return nil
		}
		if err != nil {
			return err
		}
		asked++
		n := min(len(has), len(row))
		switch {
		case n > 0 && slices.Equal(has[:n], row[:n]):
			h.Tensors++
		case n > 0 && len(was) >= n && slices.Equal(has[:n], was[:n]):
			return fmt.Errorf("tensor %s has the numbers of the weights %d: %w", name, before.version, errOld)
		}
	}
	return nil
}

// firstRow is the first row of a matrix, or a whole vector, of a directory.
func firstRow(dir, name string) ([]float32, error) {
	if dir == "" {
		return nil, errUnknown
	}
	w, err := hf.OpenWeights(dir)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	info, ok := w.Info(name)
	if !ok || len(info.Shape) == 0 || info.DType == tensor.Invalid {
		return nil, nil
	}
	row := make([]float32, info.Shape[len(info.Shape)-1])
	return row, w.ReadF32(name, row, 0)
}

// equal counts the tensors whose SHA-256 the server has as well, in hexadecimal, of as many as mostHashedBytes have.
func equal(ctx context.Context, dir string, m *Manifest, names []string, digests map[string]string) (n int, err error) {
	left := int64(mostHashedBytes)
	w, err := hf.OpenWeights(dir)
	if err != nil {
		return 0, err
	}
	defer w.Close()
	for _, name := range names {
		if len(digests[name]) != 2*sha256.Size || m.Tensors[name].Bytes > left {
			continue
		}
		left -= m.Tensors[name].Bytes
		sum := sha256.New()
		if err := readTensor(ctx, w, name, m.Tensors[name].Bytes, sum); err != nil {
			return n, err
		}
		if fmt.Sprintf("%x", sum.Sum(nil)) == digests[name] {
			n++
		}
	}
	return n, nil
}

// readPiece is read of a tensor at a time.
const readPiece = 1 << 20

// readTensor writes the bytes of a tensor's file.
func readTensor(ctx context.Context, w *hf.Weights, name string, bytes int64, to io.Writer) error {
	buf := make([]byte, min(readPiece, bytes))
	for off := int64(0); off < bytes; off += readPiece {
		if err := ctx.Err(); err != nil {
			return err
		}
		piece := buf[:min(readPiece, bytes-off)]
		if err := w.ReadAt(name, piece, off); err != nil {
			return err
		}
		if _, err := to.Write(piece); err != nil {
			return err
		}
	}
	return nil
}
