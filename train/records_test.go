package train

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/train/rundir"
)

// A file of metrics that a drive has damaged is put aside, each time under another name, and the run continues.
func TestDamagedMetrics(t *testing.T) {
	c := smallConfig(t)
	name := filepath.Join(c.OutputDir, rundir.MetricsName)
	for i, line := range []string{"step  4/12", "step  8/12"} {
		until(t, c, line)
		doc, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		damaged := strings.Replace(string(doc), "\n", "\x00", 1)
		write(t, name, damaged)
		env := newEnv(t)
		var said strings.Builder
		env.Progress = &said
		if i == 0 {
			stop := make(chan struct{})
			close(stop)
			env.Stop = stop
		}
		if _, err := Train(context.Background(), c, Options{Env: env}); err != nil && i > 0 {
			t.Fatal(err)
		}
		aside := []string{name + ".damaged", name + ".damaged-2"}[i]
		if doc, err := os.ReadFile(aside); err != nil || string(doc) != damaged {
			t.Errorf("%s: %v", aside, err)
		}
		want := "warning: " + name + ": line 1 is not a record of metrics; the file is " + filepath.Base(aside) + " now, and a new one begins\n"
		if !strings.Contains(said.String(), want) {
			t.Errorf("it says\n%s\nand not\n%s", said.String(), want)
		}
	}
	if got := losses(t, c.OutputDir); len(got) != 4 {
		t.Errorf("the new file has %d records, want those of the steps since", len(got))
	}
}

// The evaluation before training is in the records once: of a run that resumes, and of one that starts over.
func TestRecordBeforeTraining(t *testing.T) {
	for _, startsOver := range []bool{false, true} {
		c := withEval(smallConfig(t))
		until(t, c, "step  3/12")
		if startsOver {
			if err := os.RemoveAll(rundir.CheckpointsDir(c)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil {
			t.Fatal(err)
		}
		for i, m := range metricsOf(t, c.OutputDir) {
			if m.Step != int64(i) || i == 0 && (m.EvalLoss == nil || *m.EvalLoss < 4) {
				t.Errorf("starts over: %v: record %d is of step %d, evaluation %v", startsOver, i, m.Step, m.EvalLoss)
			}
		}
	}
}
