package trackers

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/millrace/millrace/trace"
)

// The scripts of docs/trackers.md send a run that has ended, with the packages of the trackers themselves, which keep
// it on this machine.
func TestScripts(t *testing.T) {
	const variable = "MILLRACE_TRACKERS_PYTHON"
	python := os.Getenv(variable)
	if python == "" {
		t.Skipf("it needs a Python with wandb, trackio and swanlab, whose path $%s has", variable)
	}
	page, err := os.ReadFile("../../docs/trackers.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```python\n(.*?)```").FindAllSubmatch(page, -1)
	if len(blocks) != 4 {
		t.Fatalf("the page has %d scripts", len(blocks))
	}
	dir := t.TempDir()
	write := func(name string, text []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var records []byte
	for step := range int64(6) {
		m := trace.Metrics{Step: step, Loss: 1 / float64(step+1)}
		m.SetEval(trace.Evaluation{Loss: 2, Sets: map[string]trace.Numbers{"task": {trace.SetLoss: float64(step)}}})
		line, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		records = append(append(records, line...), '\n')
	}
	write("run/metrics.jsonl", records)
	write("run/run.json", []byte(`{"ended": {"step": 5}}`))
	write("follow.py", blocks[0][1])
	for i, name := range []string{"wandb", "trackio", "swanlab"} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(python, write(name+"_.py", blocks[i+1][1]), "run")
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "WANDB_MODE=offline", "SWANLAB_MODE=offline", "HOME="+dir,
				"TRACKIO_DIR="+filepath.Join(dir, "trackio"))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			t.Logf("%s", out)
			kept, err := filepath.Glob(filepath.Join(dir, map[string]string{"wandb": "wandb/offline-run-*/*.wandb",
				"trackio": "trackio/millrace*.db", "swanlab": "swanlog/*run-*"}[name]))
			if err != nil || len(kept) != 1 {
				t.Errorf("it has kept %v (%v)", kept, err)
			}
		})
	}
}
