package train

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/trace/tensorboard/tensorboardtest"
	"github.com/millrace/millrace/train/trackers"
	"github.com/millrace/millrace/vfs"
)

// trackedConfig is a run with evaluation sets, samples and both trackers.
func trackedConfig(t *testing.T, url string) *runfile.Config {
	c := withEval(smallConfig(t))
	c.Eval.Every, c.Eval.Datasets[0].EvalSet, c.MaxSteps = 2, "task", 6
	c.Save = runfile.Save{Every: 2, AtEnd: true, Keep: 9}
	c.Samples = someSamples(3)
	c.ReportTo = []runfile.Tracker{{TensorBoard: true}, {MLflow: runfile.MLflow{URL: url}}}
	return c
}

// A run with trackers has the weights of one without, to the bit. TensorBoard has all numbers of the records, each step
// once after the run was stopped and resumed, and the texts; a server that is not there costs a line.
func TestTrackers(t *testing.T) {
	var mu sync.Mutex
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked++
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	c := trackedConfig(t, server.URL)
	plain := *c
	plain.ReportTo, plain.OutputDir = nil, filepath.Join(t.TempDir(), "plain")
	want, err := Train(t.Context(), &plain, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	stop := func(m trace.Metrics) error {
		if m.Step == 3 {
			return ErrStop
		}
		return nil
	}
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t), OnStep: stop}); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(lastCheckpoint(t, c)); err != nil { // of step 3, which the run takes again
		t.Fatal(err)
	}
	var said strings.Builder
	env := newEnv(t)
	env.Progress = &said
	sum, err := Train(t.Context(), c, Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	sameModel(t, sum.Model, want.Model)
	if n := strings.Count(said.String(), "warning: mlflow: "); n == 0 || asked < 2 {
		t.Errorf("the server was asked %d times; the run says %s", asked, said.String())
	}
	got, err := tensorboardtest.Read(filepath.Join(c.OutputDir, trackers.BoardName))
	if err != nil {
		t.Fatal(err)
	}
	checkBoard(t, got, metricsOf(t, c.OutputDir))
	if got.Files != 2 || got.Status != 1 || got.Settings["learning_rate"] != c.LearningRate ||
		got.Settings["eval.datasets[0].eval_set"] != "task" {
		t.Errorf("%d files, status %d, settings %v", got.Files, got.Status, got.Settings)
	}
	for _, step := range []int64{0, 3, 6} {
		if text := got.Texts["samples/1"][step]; !strings.Contains(text, "\n\n->\n\n    ") {
			t.Errorf("sample of step %d: %q", step, text)
		}
	}
}

// checkBoard compares event files with the records of a run.
func checkBoard(t *testing.T, got *tensorboardtest.Run, records []trace.Metrics) {
	t.Helper()
	numbers := 0
	for i := range records {
		m := &records[i]
		m.Columns(func(name string, x float64) {
			if math.IsNaN(x) || m.Step == 0 && !strings.HasPrefix(name, "eval") {
				return
			}
			n := 0
			for _, p := range got.Scalars[name] {
				if p.Step == m.Step {
					n++
					if p.Value != float32(x) {
						t.Errorf("step %d: %s is %v in the records, %v for TensorBoard", m.Step, name, x, p.Value)
					}
				}
			}
			if n != 1 {
				t.Errorf("step %d: TensorBoard has %s %d times", m.Step, name, n)
			}
			numbers++
		})
	}
	all := 0
	for _, points := range got.Scalars {
		all += len(points)
	}
	if all != numbers || numbers < 100 {
		t.Errorf("TensorBoard has %d numbers, the records %d", all, numbers)
	}
}

// A disk that is full for the event files alone costs the run a line. So does a directory that is a link out.
func TestTrackersCannotBeWritten(t *testing.T) {
	for name, spoil := range map[string]func(c *runfile.Config) vfs.FS{
		"full disk": func(*runfile.Config) vfs.FS {
			fsys := vfs.NewFaulty(vfs.OS{})
			fsys.Intercept(func(op vfs.Op) vfs.Outcome {
				if strings.Contains(op.Name, "tfevents") && op.Kind == vfs.OpWrite && op.Bytes > 300 {
					return vfs.Outcome{Err: syscall.ENOSPC, Written: 10}
				}
				return vfs.Outcome{}
			})
			return fsys
		},
		"a link": func(c *runfile.Config) vfs.FS {
			if err := os.MkdirAll(c.OutputDir, 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(t.TempDir(), filepath.Join(c.OutputDir, trackers.BoardName)); err != nil {
				t.Fatal(err)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := smallConfig(t)
			c.MaxSteps, c.ReportTo = 2, []runfile.Tracker{{TensorBoard: true}}
			env := newEnv(t)
			var said strings.Builder
			env.Progress, env.FS = &said, spoil(c)
			if _, err := Train(t.Context(), c, Options{Env: env}); err != nil {
				t.Fatal(err)
			}
			const line = "warning: tensorboard cannot be written: "
			if n := strings.Count(said.String(), line); n != 1 || !strings.Contains(said.String(), "without its event files\n") {
				t.Errorf("%d times %q in %s", n, line, said.String())
			}
			if n := len(metricsOf(t, c.OutputDir)); n != 2 {
				t.Errorf("%d records", n)
			}
		})
	}
}

// Host 0 of several tells the trackers, and no other.
func TestTrackersOfHosts(t *testing.T) {
	c := hostsConfig(t)
	c.ReportTo = []runfile.Tracker{{TensorBoard: true}}
	all := trainHosts(t, 2, c, func(h *aHost) {
		if h.host > 0 {
			h.env.FS = writesNone(t, c.OutputDir)
		}
	})
	succeed(t, all)
	got, err := tensorboardtest.Read(filepath.Join(c.OutputDir, trackers.BoardName))
	if err != nil {
		t.Fatal(err)
	}
	checkBoard(t, got, metricsOf(t, c.OutputDir))
	if _, has := got.Scalars["hosts/1/step_sec"]; !has || got.Files != 1 {
		t.Errorf("%d files, scalars %s", got.Files, fmt.Sprint(len(got.Scalars)))
	}
}
