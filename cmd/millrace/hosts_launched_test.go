//go:build linux && (amd64 || arm64) && !nogpu

package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// launcher is an installed MPI. make mpi-check installs two, and names their directories in MILLRACE_MPI_PREFIXES.
type launcher struct{ prefix string }

// eachLauncher runs a test with each MPI that there is.
func eachLauncher(t *testing.T, f func(t *testing.T, l launcher)) {
	list := filepath.SplitList(os.Getenv("MILLRACE_MPI_PREFIXES"))
	if len(list) == 0 {
		t.Skip("this test starts processes with mpiexec, and MILLRACE_MPI_PREFIXES names no installed MPI; make " +
			"mpi-check installs Open MPI and MPICH and runs it, and package train tests hosts in one process without")
	}
	for _, prefix := range list {
		t.Run(filepath.Base(prefix), func(t *testing.T) { f(t, launcher{prefix}) })
	}
}

func (l launcher) isOpenMPI() bool { return strings.Contains(filepath.Base(l.prefix), "openmpi") }

// command starts the program in a number of processes.
func (l launcher) command(ranks int, args ...string) *exec.Cmd {
	flags := []string{"-n", strconv.Itoa(ranks)}
	if l.isOpenMPI() {
		flags = append(flags, "--allow-run-as-root", "--oversubscribe")
	}
	cmd := exec.Command(filepath.Join(l.prefix, "bin/mpiexec"), append(append(flags, os.Args[0]), args...)...)
	cmd.Env = append(os.Environ(), programEnv+"=launched")
	return cmd
}

// finish runs a command to its end.
func finish(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if exit := (*exec.ExitError)(nil); !errors.As(cmd.Run(), &exit) && cmd.ProcessState == nil {
		t.Fatalf("%v did not start", cmd.Args)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// hostsRun has a run file whose steps have four groups, and where this process has trained it, for its bits. Settings
// come after those.
func hostsRun(t *testing.T, more ...string) (w *workshop, settings []string) {
	w = newWorkshop(t)
	settings = append([]string{"train", w.path("run.yaml"), "device=cpu", "numerics={groups: 4, micro_batch: 1}",
		"max_steps=6"}, more...)
	invoke(t, append(settings, "output_dir="+w.path("alone"))...).must(t)
	return w, settings
}

// Runs of one, two and four processes end with the bits of one, with little to read: host 0 alone tells of the run. So
// do runs with sums in bf16; and, where runs are repeated, of eight processes, and with two devices in each.
func TestLaunchedTraining(t *testing.T) {
	repeats, err := strconv.Atoi(os.Getenv("MILLRACE_MPI_REPEATS"))
	long := err == nil
	eachLauncher(t, func(t *testing.T, l launcher) {
		for _, c := range []struct {
			name   string
			long   bool
			ranks  []int
			more   []string // settings that change bits
			device string
		}{
			{"four groups", false, []int{1, 2, 4}, nil, "cpu"},
			{"in bf16", false, []int{2}, []string{"numerics.exchange=bf16"}, "cpu"},
			{"two devices", true, []int{2, 4}, nil, "[cpu, cpu]"},
			{"eight groups", true, []int{1, 2, 4, 8}, []string{"numerics.groups=8", "batch_tokens=256"}, "cpu"},
			{"eight groups in bf16", true, []int{2, 4, 8}, []string{"numerics.groups=8", "batch_tokens=256",
				"numerics.exchange=bf16"}, "cpu"},
		} {
			if c.long && !long {
				continue
			}
			t.Run(c.name, func(t *testing.T) {
				w, settings := hostsRun(t, c.more...)
				for i := range max(repeats, 1) {
					for _, ranks := range c.ranks {
						out := fmt.Sprintf("%d-%d", ranks, i)
						l.trainsTo(t, w, ranks, out, append(settings, "device="+c.device))
					}
				}
			})
		}
	})
}

// trainsTo trains in a number of processes, which is to end with the bits of one.
func (l launcher) trainsTo(t *testing.T, w *workshop, ranks int, out string, settings []string) {
	t.Helper()
	r := finish(t, l.command(ranks, append(settings, "output_dir="+w.path(out))...))
	const model = "/model/model.safetensors"
	if r.status != exitDone || w.read(out+model) != w.read("alone"+model) {
		t.Errorf("%d processes: status %d, other bits: %s", ranks, r.status, r.stderr)
	}
	if strings.Count(r.stdout, "training loss") != 1 || strings.Count(r.stderr, "step 6/6") != 1 ||
		strings.Contains("\n"+r.stderr, "\nrank ") {
		t.Errorf("%d processes say %s%s", ranks, r.stderr, r.stdout)
	}
	if joined := fmt.Sprintf("%d processes on ", ranks); strings.Contains(r.stderr, joined) != (ranks > 1) {
		t.Errorf("%d processes do not say what they are: %s", ranks, r.stderr)
	}
}

// An error before the first step is told once, with its status. A run that a signal ends on one rank, or that a rank
// leaves by being killed, continues on another number of them to the bits of one that did not stop.
func TestLaunchedEnds(t *testing.T) {
	eachLauncher(t, func(t *testing.T, l launcher) {
		w, settings := hostsRun(t)
		r := finish(t, l.command(2, append(settings, "numerics.groups=1")...))
		if r.status != exitBadRequest ||
			strings.Count(r.stderr, "numerics.groups is 1, and 2 hosts cannot have as many groups each") != 1 {
			t.Errorf("groups that do not divide: status %d: %s", r.status, r.stderr)
		}
		killed := []int{9, 137}
		for _, c := range []struct {
			signal syscall.Signal
			status []int
		}{{syscall.SIGUSR1, []int{exitInterrupted}}, {syscall.SIGKILL, killed}} {
			out := w.path(c.signal.String())
			long := append(settings, "max_steps=1000000", "save.every=2", "lr_scheduler=constant", "output_dir="+out)
			cmd := l.command(2, long...)
			stderr := &onText{text: "step       4/", do: func() { signalRank(t, out, 1, c.signal) }}
			cmd.Stderr = stderr
			cmd.Run()
			if status := cmd.ProcessState.ExitCode(); status != c.status[0] && status != c.status[len(c.status)-1] {
				t.Errorf("%v: status %d, want one of %v: %s", c.signal, status, c.status, &stderr.said)
			}
			said := strings.Count(stderr.said.String(), "millrace: interrupted after step ")
			if (said == 1) != (c.signal == syscall.SIGUSR1) {
				t.Errorf("%v: it says %s", c.signal, &stderr.said)
			}
			steps := newestStep(t, out) + 2
			rest := append(settings, fmt.Sprintf("max_steps=%d", steps), "lr_scheduler=constant")
			again := finish(t, l.command(4, append(rest, "output_dir="+out, "resume_with=[max_steps]")...))
			invoke(t, append(rest, "output_dir="+out+"-alone")...).must(t)
			model := filepath.Join("model", "model.safetensors")
			got, err := os.ReadFile(filepath.Join(out, model))
			want, errWant := os.ReadFile(filepath.Join(out+"-alone", model))
			if errors.Join(err, errWant) != nil || again.status != exitDone || !bytes.Equal(got, want) {
				t.Errorf("%v: it continues with status %d (%v), and other bits: %s", c.signal, again.status, err,
					again.stderr)
			}
		}
	})
}

// A rank that is stopped, whichever it is, is named by the others when they have waited for distributed.timeout. The
// same command continues. It waits for a minute, the least distributed.timeout: make mpi-check runs it with REPEATS
// alone.
func TestLaunchedSilence(t *testing.T) {
	eachLauncher(t, func(t *testing.T, l launcher) {
		w, settings := hostsRun(t)
		out, rank := w.path("stopped"), rand.IntN(4)
		long := append(settings, "max_steps=1000000", "save.every=2", "lr_scheduler=constant", "output_dir="+out,
			"distributed.timeout=1m")
		cmd := l.command(4, long...)
		stderr := &onText{text: "step       4/", do: func() { signalRank(t, out, rank, syscall.SIGSTOP) }}
		cmd.Stderr = stderr
		cmd.Run()
		lost := regexp.MustCompile(fmt.Sprintf(`(?m)^(rank \d \(host \S+\): )?millrace: (step \d+: )?rank %d `+
			`\(host \S+\) has given no sign of life for (59s|1m\d*s), since it was .* waits for it`, rank))
		if said := stderr.said.String(); cmd.ProcessState.ExitCode() != exitFailed || !lost.MatchString(said) {
			t.Errorf("rank %d was stopped: status %d: %s", rank, cmd.ProcessState.ExitCode(), said)
		}
		rest := append(settings, fmt.Sprintf("max_steps=%d", newestStep(t, out)+2), "lr_scheduler=constant",
			"output_dir="+out, "resume_with=[max_steps]")
		if r := finish(t, l.command(2, rest...)); r.status != exitDone {
			t.Errorf("it continues with status %d: %s", r.status, r.stderr)
		}
	})
}

// onText calls do when a text has come.
type onText struct {
	text string
	do   func()
	said bytes.Buffer
}

func (o *onText) Write(p []byte) (int, error) {
	o.said.Write(p)
	if o.do != nil && strings.Contains(o.said.String(), o.text) {
		o.do()
		o.do = nil
	}
	return len(p), nil
}

// signalRank signals the process that is a rank of the run with an output directory.
func signalRank(t *testing.T, out string, rank int, signal syscall.Signal) {
	processes, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Error(err)
	}
	of := regexp.MustCompile(fmt.Sprintf(`\x00(OMPI_COMM_WORLD_RANK|PMI_RANK)=%d\x00`, rank))
	for _, path := range processes {
		environ, err := os.ReadFile(path)
		command, errCommand := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if err != nil || errCommand != nil || !of.Match(environ) ||
			!strings.Contains(string(command), "output_dir="+out+"\x00") {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err := syscall.Kill(pid, signal); err != nil {
			t.Error(err)
		}
		return
	}
	t.Errorf("rank %d of the run in %s was not found", rank, out)
}

// newestStep returns the step of a run's newest checkpoint.
func newestStep(t *testing.T, out string) (step int) {
	names, err := filepath.Glob(filepath.Join(out, "checkpoints", "step-*"))
	if err != nil || len(names) == 0 {
		t.Fatalf("there is no checkpoint in %s", out)
	}
	for _, name := range names {
		n, _ := strconv.Atoi(strings.TrimPrefix(filepath.Base(name), "step-"))
		step = max(step, n)
	}
	return step
}
