package hf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/tensor"
)

func f32Spec(name string, dims ...int) TensorSpec {
	return TensorSpec{name, tensor.F32, tensor.Shape(dims)}
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
		"no tensors":     {nil, nil, []string{"without tensors"}},
		"twice":          {[]TensorSpec{f32Spec("a"), f32Spec("a")}, nil, []string{`"a"`, "twice"}},
		"name":           {[]TensorSpec{f32Spec("__metadata__")}, nil, []string{"name"}},
		"dtype":          {[]TensorSpec{{"a", tensor.I64, nil}}, nil, []string{`"a"`, "i64"}},
		"too large":      {[]TensorSpec{f32Spec("a", 1<<31, 1<<31)}, nil, []string{`"a"`, "too large"}},
		"wrong order":    {[]TensorSpec{f32Spec("a", 1), f32Spec("b", 1)}, func(w *ModelWriter) error { return w.Write("b", make([]byte, 4)) }, []string{`"b"`, `"a"`}},
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
				t.Errorf("left behind: %v", left)
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
		t.Errorf("left behind: %v", left)
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
		t.Errorf("left behind: %v", left)
	}

	// What is not a model directory is not deleted.
	home := t.TempDir()
	os.WriteFile(home+"/thesis.txt", nil, 0o644)
	_, err = CreateModel(home, one, WriteOptions{Replace: true})
	wantOneLine(t, err, home, "not a model directory")
	os.Mkdir(dir+"/sub", 0o755)
	_, err = CreateModel(dir, one, WriteOptions{Replace: true})
	wantOneLine(t, err, "sub", "plain file")
}

func TestExchangeInSteps(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		os.Mkdir(filepath.Join(dir, name), 0o755)
		os.WriteFile(filepath.Join(dir, name, "was-"+name), nil, 0o644)
	}
	if err := exchangeInSteps(filepath.Join(dir, "a"), filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"a/was-b", "b/was-a"} {
		if _, err := os.Stat(filepath.Join(dir, p)); err != nil {
			t.Error(err)
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
	wantOneLine(t, err, "cannot be written")
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
		t.Errorf("left behind: %v", left)
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
	for _, name := range []string{"tokenizer.json", "generation_config.json", "README.md", "config.json", "chat_template.jinja"} {
		os.WriteFile(filepath.Join(src, name), []byte(name), 0o644)
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
		if data, _ := os.ReadFile(filepath.Join(out, name)); string(data) != name {
			t.Errorf("%s has %q", name, data)
		}
	}
	if _, err := os.Stat(filepath.Join(out, "README.md")); err == nil {
		t.Error("a README.md was carried")
	}
}
