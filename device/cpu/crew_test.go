package cpu

import (
	"slices"
	"testing"
)

// counting does what a pool of workers does, one task after the other, and keeps the number of tasks of each run.
type counting struct {
	workers int
	runs    []int
}

func (c *counting) Workers() int { return c.workers }
func (c *counting) Close()       {}

func (c *counting) Run(tasks int, f func(worker, task int)) {
	c.runs = append(c.runs, tasks)
	for t := range tasks {
		f(t%c.workers, t)
	}
}

// A run between two barriers is several tasks for each worker, whole rounds of them, and the cuts are the same for
// any number.
func TestRunsHaveRoundsOfTasks(t *testing.T) {
	const granule, bytes, n = 256, 26, 40<<20 + 5
	var want [][2]int
	for _, workers := range []int{1, 2, 3, 12, 60, 128} {
		r := &counting{workers: workers}
		var cuts [][2]int
		(&crew{runner: r}).split(n, granule, bytes, func(lo, hi int) { cuts = append(cuts, [2]int{lo, hi}) })
		if want == nil {
			want = cuts
		}
		if !slices.Equal(cuts, want) || cuts[len(cuts)-1][1] != n {
			t.Errorf("%d workers: other cuts than with one", workers)
		}
		for i, tasks := range r.runs {
			if last := i == len(r.runs)-1; !last && tasks != 64*workers {
				t.Errorf("%d workers: a run of %d tasks", workers, tasks)
			}
		}
		if sum := len(cuts); len(r.runs) != (sum+64*workers-1)/(64*workers) || len(r.runs) < 2 {
			t.Errorf("%d workers: %d tasks in %d runs", workers, sum, len(r.runs))
		}
	}
}
