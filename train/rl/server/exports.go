package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/vfs"
)

// Manifest lists the tensors of a directory of weights. It is the file next to the directory, with .json at the end of
// its name.
type Manifest struct {
	Version int64                `json:"version"` // of the weights
	Bytes   int64                `json:"bytes"`   // of all tensors
	Tensors map[string]TensorSum `json:"tensors"` // by the names that the files have
}

// TensorSum is the checksum of a tensor's bytes, little-endian, in the order of its elements.
type TensorSum struct {
	Bytes int64  `json:"bytes"`
	XXH3  string `json:"xxh3"` // 64 bits, 16 hexadecimal digits
}

// mostManifestBytes has room for a million tensors.
const mostManifestBytes = 128 << 20

// ReadManifest reads the manifest of a directory. It is nil for a directory that has none.
func ReadManifest(dir string) (*Manifest, error) {
	name := dir + ".json"
	doc, err := vfs.ReadFile(vfs.OS{}, name, mostManifestBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	m := &Manifest{}
	if err == nil {
		err = budget.Unmarshal(doc, m)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: remove it and %s", name, err, dir)
	}
	return m, nil
}

// Exports are two directories, a and b, through which versions of weights are handed over in turns. The one that the
// server has stays until it has the other.
type Exports struct {
	fs      vfs.FS
	dir     string
	current string // a or b: what was written last; "": nothing
}

var exportNames = [2]string{"a", "b"}

// Needs returns the room in bytes that hand-overs of weights take besides what is there: two copies of them, of
// which the directory that was written last is one.
func (e *Exports) Needs(bytes int64) int64 {
	if e.current != "" {
		return bytes
	}
	return 2 * bytes
}

// OpenExports makes the directory that has the two, and removes what a killed process has left half written there. It
// refuses a directory that has other files.
func OpenExports(fsys vfs.FS, dir string) (*Exports, error) {
	if err := fsys.MkdirAll(dir, 0o775); err != nil {
		return nil, fmt.Errorf("dir: %w", err)
	}
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("dir: %w", err)
	}
	e := &Exports{fs: fsys, dir: dir}
	newest := int64(-1)
	for _, n := range exportNames {
		if err := hf.RemoveStaged(fsys, filepath.Join(dir, n)); err != nil {
			return nil, err
		}
		if m, err := ReadManifest(filepath.Join(dir, n)); err == nil && m != nil && m.Version > newest {
			e.current, newest = n, m.Version
		}
	}
	for _, f := range entries {
		name := strings.TrimPrefix(f.Name(), ".")
		if base, _, _ := strings.Cut(name, "."); base != "a" && base != "b" {
			return nil, fmt.Errorf("dir: %s has %s, which is no weights of a hand-over: name a directory of its own", dir,
				terminal.Quote(f.Name()))
		}
	}
	return e, nil
}

// Write has a function write a version as a Hugging Face directory, with the options that it is given, and returns the
// path. The manifest is of the bytes that the function has given, and Write reads the files again and compares them.
func (e *Exports) Write(ctx context.Context, version int64, write func(dir string, o hf.WriteOptions) error,
) (string, error) {
	name := exportNames[0]
	if e.current == name {
		name = exportNames[1]
	}
	dir := filepath.Join(e.dir, name)
	if err := e.remove(dir + ".json"); err != nil {
		return "", err
	}
	given := map[string]*xxh3.Hasher{}
	m := &Manifest{Version: version, Tensors: map[string]TensorSum{}}
	o := hf.WriteOptions{Replace: true, FS: e.fs, Written: func(tensor string, bytes []byte) {
		if given[tensor] == nil {
			given[tensor] = xxh3.New()
		}
		_, _ = given[tensor].Write(bytes)
		t := m.Tensors[tensor]
		t.Bytes += int64(len(bytes))
		m.Tensors[tensor] = t
		m.Bytes += int64(len(bytes))
	}}
	if err := write(dir, o); err != nil {
		return "", err
	}
	for tensor, h := range given {
		m.Tensors[tensor] = TensorSum{m.Tensors[tensor].Bytes, fmt.Sprintf("%016x", h.Sum64())}
	}
	if err := m.compare(ctx, dir); err != nil {
		return "", err
	}
	doc, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return "", err
	}
	if err := vfs.WriteFileAtomic(e.fs, dir+".json", append(doc, '\n')); err != nil {
		return "", err
	}
	e.current = name
	return dir, nil
}

// compare reads all tensors of a directory, and fails unless they are those of the manifest.
func (m *Manifest) compare(ctx context.Context, dir string) error {
	w, err := hf.OpenWeights(dir)
	if err != nil {
		return err
	}
	defer w.Close()
	found := 0
	for _, joined := range w.Names() {
		for _, name := range w.Stored(joined) {
			want, ok := m.Tensors[name]
			info, _ := w.Info(name)
			h := xxh3.New()
			if ok = ok && info.Bytes == want.Bytes; ok {
				err = readTensor(ctx, w, name, info.Bytes, h)
			}
			if err != nil {
				return err
			}
			if !ok || fmt.Sprintf("%016x", h.Sum64()) != want.XXH3 {
				return fmt.Errorf("%s: tensor %s is not the one that was written: check the drive or the memory", dir,
					terminal.Quote(name))
			}
			found++
		}
	}
	if found != len(m.Tensors) {
		return fmt.Errorf("%s has %d of %d tensors that were written", dir, found, len(m.Tensors))
	}
	return nil
}

// Taken removes the directory that the server had before it took the one that was written last.
func (e *Exports) Taken() error {
	for _, n := range exportNames {
		dir := filepath.Join(e.dir, n)
		if m, err := ReadManifest(dir); n == e.current || m == nil || err != nil {
			continue // without a manifest it is not known to be an export
		}
		if err := vfs.RemoveAll(e.fs, dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := e.remove(dir + ".json"); err != nil {
			return err
		}
	}
	return nil
}

func (e *Exports) remove(name string) error {
	if err := e.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
