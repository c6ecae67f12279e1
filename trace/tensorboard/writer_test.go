package tensorboard_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/surroundings"
	"github.com/millrace/millrace/trace/tensorboard"
	"github.com/millrace/millrace/trace/tensorboard/tensorboardtest"
	"github.com/millrace/millrace/vfs"
)

func TestMain(m *testing.M) { os.Exit(surroundings.Run(m)) }

// The checksum of the text "123456789" by CRC-32C is 0xe3069283 (RFC 3720, appendix B.4, has others); masked as
// TFRecord does it is another number.
func TestMaskedCRC(t *testing.T) {
	sum := uint32(0xe3069283)
	if got, want := tensorboard.MaskedCRC([]byte("123456789")), (sum>>15|sum<<17)+0xa282ead8; got != want {
		t.Errorf("%08x, want %08x", got, want)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// create begins a file, which the test closes.
func create(t *testing.T, fsys vfs.FS, dir string, first int64) (*tensorboard.Writer, bool) {
	t.Helper()
	w, isFirst, err := tensorboard.Create(fsys, dir, first, 1.5)
	ok(t, err)
	t.Cleanup(func() { w.Close() })
	return w, isFirst
}

// A reader finds what was written; a later file takes the steps that it begins with; a run that begins again from its
// first step has no other.
func TestWriter(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "board")
	w, isFirst := create(t, vfs.OS{}, dir, 0)
	ok(t, w.Begin(1.5, []tensorboard.Setting{{"learning_rate", "1e-05"}, {"save.best", "true"}, {"model", "a\xffb"},
		{"seed", "42"}, {"off", "false"}, {"tokenizer", "nan"}}, "run"))
	for step := range int64(5) {
		ok(t, w.Scalars(2.5, step, []tensorboard.Scalar{{"loss", 1 / float64(step+1)}, {"lanes/fetch", math.NaN()}}))
		ok(t, w.Text(2.5, step, "samples/1", strings.Repeat("x", int(step)*100)))
	}
	again, second := create(t, vfs.OS{}, dir, 3)
	for step := int64(3); step < 5; step++ {
		ok(t, again.Scalars(3.5, step, []tensorboard.Scalar{{"loss", -float64(step)}}))
	}
	ok(t, again.End(4, 4, tensorboard.Succeeded))
	got, err := tensorboardtest.Read(dir)
	ok(t, err)
	third := 1 / float64(3)
	want := &tensorboardtest.Run{Files: 2, Scalars: map[string][]tensorboardtest.Point{"loss": {
		tensorboardtest.At(0, 2.5, 1), tensorboardtest.At(1, 2.5, 0.5), tensorboardtest.At(2, 2.5, float32(third)),
		tensorboardtest.At(3, 3.5, -3), tensorboardtest.At(4, 3.5, -4)}},
		Texts:  map[string]map[int64]string{"samples/1": {0: "", 1: strings.Repeat("x", 100), 2: strings.Repeat("x", 200)}},
		Status: 1, Settings: map[string]any{"learning_rate": 1e-5, "save.best": true,
			"model": "a\uFFFDb", "seed": float64(42), "off": false, "tokenizer": "nan"}}
	if d := cmp.Diff(want, got); d != "" || !isFirst || second {
		t.Errorf("first %v and %v, -want +got\n%s", isFirst, second, d)
	}
	ok(t, os.WriteFile(filepath.Join(dir, "events.out.tfevents.1.elsewhere"), nil, 0o644))
	if _, isFirst = create(t, vfs.OS{}, dir, 0); !isFirst {
		t.Error("a run that begins again has earlier files")
	}
	if got, err = tensorboardtest.Read(dir); err != nil || got.Files != 2 || len(got.Scalars)+len(got.Settings) != 0 {
		t.Errorf("%+v (%v), want an empty file, and that of another program", got, err)
	}
}

// A record that could not be written leaves the file as it was, whole.
func TestFullDisk(t *testing.T) {
	fsys := vfs.NewFaulty(vfs.OS{})
	dir := t.TempDir()
	w, _ := create(t, fsys, dir, 0)
	ok(t, w.Scalars(1, 1, []tensorboard.Scalar{{"loss", 1}}))
	fsys.Intercept(vfs.ShortNth(fsys.Ops()+1, syscall.ENOSPC))
	if err := w.Scalars(1, 2, []tensorboard.Scalar{{"loss", 2}}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("error %v", err)
	}
	fsys.Intercept(nil)
	ok(t, w.Scalars(1, 3, []tensorboard.Scalar{{"loss", 3}}))
	got, err := tensorboardtest.Read(dir)
	ok(t, err)
	want := []tensorboardtest.Point{tensorboardtest.At(1, 1, 1), tensorboardtest.At(3, 1, 3)}
	if d := cmp.Diff(want, got.Scalars["loss"]); d != "" {
		t.Error(d)
	}
}
