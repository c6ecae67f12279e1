package train

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/train/rundir"
)

// FuzzArrivals reads what host 0 has found in the output directory: no identity that is one leads out of the
// directories that it names.
func FuzzArrivals(f *testing.F) {
	run := checkpoint.NewRunID()
	good, err := json.Marshal(arrival{OutputDir: "/a", Identity: rundir.Identity{Run: run, Name: "a-" + run.Short()}})
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{string(good), "{}", `{"identity":{"run":"x","name":"../../etc"}}`,
		`{"sizes":{"micro_batch":-1}}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var found arrival
		if err := json.Unmarshal(text, &found); err != nil || found.Identity.Check() != nil {
			return
		}
		if name := found.Identity.Name; !filepath.IsLocal(name) || name != filepath.Base(name) {
			t.Errorf("a run is called %q", name)
		}
	})
}
