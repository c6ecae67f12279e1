package hf

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/tensor"
)

// writeNumbered writes a model directory whose tensors have the elements of values, by name, in files of at most
// shardBytes.
func writeNumbered(t *testing.T, sizes map[string]int, value func(name string, i int) byte, shardBytes int64) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	var specs []TensorSpec
	for i := range len(sizes) {
		name := fmt.Sprintf("t%d", i)
		specs = append(specs, TensorSpec{Name: name, DType: tensor.BF16, Shape: tensor.Shape{sizes[name]}})
	}
	w, err := CreateModel(dir, specs, WriteOptions{ShardBytes: shardBytes})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		bytes := make([]byte, 2*s.Shape[0])
		for i := range bytes {
			bytes[i] = value(s.Name, i)
		}
		if err := w.Write(s.Name, bytes); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.AddFile("config.json", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func fingerprintOf(t *testing.T, dir string) string {
	t.Helper()
	w, err := OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	sum, err := w.Fingerprint(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// Weights that differ anywhere in a small tensor, throughout a large one, or in names or shapes, have other
// fingerprints. The same weights in other files have the same one.
func TestFingerprint(t *testing.T) {
	const large = 5 << 20 // elements: more than all pages
	sizes := map[string]int{"t0": 7, "t1": large, "t2": 3000}
	value := func(name string, i int) byte { return byte(i%61) + name[1] }
	want := fingerprintOf(t, writeNumbered(t, sizes, value, 0))
	if got := fingerprintOf(t, writeNumbered(t, sizes, value, 4096)); got != want {
		t.Error("shards change it")
	}
	for what, dir := range map[string]string{
		"a byte of a small tensor": writeNumbered(t, sizes, func(name string, i int) byte {
			if name == "t2" && i == 5001 {
				return 3
			}
			return value(name, i)
		}, 0),
		"the last bytes of a large tensor": writeNumbered(t, sizes, func(name string, i int) byte {
			if name == "t1" && i >= 2*large-100 {
				return 3
			}
			return value(name, i)
		}, 0),
		"one in a thousand of its bytes": writeNumbered(t, sizes, func(name string, i int) byte {
			if name == "t1" && i%1000 == 999 {
				return 3
			}
			return value(name, i)
		}, 0),
		"a shape": writeNumbered(t, map[string]int{"t0": 7, "t1": large, "t2": 3001}, value, 0),
		"a name":  writeNumbered(t, map[string]int{"t0": 7, "t1": large, "t2": 3000, "t3": 1}, value, 0),
	} {
		if fingerprintOf(t, dir) == want {
			t.Errorf("%s does not change it", what)
		}
	}
	if _, err := os.Stat(filepath.Join(writeNumbered(t, sizes, value, 4096), weightsName)); err == nil {
		t.Error("there are no shards")
	}
}
