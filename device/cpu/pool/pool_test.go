package pool

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each task runs once, a worker runs one task at a time, and everything a task wrote is visible after Run.
func TestRunCoversTasks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		workers := rapid.IntRange(1, 5).Draw(t, "workers")
		p := New(workers, nil)
		defer p.Close()
		if p.Workers() != workers {
			t.Fatalf("%d workers, want %d", p.Workers(), workers)
		}
		for range rapid.IntRange(1, 20).Draw(t, "loops") {
			tasks := rapid.IntRange(0, 40).Draw(t, "tasks")
			if rapid.IntRange(0, 9).Draw(t, "pause") == 0 {
				for slices.ContainsFunc(p.helpers, func(h *helper) bool { return !h.parked.Load() }) {
					runtime.Gosched()
				}
			}
			runs := make([]int, tasks) // not atomic: the race detector checks Run's promise
			busy := make([]atomic.Int32, workers)
			p.Run(tasks, func(worker, task int) {
				if busy[worker].Add(1) != 1 {
					panic("a worker runs two tasks")
				}
				runs[task]++
				busy[worker].Add(-1)
			})
			for task, n := range runs {
				if n != 1 {
					t.Fatalf("task %d of %d ran %d times", task, tasks, n)
				}
			}
		}
	})
}

// Tasks that wait for each other finish only if each worker takes part.
func TestRunUsesAllWorkers(t *testing.T) {
	const workers = 3
	p := New(workers, nil)
	defer p.Close()
	for range 20 {
		var arrived sync.WaitGroup
		arrived.Add(workers)
		p.Run(workers, func(int, int) {
			arrived.Done()
			arrived.Wait()
		})
	}
}

// Concurrent callers take turns.
func TestRunFromManyGoroutines(t *testing.T) {
	p := New(3, nil)
	defer p.Close()
	var total atomic.Int64
	done := make(chan struct{})
	for range 4 {
		go func() {
			for range 50 {
				p.Run(7, func(int, int) { total.Add(1) })
			}
			done <- struct{}{}
		}()
	}
	for range 4 {
		<-done
	}
	if total.Load() != 4*50*7 {
		t.Fatalf("%d tasks ran, want %d", total.Load(), 4*50*7)
	}
}

func BenchmarkRun(b *testing.B) {
	p := New(2, nil)
	defer p.Close()
	for b.Loop() {
		p.Run(4, func(int, int) {})
	}
}

// Each worker that the pool owns begins once, on the goroutine that then works.
func TestWorkersBegin(t *testing.T) {
	var begun [4]atomic.Int32
	p := New(4, func(worker int) { begun[worker].Add(1) })
	p.Run(100, func(int, int) {})
	p.Close()
	for worker := range begun {
		if n, want := begun[worker].Load(), min(worker, 1); int(n) != want {
			t.Errorf("worker %d has begun %d times, want %d", worker, n, want)
		}
	}
}

// panicEnv is set in a process that is there to panic.
const panicEnv = "MILLRACE_TEST_PANIC"

// A panic on a worker that the pool owns ends the program with status 1 and the worker's stack.
func TestPanicEndsTheProgram(t *testing.T) {
	if os.Getenv(panicEnv) != "" {
		New(2, nil).Run(2, func(worker, _ int) {
			if worker == 0 {
				select {} // until the other one has come
			}
			panic("the worker fell")
		})
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestPanicEndsTheProgram$")
	var said bytes.Buffer
	cmd.Env, cmd.Stderr = append(os.Environ(), panicEnv+"=1"), &said
	cmd.Run()
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(said.String(), "panic: the worker fell") || !strings.Contains(said.String(), "pool.(*Pool).work") {
		t.Errorf("%v: %s", cmd.ProcessState, said.String())
	}
}
