package train

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/train/rundir"
)

// Epochs that end inside a step are rounded up. A run that began when they were rounded down keeps its steps, and so
// does one that has ended.
func TestEpochsAreRoundedUp(t *testing.T) {
	for _, c := range []struct {
		all, whole int
		asked      float64
		want       stepRange
	}{
		{179, 3, 2.5, stepRange{150, 149}}, {60, 1, 1, stepRange{60, 60}}, {20, 2, 1.1, stepRange{11, 11}}, // 1.1/2*20 is above 11
		{60, 1, 0.001, stepRange{1, 1}}, {7, 1, 0, stepRange{7, 7}}, {100, 1, 0.301, stepRange{31, 30}},
	} {
		if got := epochSteps(c.all, c.asked, c.whole); got != c.want {
			t.Errorf("%v epochs of %d steps in %d: %v, want %v", c.asked, c.all, c.whole, got, c.want)
		}
	}
	whole := smallConfig(t)
	whole.MaxSteps, whole.Epochs, whole.WarmupSteps = 0, 2.4, 0
	sum, err := Train(context.Background(), whole, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	older := *whole // recorded the steps that epochs came to
	older.MaxSteps, older.Epochs, older.OutputDir = sum.Steps-1, 0, filepath.Join(t.TempDir(), "older")
	older.Save.AtEnd, older.Save.Every = false, 2
	until(t, &older, fmt.Sprintf("step %*d/%d", digits(older.MaxSteps), 3, older.MaxSteps))
	older.MaxSteps, older.Epochs = 0, whole.Epochs
	got, err := Train(context.Background(), &older, Options{Env: newEnv(t)})
	if err != nil || got.ResumedAfter != 3 || got.Steps != sum.Steps-1 {
		t.Fatalf("%+v, error %v; the older run has %d steps", got, err, sum.Steps-1)
	}
	if err := os.RemoveAll(rundir.CheckpointsDir(&older)); err != nil {
		t.Fatal(err)
	}
	if got, err = Train(context.Background(), &older, Options{Env: newEnv(t)}); err != nil || got.Steps != sum.Steps-1 ||
		got.ResumedAfter != got.Steps {
		t.Errorf("after its end: %+v, error %v", got, err)
	}
}
