package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/tensor"
)

// listing has the fields that the verbs of checkpoint print with --json.
type listing struct {
	Checkpoints []listed `json:"checkpoints"`
	Damaged     int      `json:"damaged"`
	SetAside    []string `json:"set_aside"`
}

// saved is a run of three steps with a checkpoint of each, and evaluations.
func saved(t *testing.T) *workshop {
	w := newWorkshop(t)
	invoke(t, "train", w.path("run.yaml"), "--set", "save={every: 1, keep: 0, best: true}",
		"--set", "eval={every: 1, datasets: [{path: "+w.path("data/b.txt")+", type: text}]}").must(t)
	return w
}

func TestCheckpointListAndVerify(t *testing.T) {
	w := saved(t)
	for _, dir := range []string{"out", "out/checkpoints"} {
		all := jsonOf[listing](t, invoke(t, "checkpoint", "list", w.path(dir), "--json").must(t).stdout).Checkpoints
		if len(all) != 3 || all[0].Step != 3 || all[0].Bytes == 0 || all[0].Files < 10 || all[0].EvalLoss == nil || !all[0].IsBest || all[2].IsBest {
			t.Errorf("%s: %+v", dir, all)
		}
	}
	text := invoke(t, "checkpoint", "list", w.path("out")).must(t).stdout
	if strings.Count(text, "\n") != 4 || strings.Count(text, "best") != 1 {
		t.Errorf("list:\n%s", text)
	}
	step := w.path("out/checkpoints/step-000002")
	if text := invoke(t, "checkpoint", "verify", step).must(t).stdout; strings.Count(text, "\n") != 1 || !strings.Contains(text, step) {
		t.Errorf("verify: %s", text)
	}
	if text := invoke(t, "checkpoint", "verify", w.path("out")).must(t).stdout; strings.Count(text, "\n") != 3 {
		t.Errorf("verify all: %s", text)
	}

	// A flipped bit is found by verify; a file that is gone by list, too.
	name := "out/checkpoints/step-000002/block.1.weights"
	doc := []byte(w.read(name))
	doc[len(doc)/2] ^= 4
	w.write(name, string(doc))
	invoke(t, "checkpoint", "list", w.path("out")).must(t)
	for _, dir := range []string{step, w.path("out")} {
		r := invoke(t, "checkpoint", "verify", dir)
		if r.status != exitFailed || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, "block.1.weights") ||
			!strings.Contains(r.stderr, "step-000001") {
			t.Errorf("verify %s: status %d, %q", dir, r.status, r.stderr)
		}
	}
	r := invoke(t, "checkpoint", "verify", w.path("out"), "--json")
	if l := jsonOf[listing](t, r.stdout); r.status != exitFailed || l.Damaged != 1 || len(l.Checkpoints) != 3 || l.Checkpoints[1].Error == "" {
		t.Errorf("verify --json: status %d, %s", r.status, r.stdout)
	}
	if err := os.Remove(w.path(name)); err != nil {
		t.Fatal(err)
	}
	if text := invoke(t, "checkpoint", "list", w.path("out")).must(t).stdout; !strings.Contains(text, "damaged: ") {
		t.Errorf("list:\n%s", text)
	}
	r = invoke(t, "export", "--checkpoint", step, "--model", w.path("model"), "--out", w.path("exported"))
	if r.status != exitFailed || strings.Count(r.stderr, "\n") != 1 {
		t.Errorf("export: status %d, %q", r.status, r.stderr)
	}
	if left := w.files("exported"); left != nil {
		t.Errorf("a failed export left %v", left)
	}
}

// A checkpoint's model is the one that the run itself writes; in f32 it is the exact master, whose high half that is.
func TestExportCheckpoint(t *testing.T) {
	w := saved(t)
	last := w.path("out/checkpoints/step-000003")
	invoke(t, "export", "--checkpoint", last, "--model", w.path("model"), "--out", w.path("last")).must(t)
	invoke(t, "export", "--checkpoint", last, "--model", w.path("model"), "--out", w.path("exact"), "--dtype", "f32").must(t)
	for _, name := range []string{"model.safetensors", "config.json"} {
		for _, dir := range []string{"last", "out/model-best"} {
			if w.read(dir+"/"+name) != w.read("out/model/"+name) {
				t.Errorf("%s/%s differs from that of the run", dir, name)
			}
		}
	}
	exact, err := hf.OpenWeights(w.path("exact"))
	if err != nil {
		t.Fatal(err)
	}
	defer exact.Close()
	half, err := hf.OpenWeights(w.path("last"))
	if err != nil {
		t.Fatal(err)
	}
	defer half.Close()
	finer := 0
	for _, name := range exact.Names() {
		info, _ := exact.Info(name)
		f, h := make([]float32, info.Shape.Elems()), make([]float32, info.Shape.Elems())
		if err := exact.ReadF32(name, f, 0); err != nil {
			t.Fatal(err)
		}
		if err := half.ReadF32(name, h, 0); err != nil {
			t.Fatal(err)
		}
		for i := range f {
			if high, _ := tensor.SplitF32(f[i]); tensor.F32FromBF16(high) != h[i] {
				t.Fatalf("%s[%d] is %v exactly and %v in bf16", name, i, f[i], h[i])
			}
			if f[i] != h[i] {
				finer++
			}
		}
	}
	if finer == 0 {
		t.Error("the exact weights are no finer than bf16")
	}

	// An existing directory is not overwritten, and another model is refused.
	r := invoke(t, "export", "--checkpoint", last, "--model", w.path("model"), "--out", w.path("last"))
	if r.status != exitBadRequest {
		t.Errorf("onto a model: status %d, %s", r.status, r.stderr)
	}
	w.write("model/config.json", strings.Replace(tinyConfig, "1e-06", "1e-05", 1))
	r = invoke(t, "export", "--checkpoint", last, "--model", w.path("model"), "--out", w.path("other"))
	if r.status != exitBadRequest || !strings.Contains(r.stderr, "is not of model") {
		t.Errorf("another model: status %d, %s", r.status, r.stderr)
	}
}

// The list marks what a run would not continue from by itself: checkpoints of another run and of unhealthy states, and
// those that were set aside.
func TestListMarks(t *testing.T) {
	w := saved(t)
	r := invoke(t, "train", w.path("run.yaml"), "--set", "output_dir="+w.path("other"), "--set", "seed=5",
		"--set", "stop={unhealthy_steps: 0, loss_above: 0.0001}")
	if r.status != exitFailed || !strings.Contains(r.stderr, "its last 3 steps were unhealthy") {
		t.Errorf("a run that ends among unhealthy steps: status %d, %s", r.status, r.stderr)
	}
	all := jsonOf[listing](t, invoke(t, "checkpoint", "list", w.path("other"), "--json").must(t).stdout)
	if c := all.Checkpoints; len(c) != 1 || c[0].UnhealthySteps != 3 || c[0].IsOtherRun || len(all.SetAside) != 0 {
		t.Errorf("unhealthy steps: %+v", all)
	}
	text := invoke(t, "checkpoint", "list", w.path("other")).must(t).stdout
	if !strings.Contains(text, "step-000003  after 3 unhealthy steps\n") {
		t.Errorf("list:\n%s", text)
	}
	three, aside := w.path("out/checkpoints/step-000003"), w.path("out/checkpoints/step-000002.damaged")
	err := errors.Join(os.Rename(w.path("out/checkpoints/step-000002"), aside), os.RemoveAll(three),
		os.Rename(w.path("other/checkpoints/step-000003"), three))
	if err != nil {
		t.Fatal(err)
	}
	all = jsonOf[listing](t, invoke(t, "checkpoint", "list", w.path("out"), "--json").must(t).stdout)
	if c := all.Checkpoints; len(c) != 2 || !c[0].IsOtherRun || c[1].IsOtherRun || c[0].Run == c[1].Run || c[1].Run == "" {
		t.Errorf("another run's: %+v", all)
	}
	if len(all.SetAside) != 1 || all.SetAside[0] != aside {
		t.Errorf("set aside: %q", all.SetAside)
	}
	text = invoke(t, "checkpoint", "list", w.path("out")).must(t).stdout
	for _, line := range []string{three + "  of another run\n", "step-000001\n", "set aside: " + aside + "\n"} {
		if !strings.Contains(text, line) {
			t.Errorf("no %q in the list:\n%s", line, text)
		}
	}
}

// TestCheckpointListOfAFallback: what a run has saved in save.fallback is listed with the rest, newest first.
func TestCheckpointListOfAFallback(t *testing.T) {
	w := newWorkshop(t)
	if err := os.Mkdir(w.path("spare"), 0o755); err != nil {
		t.Fatal(err)
	}
	invoke(t, "train", w.path("run.yaml"), "--set", "save={every: 1, keep: 0, fallback: "+w.path("spare")+"}").must(t)
	dirs, err := millrace.NewEnv(io.Discard).Runs().CheckpointDirs(w.path("out"))
	if err != nil || len(dirs) != 2 || !strings.HasPrefix(dirs[1], w.path("spare")) {
		t.Fatalf("%v, %v", dirs, err)
	}
	step := filepath.Join(dirs[1], "step-000002") // as if the disk had been full
	err = errors.Join(os.MkdirAll(dirs[1], 0o755), os.Rename(w.path("out/checkpoints/step-000002"), step))
	if err != nil {
		t.Fatal(err)
	}
	all := jsonOf[listing](t, invoke(t, "checkpoint", "list", w.path("out"), "--json").must(t).stdout).Checkpoints
	if len(all) != 3 || all[0].Step != 3 || all[1].Dir != step || all[2].Step != 1 {
		t.Errorf("%+v", all)
	}
}
