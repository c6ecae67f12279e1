package main

import (
	"io"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
)

// configOf reads the run file, with settings.
func configOf(t *testing.T, settings ...string) *runfile.Config {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("MILLRACE_CACHE", filepath.Join(dir, "cache"))
	c, err := millrace.Config("run.yaml", append(settings, "output_dir="+filepath.Join(dir, "out"))...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The whole program runs, and each use writes its last line.
func TestRun(t *testing.T) {
	t.Setenv("MILLRACE_CACHE", t.TempDir())
	var out strings.Builder
	if err := run(t.Context(), t.TempDir(), &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"tokens per second", "step 1: loss 5.6", "entropy of the next byte", "lm_head.weight",
		"on plain Go: weights streamed through", "step 2: loss 5.1"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the program does not write %q", want)
		}
	}
}

func TestPlanShapeRefuses(t *testing.T) {
	err := planShape(t.Context(), "qwen2.5-14b", "a-toaster", io.Discard)
	if err == nil || !strings.Contains(err.Error(), "rtx3090-pc-24gb-64gb") {
		t.Errorf("error %v, want the list of machines", err)
	}
}

// A callback ends the training before max_steps, and the run has ended well: its model is written.
func TestTrainUntil(t *testing.T) {
	sum, err := trainUntil(t.Context(), configOf(t), 5, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if sum.Steps >= 20 || !(sum.LastLoss < 5) || sum.Model == "" {
		t.Errorf("%+v", sum)
	}
}

// A listener hears of each save.
func TestSavesOf(t *testing.T) {
	paths, err := savesOf(t.Context(), configOf(t, "max_steps=5", "save.every=2"))
	var names []string
	for _, path := range paths {
		names = append(names, filepath.Base(path))
	}
	if err != nil || strings.Join(names, " ") != "step-000002 step-000004 step-000005" {
		t.Errorf("saves %v, error %v", names, err)
	}
}

// The saved checkpoint has the model of the step where the loop ended.
func TestResearch(t *testing.T) {
	path, err := research(t.Context(), configOf(t), t.TempDir(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := readCheckpoint(path, &out); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.HasPrefix(text, "step 12 of a llama") || strings.Count(text, "\n") != 22 {
		t.Errorf("the checkpoint is read as\n%s", text)
	}
}

// An optimizer of the program's own lowers the loss.
func TestSignDescent(t *testing.T) {
	before, after, err := signDescent(t.Context(), configOf(t), io.Discard)
	if err != nil || !(before > 5.4) || !(after < before-1) {
		t.Errorf("a loss of %v, after it %v; error %v", before, after, err)
	}
}

// An objective of the program's own lowers its loss.
func TestFocal(t *testing.T) {
	first, last, err := trainFocal(t.Context(), configOf(t), io.Discard)
	if err != nil || !(first > 4) || !(last < first-1) {
		t.Errorf("a loss of %v, after it %v; error %v", first, last, err)
	}
}

func TestEntropy(t *testing.T) {
	if got := entropy([]float32{3, 3, 3, 3}); math.Abs(got-math.Log(4)) > 1e-12 {
		t.Errorf("of four equal logits %v, want ln 4", got)
	}
	if got := entropy([]float32{0, 1000}); got != 0 {
		t.Errorf("of a certain token %v, want 0", got)
	}
}

// The plain device computes the losses of the CPU's driver.
func TestPlainDeviceAgrees(t *testing.T) {
	var want []float64
	keep := func(m trace.Metrics) error {
		want = append(want, m.Loss)
		return nil
	}
	_, err := millrace.Train(t.Context(), configOf(t, "max_steps=3"), millrace.TrainOptions{OnStep: keep})
	if err != nil {
		t.Fatal(err)
	}
	sum, err := trainOnPlainDevice(t.Context(), configOf(t, "max_steps=3"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if len(want) != 3 || math.Abs(sum.FirstLoss-want[0]) > 1e-5 || math.Abs(sum.LastLoss-want[2]) > 1e-4 {
		t.Errorf("losses from %v to %v, those of the CPU's driver are %v", sum.FirstLoss, sum.LastLoss, want)
	}
}
