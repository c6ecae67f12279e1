package tensorboard_test

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/trace/tensorboard"
	"github.com/millrace/millrace/trace/tensorboard/tensorboardtest"
	"github.com/millrace/millrace/vfs"
)

// TensorBoard's own reader finds the same numbers, texts and hyperparameters as ours, of a run that was resumed, too.
func TestTensorBoardReads(t *testing.T) {
	const variable = "MILLRACE_TENSORBOARD_PYTHON"
	python := os.Getenv(variable)
	if python == "" {
		t.Skipf("it needs a Python with tensorboard==2.21.0, whose path $%s has", variable)
	}
	dir := t.TempDir()
	w, _ := create(t, vfs.OS{}, dir, 0)
	ok(t, w.Begin(1.5, []tensorboard.Setting{{"learning_rate", "1e-05"}, {"save.best", "true"}, {"model", "a\xffb"},
		{"seed", "42"}, {"off", "false"}, {"tokenizer", "nan"}, {"empty", ""}}, "run"))
	steps := func(w *tensorboard.Writer, from, to int64) {
		for step := from; step < to; step++ {
			x := 1 / float64(step+from+1)
			ok(t, w.Scalars(float64(step)+0.25, step, []tensorboard.Scalar{{"loss", x}, {"eval/task/loss", 2 * x}}))
			ok(t, w.Text(2.5, step, "samples/1", "water, 水\n"+strconv.FormatInt(step+from, 10)))
		}
	}
	steps(w, 0, 2000) // more than TensorBoard keeps of a tag where it may leave some out
	again, _ := create(t, vfs.OS{}, dir, 1500)
	steps(again, 1500, 1800)
	ok(t, again.End(9, 1800, tensorboard.Failed))
	ours, err := tensorboardtest.Read(dir)
	ok(t, err)

	script, err := filepath.Abs("tensorboardtest/read.py")
	ok(t, err)
	text, err := exec.Command(python, script, dir).Output()
	if exit, isExit := err.(*exec.ExitError); isExit {
		t.Fatalf("%v: %s", err, exit.Stderr)
	}
	ok(t, err)
	var theirs struct {
		Scalars  map[string][][3]float64
		Texts    map[string]map[string]string
		Settings map[string]any
		Status   int64
	}
	ok(t, json.Unmarshal(text, &theirs))
	want := tensorboardtest.Run{Files: 2, Scalars: map[string][]tensorboardtest.Point{}, Settings: theirs.Settings,
		Texts: map[string]map[int64]string{}, Status: theirs.Status}
	for tag, points := range theirs.Scalars {
		for _, p := range points {
			want.Scalars[tag] = append(want.Scalars[tag], tensorboardtest.At(int64(p[0]), p[1], float32(p[2])))
		}
	}
	for tag, texts := range theirs.Texts {
		want.Texts[tag] = map[int64]string{}
		for step, of := range maps.All(texts) {
			n, err := strconv.ParseInt(step, 10, 64)
			ok(t, err)
			want.Texts[tag][n] = of
		}
	}
	if d := cmp.Diff(&want, ours); d != "" || len(ours.Scalars["loss"]) != 1800 || len(ours.Texts["samples/1"]) != 1800 {
		t.Errorf("%d losses, %d texts, -TensorBoard +here\n%s", len(ours.Scalars["loss"]), len(ours.Texts["samples/1"]), d)
	}
}
