package hf

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/vfs"
)

func f32Spec(name string, dims ...int) TensorSpec {
	return TensorSpec{Name: name, DType: tensor.F32, Shape: dims}
}

// leftovers are the entries of the directory that holds target, target apart.
func leftovers(t *testing.T, target string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(target))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != filepath.Base(target) {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestModelWriterRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		specs []TensorSpec
		do    func(w *ModelWriter) error
		words []string
	}{
		"no tensors": {nil, nil, []string{"without tensors"}},
		"twice":      {[]TensorSpec{f32Spec("a"), f32Spec("a")}, nil, []string{`"a"`, "twice"}},
		"name":       {[]TensorSpec{f32Spec("__metadata__")}, nil, []string{"name"}},
		"dtype":      {[]TensorSpec{{Name: "a", DType: tensor.I64}}, nil, []string{`"a"`, "i64"}},
		"type":       {[]TensorSpec{{Name: "a", Type: "F9"}}, nil, []string{`"a"`, "F9"}},
		"half a byte": {[]TensorSpec{{Name: "a", Type: "F4", Shape: tensor.Shape{3}}}, nil,
			[]string{`"a"`, "whole bytes"}},
		"too large": {[]TensorSpec{f32Spec("a", 1<<31, 1<<31)}, nil, []string{`"a"`, "too large"}},
		"another tensor": {[]TensorSpec{f32Spec("a", 1)}, func(w *ModelWriter) error {
			return w.Write("b", make([]byte, 4))
		}, []string{`"b"`, "declared"}},
		"too many bytes": {[]TensorSpec{f32Spec("a", 1)}, func(w *ModelWriter) error { return w.Write("a", make([]byte, 5)) }, []string{`"a"`, "5 bytes"}},
		"after the end": {[]TensorSpec{f32Spec("a", 1)}, func(w *ModelWriter) error {
			if err := w.Write("a", make([]byte, 4)); err != nil {
				return err
			}
			return w.Write("a", make([]byte, 1))
		}, []string{`"a"`, "complete"}},
		"incomplete": {[]TensorSpec{f32Spec("a", 1)}, func(w *ModelWriter) error {
			w.Write("a", make([]byte, 3))
			return w.Commit()
		}, []string{`"a"`, "3 of 4"}},
		"no config": {[]TensorSpec{f32Spec("a", 0)}, func(w *ModelWriter) error { return w.Commit() }, []string{"config.json"}},
		"path":      {[]TensorSpec{f32Spec("a", 0)}, func(w *ModelWriter) error { return w.AddFile("../x", nil) }, []string{"file name"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir() + "/out"
			w, err := CreateModel(dir, c.specs, WriteOptions{})
			if err == nil && c.do != nil {
				err = c.do(w)
			}
			wantOneLine(t, err, c.words...)
			if w != nil {
				w.Abort()
				w.Abort() // may be repeated
			}
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("something is visible at the target: %v", err)
			}
			if left := leftovers(t, dir); len(left) > 0 {
				t.Errorf("files are left: %v", left)
			}
		})
	}
}

func TestModelWriterIsAtomic(t *testing.T) {
	dir := t.TempDir() + "/out"
	w, err := CreateModel(dir, []TensorSpec{f32Spec("a", 2)}, WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write("a", make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	if err := w.AddFile(configName, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Fatalf("visible before Commit: %v", err)
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	w.Abort()
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
	if err := w.Commit(); err == nil {
		t.Error("a second Commit succeeds")
	}
	if left := leftovers(t, dir); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}

func TestReplace(t *testing.T) {
	dir := t.TempDir() + "/out"
	one := []TensorSpec{f32Spec("a", 1)}
	writeModel(t, dir, one, map[string][]byte{"a": {1, 0, 0, 0}}, WriteOptions{})
	_, err := CreateModel(dir, one, WriteOptions{})
	wantOneLine(t, err, dir, "not empty")

	writeModel(t, dir, []TensorSpec{f32Spec("b", 1)}, map[string][]byte{"b": {2, 0, 0, 0}}, WriteOptions{Replace: true})
	w, err := OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	if strings.Join(w.Names(), " ") != "b" {
		t.Errorf("tensors %v after the replacement", w.Names())
	}
	if left := leftovers(t, dir); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}

	// A directory that is not a model directory is not deleted.
	home := t.TempDir()
	os.WriteFile(home+"/thesis.txt", nil, 0o644)
	_, err = CreateModel(home, one, WriteOptions{Replace: true})
	wantOneLine(t, err, home, "not a model directory")
	// Nor is a directory that has other files in addition to a model's.
	os.WriteFile(dir+"/thesis.txt", []byte("years"), 0o644)
	_, err = CreateModel(dir, one, WriteOptions{Replace: true})
	wantOneLine(t, err, "thesis.txt", "would be lost")
	os.Remove(dir + "/thesis.txt")
	os.Mkdir(dir+"/sub", 0o755)
	_, err = CreateModel(dir, one, WriteOptions{Replace: true})
	wantOneLine(t, err, "sub", "plain file")
}

// A link to a directory stays one, and what it means gets the model.
func TestReplaceThroughLink(t *testing.T) {
	home := t.TempDir()
	if err := os.Symlink("elsewhere", home+"/link"); err != nil {
		t.Skip(err)
	}
	_, err := CreateModel(home+"/link", []TensorSpec{f32Spec("a", 1)}, WriteOptions{})
	wantOneLine(t, err, "link to nothing")
	os.Mkdir(home+"/elsewhere", 0o755)
	for _, replace := range []bool{false, true} {
		writeModel(t, home+"/link", []TensorSpec{f32Spec("a", 1)}, map[string][]byte{"a": {1, 0, 0, 0}}, WriteOptions{Replace: replace})
		if to, err := os.Readlink(home + "/link"); to != "elsewhere" || err != nil {
			t.Fatalf("the link: %q, %v", to, err)
		}
		if w, err := OpenWeights(home + "/elsewhere"); err != nil {
			t.Error(err)
		} else {
			w.Close()
		}
	}
}

// Every operation that writes a model fails once, in every way, over a model that is there already: one line, nothing
// left, the old model or the new one and nothing between, and nothing written wrong without a word. The same at every
// crash.
func TestModelWriterUnderFaults(t *testing.T) {
	specs := []TensorSpec{f32Spec("a", 3), f32Spec("b", 5)}
	src := t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "tokenizer.json"), []byte(`{"version": "1.0"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	write := func(fsys vfs.FS, fill byte) error {
		m := Model{Config: []byte{'"', fill, '"'}, Sidecars: src, Tensors: specs, Data: func(yield func(Piece, error) bool) {
			for _, s := range specs {
				if !yield(Piece{s.Name, bytes.Repeat([]byte{fill}, int(s.Bytes()))}, nil) {
					return
				}
			}
		}}
		return WriteModel("/out/model", m, WriteOptions{Replace: true, ShardBytes: 16, FS: fsys})
	}
	// model returns the contents of all files of the model. If alone is set, /out must have nothing else.
	model := func(fsys vfs.FS, alone bool) map[string]string {
		entries, err := fsys.ReadDir("/out")
		if err != nil || alone && (len(entries) != 1 || entries[0].Name() != "model") {
			t.Fatalf("%v, error %v", entries, err)
		}
		all := map[string]string{}
		entries, err = fsys.ReadDir("/out/model")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			text, err := vfs.ReadFile(fsys, "/out/model/"+e.Name(), 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			all[e.Name()] = string(text)
		}
		return all
	}
	begin := func(fill byte) *vfs.Mem {
		m := vfs.NewMem()
		if err := errors.Join(m.MkdirAll("/out", 0o777), write(m, fill), m.SyncDir("/")); err != nil {
			t.Fatal(err)
		}
		return m
	}
	old, want := model(begin('1'), true), model(begin('2'), true)
	if len(want) != 5 { // two shards, their index, config.json and tokenizer.json
		t.Fatalf("%d files", len(want))
	}
	for what, outcome := range map[string]vfs.Outcome{
		"EIO": {Err: syscall.EIO}, "a write that is cut short": {Err: syscall.ENOSPC, Written: 3},
		"a bit": {Damage: func(p []byte) { p[len(p)/2] ^= 4 }}, "a torn write": {Damage: func(p []byte) { clear(p[len(p)/2:]) }},
	} {
		for n := 1; ; n++ {
			m := begin('1')
			y := vfs.NewFaulty(m)
			var hit vfs.Op
			y.Intercept(func(op vfs.Op) vfs.Outcome {
				if op.N != n {
					return vfs.Outcome{}
				}
				hit = op
				return outcome
			})
			err := write(y, '2')
			if y.Ops() < n {
				break
			}
			// An old model that cannot be removed stays next to the new one.
			removes := hit.Kind == vfs.OpRemove || hit.Kind == vfs.OpReadDir || hit.Kind == vfs.OpStat
			got := model(m, err == nil && !removes)
			switch {
			case err != nil && strings.Contains(err.Error(), "\n"):
				t.Errorf("%s at operation %d (%v %s): %v", what, n, hit.Kind, hit.Name, err)
			case err == nil && !maps.Equal(got, want), err != nil && !maps.Equal(got, old) && !maps.Equal(got, want):
				t.Errorf("%s at operation %d (%v %s): error %v, and %q", what, n, hit.Kind, hit.Name, err, got)
			}
		}
	}
	m := begin('1')
	m.RecordCrashes()
	if err := write(m, '2'); err != nil {
		t.Fatal(err)
	}
	for _, image := range m.CrashImages() {
		if got := model(image.FS, false); !maps.Equal(got, old) && !maps.Equal(got, want) {
			t.Errorf("%s: %q", image.Point, got)
		}
	}
}

func TestUnwritable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	os.WriteFile(file, nil, 0o644)
	_, err := CreateModel(file+"/out", []TensorSpec{f32Spec("a", 1)}, WriteOptions{})
	wantOneLine(t, err, "cannot be written")
	_, err = CreateModel(file, []TensorSpec{f32Spec("a", 1)}, WriteOptions{})
	wantOneLine(t, err, "cannot be written")
	_, err = CreateFile(file+"/grads.safetensors", nil)
	wantOneLine(t, err, "not a directory")
}

func TestFileWriter(t *testing.T) {
	path := t.TempDir() + "/" + weightsName
	specs := []TensorSpec{f32Spec("loss"), f32Spec("g", 2, 3)}
	w, err := CreateFile(path, specs)
	if err != nil {
		t.Fatal(err)
	}
	wantOneLine(t, w.Commit(), `"loss"`, "0 of 4")
	if left := leftovers(t, path); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
	if w, err = CreateFile(path, specs); err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	if err := w.Write("loss", []byte{0, 0, 128, 63}); err != nil {
		t.Fatal(err)
	}
	if err := w.Write("g", make([]byte, 24)); err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	got, err := OpenWeights(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	var loss [1]float32
	if err := got.ReadF32("loss", loss[:], 0); err != nil || loss[0] != 1 {
		t.Errorf("%v, %v", loss, err)
	}
}

func TestSidecars(t *testing.T) {
	src := t.TempDir()
	text := func(name string) string { return fmt.Sprintf("{\"name\": [{}, %q]}\n", name) }
	for _, name := range []string{"tokenizer.json", "generation_config.json", "README.md", "config.json", "chat_template.jinja"} {
		os.WriteFile(filepath.Join(src, name), []byte(text(name)), 0o644)
	}
	out := t.TempDir() + "/m"
	err := WriteModel(out, Model{Config: []byte("{}"), Sidecars: src, Tensors: []TensorSpec{f32Spec("a", 0)}, Data: func(func(Piece, error) bool) {}}, WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	names, err := Sidecars(out)
	if got := strings.Join(names, " "); err != nil || got != "generation_config.json tokenizer.json chat_template.jinja" {
		t.Errorf("carried %s, %v", got, err)
	}
	for _, name := range names {
		if data, _ := os.ReadFile(filepath.Join(out, name)); string(data) != text(name) {
			t.Errorf("%s has %q", name, data)
		}
	}
	if _, err := os.Stat(filepath.Join(out, "README.md")); err == nil {
		t.Error("a README.md was carried")
	}
}

// TestModelWriterInTurns: tensors are written in turns and from the last one on, in one file and in one for each; a
// file that has only empty tensors is there, too.
func TestModelWriterInTurns(t *testing.T) {
	specs := []TensorSpec{f32Spec("a", 3), f32Spec("nothing", 0), f32Spec("b", 2), f32Spec("c", 4)}
	for _, shard := range []int64{0, 1} {
		dir := t.TempDir() + "/out"
		w, err := CreateModel(dir, specs, WriteOptions{ShardBytes: shard})
		if err != nil {
			t.Fatal(err)
		}
		for i := range byte(16) {
			for j := len(specs) - 1; j >= 0; j-- {
				if int64(i) < specs[j].Bytes() {
					if err := w.Write(specs[j].Name, []byte{i + byte(j)}); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if err := w.Write("c", []byte{1}); err == nil {
			t.Error("more than a tensor has was written")
		}
		if err := w.AddFile(configName, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		if err := w.Commit(); err != nil {
			t.Fatal(err)
		}
		back, err := OpenWeights(dir)
		if err != nil {
			t.Fatal(err)
		}
		for j, s := range specs {
			got := make([]byte, s.Bytes())
			if err := back.ReadAt(s.Name, got, 0); err != nil {
				t.Fatal(err)
			}
			for i, x := range got {
				if x != byte(i+j) {
					t.Fatalf("%s is %v", s.Name, got)
				}
			}
		}
		if err := back.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
