package hf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"sort"

	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/vfs"
)

// DefaultShardBytes is the size at which transformers starts a new shard.
const DefaultShardBytes = 5_000_000_000

// WriteOptions say how a model directory is written. The zero value is good.
type WriteOptions struct {
	ShardBytes int64 // most tensor bytes in a file, unless one tensor alone has more; 0: DefaultShardBytes
	Replace    bool  // an existing model directory is replaced, in one step; else it is an error

	// Staged, unless it is nil, is called with the directory's temporary name when all its files are whole and durable,
	// right before it becomes visible. If it returns an error, Commit fails.
	Staged func(dir string) error

	// Written, unless it is nil, is told of the bytes that Write appends to a tensor.
	Written func(tensor string, bytes []byte)

	FS vfs.FS // to write the directory to; nil: the operating system's
}

// ModelWriter writes a model directory: weights in one file or in shards with an index, and small files. All tensors
// are declared first; then their bytes are written, in pieces of any length. Nothing is visible at the directory's path
// before Commit, which needs all tensors and a config.json.
type ModelWriter struct {
	dir     *staging
	replace bool
	staged  func(dir string) error
	written func(tensor string, bytes []byte)
	shards  [][]TensorSpec
	shardOf map[string]int       // of a tensor, by its name
	open    map[int]*shardWriter // shards that are being written
	done    []bool               // shards that are complete and closed
	files   map[string]bool
}

// CreateModel starts a model directory at dir. End it with Commit or Abort.
func CreateModel(dir string, specs []TensorSpec, opts WriteOptions) (*ModelWriter, error) {
	if err := checkSpecs(specs); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	if len(specs) == 0 {
		return nil, fmt.Errorf("%s: a model without tensors", dir)
	}
	if opts.ShardBytes <= 0 {
		opts.ShardBytes = DefaultShardBytes
	}
	if opts.FS == nil {
		opts.FS = vfs.OS{}
	}
	st, err := stage(opts.FS, dir, opts.Replace)
	if err != nil {
		return nil, err
	}
	w := &ModelWriter{dir: st, replace: opts.Replace, staged: opts.Staged,
		written: opts.Written, shards: splitShards(specs, opts.ShardBytes),
		shardOf: make(map[string]int, len(specs)), open: map[int]*shardWriter{}, files: map[string]bool{}}
	w.done = make([]bool, len(w.shards))
	for i, shard := range w.shards {
		for _, s := range shard {
			w.shardOf[s.Name] = i
		}
	}
	if err := w.openShard(0); err != nil {
		w.Abort()
		return nil, fmt.Errorf("%s cannot be written: %w", dir, err)
	}
	return w, nil
}

// splitShards fills shards in order, as transformers does.
func splitShards(specs []TensorSpec, limit int64) [][]TensorSpec {
	var shards [][]TensorSpec
	var size int64
	start := 0
	for i, s := range specs {
		if i > start && size+s.Bytes() > limit {
			shards, start, size = append(shards, specs[start:i]), i, 0
		}
		size += s.Bytes()
	}
	return append(shards, specs[start:])
}

func (w *ModelWriter) shardName(i int) string {
	if len(w.shards) == 1 {
		return weightsName
	}
	return fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(w.shards))
}

// openShard starts a shard, and ends it if all of its tensors are empty.
func (w *ModelWriter) openShard(i int) error {
	f, err := w.dir.fs.Create(w.dir.path(w.shardName(i)))
	if err != nil {
		return err
	}
	body, err := startShard(f, w.shards[i])
	if err != nil {
		f.Close()
		return err
	}
	w.open[i] = &body
	return w.closeComplete(i)
}

// closeComplete closes a shard that is open if it is complete, after it was read back.
func (w *ModelWriter) closeComplete(i int) error {
	body := w.open[i]
	if body.finish() != nil {
		return nil // there is something to write
	}
	err := body.f.Sync()
	if err == nil {
		err = body.readBack()
	}
	w.done[i] = true
	delete(w.open, i)
	return cmp.Or(err, body.f.Close())
}

// Write appends little-endian bytes to the named tensor. Tensors may be written in any order, and in turns; a file
// stays open from the first byte of its tensors to their last one.
func (w *ModelWriter) Write(name string, p []byte) error {
	i, ok := w.shardOf[name]
	err := error(nil)
	switch {
	case !ok:
		err = fmt.Errorf("tensor %s is not among the declared ones", terminal.Quote(name))
	case w.done[i]:
		err = fmt.Errorf("tensor %s: all tensors of its file are complete", terminal.Quote(name))
	case w.open[i] == nil:
		err = w.openShard(i)
	}
	if err == nil {
		err = w.open[i].write(name, p)
	}
	if err == nil && w.written != nil {
		w.written(name, p)
	}
	if err == nil {
		err = w.closeComplete(i)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", w.dir.target, err)
	}
	return nil
}

// AddFile writes a small file, such as config.json, into the directory. A name with a slash is that of a chat template.
func (w *ModelWriter) AddFile(name string, data []byte) error {
	if err := w.dir.writeFile(name, data); err != nil {
		return fmt.Errorf("%s: %w", w.dir.target, err)
	}
	w.files[name] = true
	return nil
}

// AddParts is AddFile of a file that a function writes part by part, so that memory need not hold it.
func (w *ModelWriter) AddParts(name string, write func(io.Writer) error) error {
	if err := w.dir.writeParts(name, write); err != nil {
		return fmt.Errorf("%s: %w", w.dir.target, err)
	}
	w.files[name] = true
	return nil
}

// AddSidecars copies the generation config and the tokenizer's files (see Sidecars) of another model directory.
func (w *ModelWriter) AddSidecars(src string) error {
	names, err := Sidecars(src)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := w.AddSidecar(src, name); err != nil {
			return err
		}
	}
	return nil
}

// AddSidecar copies one of them.
func (w *ModelWriter) AddSidecar(src, name string) error {
	if err := w.addSidecar(src, name); err != nil {
		return fmt.Errorf("%s: %w", w.dir.target, err)
	}
	w.files[name] = true
	return nil
}

func (w *ModelWriter) addSidecar(src, name string) error {
	in, err := openSidecar(src, name)
	if err != nil {
		return err
	}
	defer in.Close()
	return w.dir.copyFile(name, io.LimitReader(in, maxSidecarBytes))
}

// Commit writes the index, syncs everything and makes the directory visible. If it fails, everything is removed and the
// target is as it was.
func (w *ModelWriter) Commit() error {
	if w.dir == nil {
		return errors.New("the model directory is already committed or aborted")
	}
	target := w.dir.target
	if err := w.commit(); err != nil {
		w.Abort()
		return fmt.Errorf("%s: %w", target, err)
	}
	w.dir = nil
	return nil
}

func (w *ModelWriter) commit() error {
	for i := range w.shards {
		if !w.done[i] && w.open[i] == nil { // none of its tensors was written
			if err := w.openShard(i); err != nil {
				return err
			}
		}
		if !w.done[i] {
			return w.open[i].finish()
		}
	}
	if !w.files[configName] {
		return fmt.Errorf("a model directory needs a %s", configName)
	}
	if len(w.shards) > 1 {
		if err := w.dir.writeFile(indexName, w.index()); err != nil {
			return err
		}
	}
	return w.dir.commit(w.replace, w.staged)
}

// index is model.safetensors.index.json in the form that transformers writes.
func (w *ModelWriter) index() []byte {
	var total int64
	shardOf := map[string]string{}
	var names []string
	for i, specs := range w.shards {
		for _, s := range specs {
			total += s.Bytes()
			shardOf[s.Name] = w.shardName(i)
			names = append(names, s.Name)
		}
	}
	sort.Strings(names)
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\n  \"metadata\": {\n    \"total_size\": %d\n  },\n  \"weight_map\": {\n", total)
	for i, name := range names {
		key, _ := json.Marshal(name) // a string always marshals
		comma := ","
		if i == len(names)-1 {
			comma = ""
		}
		fmt.Fprintf(&b, "    %s: \"%s\"%s\n", key, shardOf[name], comma)
	}
	b.WriteString("  }\n}\n")
	return b.Bytes()
}

// Abort removes what was written. After Commit it does nothing, so it can be deferred.
func (w *ModelWriter) Abort() {
	if w.dir == nil {
		return
	}
	for _, body := range w.open {
		body.f.Close()
	}
	clear(w.open)
	w.dir.abort()
	w.dir = nil
}

// Model has what WriteModel writes.
type Model struct {
	Config   []byte // the text of config.json, such as Config.WithDType returns
	Sidecars string // a model directory whose sidecar files are carried through; "": none
	Tensors  []TensorSpec
	// Data yields the bytes of all tensors in the order of Tensors, each in one or more pieces under its tensor's name. A
	// piece is used only until the next one is asked for. The iterator ends early only with an error.
	Data iter.Seq2[Piece, error]
}

// Piece is the next bytes of a tensor, little-endian.
type Piece struct {
	Name  string
	Bytes []byte
}

// WriteModel writes a model directory from an iterator over tensors. On any error no file is left.
func WriteModel(dir string, m Model, opts WriteOptions) error {
	w, err := CreateModel(dir, m.Tensors, opts)
	if err != nil {
		return err
	}
	defer w.Abort()
	if err := w.AddFile(configName, m.Config); err != nil {
		return err
	}
	if m.Sidecars != "" {
		if err := w.AddSidecars(m.Sidecars); err != nil {
			return err
		}
	}
	for p, err := range m.Data {
		if err != nil {
			return err
		}
		if err := w.Write(p.Name, p.Bytes); err != nil {
			return err
		}
	}
	return w.Commit()
}
