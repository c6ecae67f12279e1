package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/internal/surroundings"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/vfs"
)

// The state of a small run: extents of one piece, of pieces of which the last is short, and of pieces that are all
// alike.
var (
	weights = Spec{ID{"block.0", store.Weights}, tensor.BF16, 100, 40}
	low     = Spec{ID{"block.0", store.Low}, tensor.I16, 80, 40}
	moments = Spec{ID{"block.0", store.FirstMoment}, tensor.F32, 200, 80}
	norm    = Spec{ID{"norm", store.Weights}, tensor.BF16, 16, 40}
	specs   = []Spec{weights, low, moments, norm}
)

// ours is the run of most tests.
var ours = Owner{Run: "00112233445566778899aabbccddeeff"}

const (
	root       = "out/checkpoints"
	configText = `{"model_type": "qwen3"}`
)

// onDisk are the extents whose pieces a store has in files.
func onDisk(s Spec) bool { return s.Kind == store.FirstMoment }

// contents are the bytes of an extent at a step.
func contents(s Spec, step int) []byte {
	r := rand.NewChaCha8([32]byte(fmt.Appendf(nil, "%-32.32s", fmt.Sprint(step, s.ID))))
	b := make([]byte, s.Bytes)
	r.Read(b)
	return b
}

// manifestOf makes the manifest of a step.
func manifestOf(step int) Manifest {
	loss := 1 / float64(step+1)
	return Manifest{
		Updates: int64(step) - 1, SkippedUpdates: 1, Model: Model{Type: "qwen3", ConfigSHA256: "c0", LayoutSHA256: "1a"},
		Numerics:    json.RawMessage(`{"Compute":"bf16"}`),
		Mathematics: map[string]string{"learning_rate": "1e-05", "seed": "42"},
		ComputedOn:  "CPU, AVX2",
		MomentCodes: "at random",
		Algorithms:  []string{"4x4x4: 01"},
		Data:        json.RawMessage(`{"cursor":{"epoch":0,"row":7},"fingerprint":"<a&b>"}`),
		EvalLoss:    &loss, Best: &Best{step, loss},
	}
}

// run is a run that saves: the pieces of its disk tier are in pool.
type run struct {
	fsys     vfs.FS
	pool     string
	versions int
	*Directory
}

func acquire(fsys vfs.FS, dir string) (*run, error) {
	d, err := Acquire(fsys, dir, ours)
	if err != nil {
		return nil, err
	}
	pool := filepath.Join(filepath.Dir(dir), "pool")
	return &run{fsys: fsys, pool: pool, Directory: d}, vfs.RemoveAll(fsys, pool) // as a store does when it starts
}

func (r *run) save(step int) (string, error) {
	w, err := r.Create(step, specs)
	if err != nil {
		return "", err
	}
	defer w.Abort()
	if err := r.fill(w, step); err != nil {
		return "", err
	}
	return w.Commit(manifestOf(step))
}

func (r *run) prune(latest, keep, best int) ([]int, error) {
	done, err := r.Prune(context.Background(), latest, keep, best)
	return done.Removed, err
}

func (r *run) fill(w *Writer, step int) error {
	for _, s := range specs {
		if err := r.add(w, step, s); err != nil {
			return err
		}
	}
	return w.Attach("config.json", []byte(configText))
}

// add saves an extent.
func (r *run) add(w *Writer, step int, s Spec) error {
	data := contents(s, step)
	for i := s.Pieces() - 1; i >= 0; i-- { // any order will do
		off, n := s.piece(i)
		piece := data[off : off+n]
		if !onDisk(s) {
			if err := w.Add(s.ID, i, piece); err != nil {
				return err
			}
			continue
		}
		path, err := r.version(piece)
		if err != nil {
			return err
		}
		if err := w.Link(s.ID, i, path, xxh3.Hash(piece)); err != nil {
			return err
		}
	}
	return nil
}

// version writes a piece as a store would: into a new file that is a whole number of blocks long, durably.
func (r *run) version(data []byte) (string, error) {
	if err := r.fsys.MkdirAll(r.pool, 0o777); err != nil {
		return "", err
	}
	r.versions++
	path := filepath.Join(r.pool, fmt.Sprint("version-", r.versions))
	f, err := r.fsys.Create(path)
	if err != nil {
		return "", err
	}
	_, err = f.Write(append(bytes.Clone(data), make([]byte, 16)...))
	return path, firstOf(err, f.Sync(), f.Close())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start acquires and saves the steps.
func start(t testing.TB, fsys vfs.FS, dir string, steps ...int) *run {
	t.Helper()
	r, err := acquire(fsys, dir)
	must(t, err)
	for _, step := range steps {
		_, err := r.save(step)
		must(t, err)
	}
	return r
}

// whole is nil if a checkpoint verifies and is that of its step, to the byte.
func whole(c *Checkpoint) error {
	if err := c.Verify(context.Background(), nil); err != nil {
		return err
	}
	step := c.Manifest.Step
	want := manifestOf(step)
	if c.Manifest.Updates != want.Updates || *c.Manifest.EvalLoss != *want.EvalLoss || len(Compare(c.Manifest, want.Mathematics)) > 0 {
		return fmt.Errorf("%s: the manifest is not that of step %d", c.Dir(), step)
	}
	for _, s := range specs {
		for i := range s.Pieces() {
			off, n := s.piece(i)
			got := make([]byte, n)
			if err := c.ReadPiece(s.ID, i, got); err != nil {
				return err
			}
			if !bytes.Equal(got, contents(s, step)[off:off+n]) {
				return fmt.Errorf("%s: piece %d of %v is another one's", c.Dir(), i, s.ID)
			}
		}
	}
	if text, ok, err := c.Attachment("config.json"); err != nil || !ok || string(text) != configText {
		return fmt.Errorf("%s: attachment %q, %v", c.Dir(), text, err)
	}
	return nil
}

// onBoth runs a test in memory and on the system.
func onBoth(t *testing.T, f func(t *testing.T, fsys vfs.FS, dir string)) {
	t.Run("Mem", func(t *testing.T) { f(t, vfs.NewMem(), root) })
	t.Run("OS", func(t *testing.T) { f(t, vfs.OS{}, filepath.Join(t.TempDir(), root)) })
}

func names(t testing.TB, fsys vfs.FS, dir string) []string {
	t.Helper()
	entries, err := fsys.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range entries {
		if e.Name() != lockName {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestMain(m *testing.M) {
	if dir := os.Getenv(victimEnv); dir != "" {
		os.Exit(victim(dir))
	}
	if err := surroundings.Leave(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
