//go:build linux && (amd64 || arm64) && !nogpu

package mpi

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// These tests start ranks with real libraries; make mpi-check installs two and names their directories in prefixesEnv.
const (
	prefixesEnv = "MILLRACE_MPI_PREFIXES"
	repeatsEnv  = "MILLRACE_MPI_REPEATS" // of the test of clean ends
	rankEnv     = "MILLRACE_TEST_MPI"    // which rank's program a process of its own is there for
)

func TestMain(m *testing.M) {
	program := os.Getenv(rankEnv)
	if program == "" {
		os.Exit(m.Run())
	}
	l, err := Detect(os.Getenv, os.Args)
	var w *World
	if err == nil {
		w, err = Start(l, time.Minute)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if err := programs[program](w); err != nil {
		fmt.Fprintf(os.Stderr, "rank %d: %v\n", w.Rank, err)
		w.Abort(1)
	}
	w.Leave(0)
}

// programs run in ranks that a test launches, by name.
var programs = map[string]func(*World) error{
	"all": func(w *World) error {
		if err := everything(w); err != nil {
			return err
		}
		fmt.Printf("rank %d of %d is right with %s\n", w.Rank, w.Size, w.Library)
		return nil
	},
	"end": func(*World) error { return nil },
	"status": func(w *World) error {
		w.Leave(7)
		return nil
	},
	"abort": func(w *World) error {
		if w.Rank == 1 {
			return errors.New("the wheel fell off")
		}
		return w.Receive(1, 0, make([]byte, 1)).Wait()
	},
	"killed": func(w *World) error {
		if w.Rank == 1 {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return w.Receive(1, 0, make([]byte, 1)).Wait()
	},
	"silent": func(w *World) error {
		w.beQuick()
		if w.Rank == 1 {
			select {}
		}
		return w.Barrier()
	},
	"stopped": func(w *World) error {
		w.beQuick()
		if w.Rank == 2 {
			syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		}
		return w.Receive((w.Rank+1)%3, 0, make([]byte, 1)).Wait()
	},
	"shorter": func(w *World) error { return sizes(w, 12, 16) },
	"longer":  func(w *World) error { return sizes(w, 20, 16) },
}

// beQuick has the rank wait for others for 2 seconds, and not less: a busy host starts ranks slowly.
func (w *World) beQuick() {
	w.thread.do(func() { w.thread.timeout, w.thread.signs.beat = 2*time.Second, 100*time.Millisecond })
}

// mpi is an installed MPI.
type mpi struct{ prefix string }

// eachMPI runs a test with each MPI there is.
func eachMPI(t *testing.T, f func(t *testing.T, m mpi)) {
	list := filepath.SplitList(os.Getenv(prefixesEnv))
	if len(list) == 0 {
		t.Skipf("no MPI: make mpi-check installs two for this test, or %s names the directories that have bin/mpiexec",
			prefixesEnv)
	}
	for _, prefix := range list {
		t.Run(filepath.Base(prefix), func(t *testing.T) { f(t, mpi{prefix}) })
	}
}

func (m mpi) open() bool { return strings.Contains(filepath.Base(m.prefix), "openmpi") }

// ranks runs a program of n ranks, and returns the launcher's status and all output.
func (m mpi) ranks(t *testing.T, n int, program string, env ...string) (status int, output string) {
	t.Helper()
	args := []string{"-n", strconv.Itoa(n)}
	if m.open() {
		args = append(args, "--allow-run-as-root", "--oversubscribe")
	}
	c := exec.Command(filepath.Join(m.prefix, "bin/mpiexec"), append(args, os.Args[0])...)
	c.Env = append(append(os.Environ(), rankEnv+"="+program), env...)
	out, err := c.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode(), string(out)
}

func TestLaunchedRanks(t *testing.T) {
	eachMPI(t, func(t *testing.T, m mpi) {
		for _, n := range []int{1, 2, 4} {
			status, out := m.ranks(t, n, "all")
			if got := strings.Count(out, fmt.Sprintf(" of %d is right with ", n)); status != 0 || got != n {
				t.Errorf("%d ranks: status %d, %d ranks are right:\n%s", n, status, got, out)
			}
		}
	})
}

// The interface of the MPI Forum, which MPICH 5 has in a library of its own.
func TestLaunchedForumABI(t *testing.T) {
	eachMPI(t, func(t *testing.T, m mpi) {
		library := filepath.Join(m.prefix, "lib/libmpi_abi.so.1")
		if _, err := os.Stat(library); err != nil {
			t.Skipf("the MPI in %s lacks libmpi_abi.so.1, the library of the MPI Forum's own interface, "+
				"which this test loads; MPICH 5 has it, and make mpi-check installs that", m.prefix)
		}
		status, out := m.ranks(t, 2, "all", libraryEnv+"="+library)
		if status != 0 || strings.Count(out, "is right") != 2 {
			t.Errorf("status %d:\n%s", status, out)
		}
	})
}

// A process that has called Start is not taken for one that failed.
func TestLaunchedEndsAreClean(t *testing.T) {
	repeats, err := strconv.Atoi(os.Getenv(repeatsEnv))
	if err != nil {
		repeats = 3
	}
	eachMPI(t, func(t *testing.T, m mpi) {
		for i := range repeats {
			if status, out := m.ranks(t, 2, "end"); status != 0 || out != "" {
				t.Errorf("run %d of %d: status %d:\n%s", i+1, repeats, status, out)
			}
		}
	})
}

func TestLaunchedFailures(t *testing.T) {
	eachMPI(t, func(t *testing.T, m mpi) {
		killed := failure{"killed", 3, 9, "EXIT CODE: 9"} // Hydra names the process's number and its host
		if m.open() {
			killed = failure{"killed", 3, 137, `process rank 1 .* exited on\s+signal 9`}
		}
		for _, c := range []failure{
			killed,
			{"status", 2, 7, ""},
			{"abort", 3, 1, "rank 1: the wheel fell off"},
			{"silent", 3, 1, `rank [02]: rank 1 \(host .*\) keeps others waiting: it has been before the first`},
			{"stopped", 3, 1, `rank [01]: rank 2 \(host .*\) has given no sign of life for .* waits for it`},
			{"shorter", 2, 1, `rank 0: rank 1 \(host .*\) sent 12 bytes with tag 5 where 16 were awaited`},
			{"longer", 2, 1, `rank 0: rank 1 \(host .*\): a message with tag 5 has failed: MPI_Test: .*[Tt]runcate`},
		} {
			status, out := m.ranks(t, c.n, c.program)
			if status != c.status || !regexp.MustCompile(c.want).MatchString(out) {
				t.Errorf("%s: status %d, want %d and %q:\n%s", c.program, status, c.status, c.want, out)
			}
		}
	})
}

// failure is a program that fails, the launcher's status, and a pattern of the output.
type failure struct {
	program string
	n       int
	status  int
	want    string
}

// A library of another MPI than the launcher's is refused before it is asked to join.
func TestLaunchedLibraryOfAnotherMPI(t *testing.T) {
	list := filepath.SplitList(os.Getenv(prefixesEnv))
	eachMPI(t, func(t *testing.T, m mpi) {
		for _, other := range list {
			if (mpi{other}).open() == m.open() {
				continue
			}
			name := "lib/libmpi.so.40"
			if m.open() {
				name = "lib/libmpi.so.12"
			}
			status, out := m.ranks(t, 1, "end", libraryEnv+"="+filepath.Join(other, name))
			if status != 2 || !strings.Contains(out, "which cannot join the ranks of mpiexec of ") {
				t.Errorf("status %d:\n%s", status, out)
			}
		}
	})
}
