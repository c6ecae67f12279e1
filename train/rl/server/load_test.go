package server

import (
	"context"
	"errors"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/vfs"
)

// exports makes the two directories of a test.
func exports(t *testing.T) *Exports {
	t.Helper()
	e, err := OpenExports(vfs.OS{}, filepath.Join(t.TempDir(), "policy"))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// Versions alternate between two directories, and the older one stays until the server has the newer one.
func TestExports(t *testing.T) {
	e := exports(t)
	names := func() (all []string) {
		entries, err := os.ReadDir(e.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range entries {
			all = append(all, f.Name())
		}
		return all
	}
	both := []string{"a", "a.json", "b", "b.json"}
	for version, want := range [][]string{{"a", "a.json"}, both, both} {
		dir := exported(t, e, int64(version), 1, float32(version))
		if got := names(); !slices.Equal(got, want) || filepath.Base(dir) != []string{"a", "b", "a"}[version] {
			t.Errorf("version %d is %s of %q, want %q", version, dir, got, want)
		}
		if err := e.Taken(); err != nil {
			t.Fatal(err)
		}
		base := filepath.Base(dir)
		if got := names(); !slices.Equal(got, []string{base, base + ".json"}) {
			t.Errorf("after version %d was taken there are %q", version, got)
		}
		m, err := ReadManifest(dir)
		if err != nil || m.Version != int64(version) || m.Bytes != 4 || len(m.Tensors) != 1 {
			t.Errorf("its manifest is %v, error %v", m, err)
		}
	}

	// A process that comes later writes next to what was written last.
	again, err := OpenExports(vfs.OS{}, e.dir)
	if err != nil {
		t.Fatal(err)
	}
	if dir := exported(t, again, 3, 5); filepath.Base(dir) != "b" {
		t.Errorf("the next version is %s", dir)
	}
	if err := os.WriteFile(filepath.Join(e.dir, "notes.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = OpenExports(vfs.OS{}, e.dir)
	refused(t, err, `has "notes.txt", which is no weights of a hand-over`)
}

// A directory of the user's that has the name of one of the two is not replaced, and not removed.
func TestExportsOfOthers(t *testing.T) {
	e := exports(t)
	for _, n := range exportNames {
		if err := os.MkdirAll(filepath.Join(e.dir, n, "photos"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	_, err := e.Write(t.Context(), 1, func(dir string, o hf.WriteOptions) error { return writeWeights(dir, o, 1) })
	refused(t, err, `is not replaced because it holds "photos"`)
	if err := e.Taken(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(e.dir, "b", "photos")); err != nil {
		t.Error(err)
	}
}

// Files that are not what was written are found, whatever bit it is.
func TestExportsAreCompared(t *testing.T) {
	for name, spoil := range map[string]func(doc []byte) []byte{
		"a bit":     func(doc []byte) []byte { doc[len(doc)-1] ^= 1; return doc },
		"a tensor":  func(doc []byte) []byte { return []byte(strings.Replace(string(doc), "model.norm", "model.form", 1)) },
		"its shape": func(doc []byte) []byte { return []byte(strings.Replace(string(doc), `[0,6]`, `[0,4]`, 1)) },
	} {
		e := exports(t)
		dir, err := e.Write(t.Context(), 1, func(dir string, o hf.WriteOptions) error {
			if err := writeWeights(dir, o, 1, 2, 3); err != nil {
				return err
			}
			path := filepath.Join(dir, "model.safetensors")
			doc, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(path, spoil(doc), 0o600)
		})
		if err == nil {
			t.Errorf("%s is spoilt, and %s is good", name, dir)
		}
		if _, err := os.Stat(filepath.Join(e.dir, "a.json")); err == nil {
			t.Errorf("%s is spoilt, and there is a manifest", name)
		}
	}
}

// A hand-over that fails is said, and the server answers on.
func TestLoadFails(t *testing.T) {
	for name, c := range map[string]struct {
		engine, path, old, text, want string
	}{
		"SGLang says no": {SGLang, "/update_weights_from_disk", `"success":true,"message":"Succeeded`,
			`"success":false,"message":"No such directory`, "did not take the weights"},
		"it says nothing": {SGLang, "/update_weights_from_disk", `"success":true`, `"other":true`,
			"did not take the weights"},
		"a cache that is held": {VLLM, "/reset_prefix_cache", `"success":true`, `"success":false`,
			"keeps what it has cached of the old weights"},
	} {
		t.Run(name, func(t *testing.T) {
			r, url := record(t, files[c.engine])
			s, err := Open(t.Context(), options(c.engine, url))
			if err != nil {
				t.Fatal(err)
			}
			r.edit(c.path, c.old, c.text)
			err = s.Load(t.Context(), exported(t, exports(t), 7, 1), 7)
			refused(t, err, c.want)
			if last := r.paths[len(r.paths)-1]; last != "/continue_generation" && last != "/resume" {
				t.Errorf("the last that it was asked for is %s", last)
			}
		})
	}

	// A server that was not started for it.
	r, url := record(t, files[VLLM])
	r.instead = func(w http.ResponseWriter, _ *http.Request, path string, _ int) bool {
		if strings.HasPrefix(path, "/v1") || path == "/version" {
			return false
		}
		w.WriteHeader(http.StatusNotFound)
		return true
	}
	s, err := Open(t.Context(), options(VLLM, url))
	if err != nil {
		t.Fatal(err)
	}
	err = s.Load(t.Context(), exported(t, exports(t), 7, 1), 7)
	if err == nil || !strings.Contains(err.Error(), "VLLM_SERVER_DEV_MODE=1") {
		t.Errorf("error %v", err)
	}
}

// A server whose tensors stay as they were, although the files have changed, has old weights.
func TestOldWeightsAreFound(t *testing.T) {
	const sums = `{"success":true,"ranks":[` +
		`{"checksums":{"model.norm.weight":"SUM"},"parallelism_info":{"role":"target"}},` +
		`{"checksums":{"model.norm.weight":"draft"},"parallelism_info":{"role":"draft"}}]}`
	for name, c := range map[string]struct {
		rows, sums []string // that the server says at the first and at the second hand-over; "": it cannot tell
		want       string
		tensors    int
		moved      int
	}{
		"rows of the old weights": {[]string{"[1,2]", "[1,2]"}, []string{"", ""}, "has the numbers of the weights 7",
			0, 0},
		"rows of the new weights":     {[]string{"[1,2]", "[1,3]"}, []string{"", ""}, "", 1, 0},
		"rows of other weights":       {[]string{"[1,2]", "[8,8]"}, []string{"", ""}, "", 0, 0},
		"a matrix with one row":       {[]string{"[[1,2]]", "[[1,3]]"}, []string{"", ""}, "", 1, 0},
		"a model without the verb":    {[]string{"null", "null"}, []string{"", ""}, "", 0, 0},
		"checksums that have changed": {[]string{"", ""}, []string{"aa", "bb"}, "", 0, 1},
		"checksums that have not": {[]string{"", ""}, []string{"aa", "aa"}, "none of its tensors has changed, and 1 have",
			0, 0},
		"a server that cannot tell": {[]string{"", ""}, []string{"", ""}, "", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r, url := record(t, files[SGLang])
			o := options(SGLang, url)
			var handed []Handover
			o.Loaded = func(h Handover) { handed = append(handed, h) }
			load := 0
			r.instead = func(w http.ResponseWriter, _ *http.Request, path string, _ int) bool {
				said := ""
				switch path {
				case "/get_weights_by_name":
					said = c.rows[load]
				case "/weights_checker":
					if c.sums[load] != "" {
						said = strings.Replace(sums, "SUM", c.sums[load], 1)
					}
				case "/update_weights_from_disk":
					said = `{"success":true,"message":""}`
				default:
					return false
				}
				if said == "" {
					w.WriteHeader(http.StatusBadRequest)
				}
				_, _ = w.Write([]byte(said))
				return true
			}
			s, err := Open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			e := exports(t)
			if err := s.Load(t.Context(), exported(t, e, 7, 1, 2), 7); err != nil {
				t.Fatal(err)
			}
			load = 1
			err = s.Load(t.Context(), exported(t, e, 8, 1, 3), 8)
			if c.want == "" {
				if err != nil || handed[1].Tensors != c.tensors || handed[1].Moved != c.moved {
					t.Errorf("error %v, %v", err, handed)
				}
				return
			}
			if refused(t, err, c.want); !errors.Is(err, errOld) {
				t.Errorf("error %v is not that of old weights", err)
			}
			if _, err := sampled(t.Context(), s, asked, usual); err == nil {
				t.Error("it samples with old weights")
			}
		})
	}
}

// The log-probabilities of a short text are compared with the trainer's.
func TestProbe(t *testing.T) {
	for want, by := range map[string]float32{"": 0.25, "are 1.5 nats from the trainer's on average": 1.5} {
		r, url := record(t, files[VLLM])
		o := options(VLLM, url)
		var handed []Handover
		o.Loaded = func(h Handover) { handed = append(handed, h) }
		o.ProbeIDs = []int32{6}
		o.LogProbs = func(_ context.Context, ids []int32, from int) ([]float32, error) {
			if !slices.Equal(ids, []int32{6, 4, 4, 8, 7}) || from != 1 {
				t.Errorf("the trainer is asked for %v from %d on", ids, from)
			}
			return []float32{-2 - by, -0.75 + by, -0.25 - by, -3.5 + by}, nil
		}
		for i := range r.exchanges {
			if body, ok := r.exchanges[i].Body.(map[string]any); ok && body["prompt"] != nil {
				body["max_tokens"], body["temperature"], body["stop_token_ids"] = "*", 0.0, []any{}
			}
		}
		s, err := Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		err = s.Load(t.Context(), exported(t, exports(t), 7, 1), 7)
		if want != "" {
			refused(t, err, want)
			continue
		}
		if err != nil || math.Abs(handed[0].Mean-0.25) > 1e-6 || math.Abs(handed[0].Most-0.25) > 1e-6 {
			t.Errorf("error %v, %v", err, handed)
		}
		if text := handed[0].Checked(); !strings.Contains(text, "0.25 nats") {
			t.Error(text)
		}
	}
}
