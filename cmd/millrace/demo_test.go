package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/millrace/millrace/demo"
)

// tinyDemo has a model that learns in seconds. Its run has 32 steps and saves every four.
func tinyDemo(dir string, out io.Writer) demo.Options {
	return demo.Options{Dir: dir, Steps: 32, Out: out, Shape: demo.Shape{Vocabulary: 300, Hidden: 24, Intermediate: 40,
		Layers: 2, Heads: 3,
		KeyValueHeads: 1, HeadDim: 8, SequenceLen: 32, BatchTokens: 64, Device: "4MiB", Host: "1GiB"},
		Program: func(ctx context.Context, args ...string) *exec.Cmd {
			cmd := exec.CommandContext(ctx, os.Args[0], args...)
			cmd.Env = append(os.Environ(), programEnv+"=lingers")
			return cmd
		}}
}

// lingering is standard error of the process that a demo kills: it waits in step 30 of 32, since it could else be
// done before the signal comes.
type lingering struct{ w io.Writer }

func (l lingering) Write(p []byte) (int, error) {
	n, err := l.w.Write(p)
	if bytes.Contains(p, []byte("step 30/32")) && len(os.Args) == len([]string{"millrace", "train", "run.yaml"}) {
		select {}
	}
	return n, err
}

// A demo kills, resumes and compares. Another one in the same directory, after one that was interrupted, has the same
// text.
func TestDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out what starts several processes; make test and make demo run it")
	}
	useCache(t)
	dir := filepath.Join(t.TempDir(), "demo")
	var samples [][]demo.Sample
	for range 2 {
		var out bytes.Buffer
		r, err := demo.Run(t.Context(), tinyDemo(dir, &out))
		if err != nil {
			t.Fatalf("%v, after\n%s", err, out.String())
		}
		if !r.Same || r.SHA256 != r.OtherSHA256 || len(r.SHA256) != 64 || r.ComparedBytes == 0 {
			t.Errorf("what was compared: %+v", r)
		}
		if r.ResumedAfter%4 != 0 || r.ResumedAfter < 4 || r.KilledAfter < r.ResumedAfter ||
			r.ComparedAfter <= r.ResumedAfter || r.ComparedAfter > 32 {
			t.Errorf("killed after step %d, resumed after %d, compared after %d", r.KilledAfter, r.ResumedAfter, r.ComparedAfter)
		}
		if !(r.LossAfter < 0.95*r.LossBefore) || r.PeakBytes == 0 || r.StateBytes < 14*r.Parameters {
			t.Errorf("the figures: %+v", r)
		}
		var steps []int
		for _, s := range r.Samples {
			steps = append(steps, s.Step)
		}
		if !slices.Equal(steps, []int{0, 4, 16, 32}) {
			t.Errorf("samples of steps %v", steps)
		}
		samples = append(samples, r.Samples)
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 79 && !strings.Contains(line, dir) {
				t.Errorf("a line of %d columns: %s", n, line)
			}
		}
		if strings.Contains(out.String(), "\x1b") {
			t.Errorf("colors without a terminal: %q", out.String())
		}
		for _, part := range []string{"kill -9", "They are the same, to the bit.", "millrace generate --model run/model",
			r.SHA256} {
			if !strings.Contains(out.String(), part) {
				t.Errorf("no %q in\n%s", part, out.String())
			}
		}
		var left []string
		for _, e := range must(os.ReadDir(dir)) {
			left = append(left, e.Name())
		}
		if want := []string{".millrace-demo", "model", "run", "run.yaml", "text"}; !slices.Equal(left, want) {
			t.Errorf("left in the directory: %v", left)
		}
		invoke(t, "export", filepath.Join(dir, "run", "model"), "--gguf", filepath.Join(t.TempDir(), "demo.gguf")).must(t)

		ctx, cancel := context.WithCancel(t.Context())
		if _, err := demo.Run(ctx, tinyDemo(dir, &cancelling{cancel, "the same command again"})); !errors.Is(err,
			context.Canceled) {
			t.Errorf("a demo that was interrupted: %v", err)
		}
	}
	if fmt.Sprint(samples[0]) != fmt.Sprint(samples[1]) || samples[0][0].Text == samples[0][3].Text {
		t.Errorf("two demos wrote\n%v\n%v", samples[0], samples[1])
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// cancelling is a writer that cancels when it is written a word.
type cancelling struct {
	cancel context.CancelFunc
	on     string
}

func (c *cancelling) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(c.on)) {
		c.cancel()
	}
	return len(p), nil
}

// An interrupt ends a demo with the status of one.
func TestDemoInterrupted(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out the learning of a tokenizer; make test runs it")
	}
	cmd := inProcess("plain", "demo", "--json", "--dir", t.TempDir())
	cmd.Env = append(cmd.Env, "MILLRACE_CACHE="+t.TempDir())
	lines := start(t, cmd, "A small language model")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	cmd.Wait()
	if cmd.ProcessState.ExitCode() != exitInterrupted || !strings.Contains(last, "interrupted") {
		t.Errorf("%v: %s", cmd.ProcessState, last)
	}
}

// A demo of whose processes one fails ends with what that one says; a full disk is an example.
func TestDemoOnAFullDisk(t *testing.T) {
	o := tinyDemo(t.TempDir(), io.Discard)
	o.Program = func(ctx context.Context, args ...string) *exec.Cmd {
		return exec.CommandContext(ctx, "sh", "-c", "echo 'millrace: out/x cannot be written: no space left on device; "+
			"free space there' >&2; exit 1")
	}
	_, err := demo.Run(t.Context(), o)
	if err == nil || err.Error() != "millrace train: out/x cannot be written: no space left on device; free space there" {
		t.Errorf("error %v", err)
	}
}

// Standard output that cannot be written ends a demo before it starts a process.
func TestDemoThatCannotWrite(t *testing.T) {
	o := tinyDemo(t.TempDir(), failing{})
	o.Program = func(context.Context, ...string) *exec.Cmd {
		t.Error("a process was started")
		return exec.Command("false")
	}
	if _, err := demo.Run(t.Context(), o); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("error %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
