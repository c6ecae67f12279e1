package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/train"
)

// signalling is standard error that sends an interrupt when it has read a word.
type signalling struct {
	mu      sync.Mutex
	text    strings.Builder
	signals chan os.Signal
	on      string
}

func (s *signalling) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.on != "" && strings.Contains(string(p), s.on) {
		s.on = ""
		s.signals <- syscall.SIGINT
	}
	return s.text.Write(p)
}

func (s *signalling) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// A run that is interrupted in a step ends with it: it is saved, and the last line says where and how to continue.
func TestInterruptSaves(t *testing.T) {
	w := newWorkshop(t)
	stderr := &signalling{signals: make(chan os.Signal, 1), on: "  loss "}
	var stdout strings.Builder
	status := run([]string{"train", w.path("run.yaml"), "--json", "--set", "max_steps=1000000"}, strings.NewReader(""), &stdout, stderr, stderr.signals)
	s := jsonOf[train.Summary](t, stdout.String())
	if s.Steps == 0 || s.Steps != strings.Count(w.read("out/metrics.jsonl"), "\n") || s.Model != "" || s.Checkpoint == "" {
		t.Errorf("summary %+v, and %d records", s, strings.Count(w.read("out/metrics.jsonl"), "\n"))
	}
	last := fmt.Sprintf("\nmillrace: interrupted after step %d, saved in %s; run the same command to continue\n", s.Steps, s.Checkpoint)
	if status != exitInterrupted ||
		!strings.Contains(stderr.String(), " and saving; once more after 2s to stop at once without saving\n") ||
		!strings.HasSuffix(stderr.String(), last) {
		t.Errorf("status %d: %s", status, stderr)
	}
	invoke(t, "checkpoint", "verify", w.path("out")).must(t)
}

// Before the first step there is nothing to save: the run ends at once, and says so.
func TestInterruptBeforeTheFirstStep(t *testing.T) {
	w := newWorkshop(t)
	stderr := &signalling{signals: make(chan os.Signal, 1), on: "parameters"}
	var stdout strings.Builder
	status := run([]string{"train", w.path("run.yaml"), "--set", "max_steps=1000000"}, strings.NewReader(""), &stdout, stderr, stderr.signals)
	if status != exitInterrupted || stdout.Len() > 0 || !strings.Contains(stderr.String(), "\nmillrace: interrupted before a step was done: nothing is lost") {
		t.Errorf("status %d, output %q: %s", status, stdout.String(), stderr)
	}
	if found := w.files("out/checkpoints/step-000001"); found != nil {
		t.Errorf("left: %v", found)
	}
}

// TestSignalsThatCount: the first signal asks for the end, the second one makes it. Those that come together are one,
// as from timeout(1), and a lost terminal is never a second one.
func TestSignalsThatCount(t *testing.T) {
	const intr, term, hup = syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP
	const saving, nothing = "interrupted: finishing step 5 and saving; " +
		"once more after 2s to stop at once without saving\n",
		"interrupted: stopping; once more after 2s to stop at once\n"
	type at struct {
		sec    float64
		signal os.Signal
	}
	for name, c := range map[string]struct {
		idle    bool // the verb has nothing to finish
		signals []at
		stops   bool // in an orderly way
		cancels bool
		kills   int
		says    string
	}{
		"one":                      {false, []at{{0, intr}}, true, false, 0, saving},
		"two of timeout":           {false, []at{{0, term}, {0.001, term}}, true, false, 0, saving},
		"five":                     {false, []at{{0, term}, {0.1, term}, {0.2, term}, {0.3, term}, {0.4, term}}, true, false, 0, saving},
		"a terminal":               {false, []at{{0, hup}, {0.01, hup}}, true, false, 0, saving},
		"a terminal, twice":        {false, []at{{0, hup}, {60, hup}}, true, false, 0, saving},
		"impatient, then hung up":  {false, []at{{0, intr}, {60, hup}}, true, false, 0, saving},
		"hung up, then impatient":  {false, []at{{0, hup}, {3, term}}, true, true, 0, saving},
		"impatient":                {false, []at{{0, intr}, {2, term}}, true, true, 0, saving},
		"timeout -k":               {false, []at{{0, term}, {0, term}, {30, term}, {30, term}}, true, true, 0, saving},
		"three":                    {false, []at{{0, intr}, {2, intr}, {4, intr}}, true, true, 1, saving},
		"nothing to save":          {true, []at{{0, intr}}, false, true, 0, nothing},
		"nothing to save, timeout": {true, []at{{0, term}, {0, term}, {1, hup}, {60, hup}}, false, true, 0, nothing},
		"nothing to save, hanging": {true, []at{{0, intr}, {2, intr}}, false, true, 1, nothing},
	} {
		t.Run(name, func(t *testing.T) {
			signals, next, kills := make(chan os.Signal), 0, 0
			i := &interrupts{answer: &answering{}, stop: make(chan struct{}), done: make(chan struct{}),
				kill: func() { kills++ }, now: func() time.Time {
					next++
					return time.Unix(1, 0).Add(time.Duration(c.signals[next-1].sec * float64(time.Second)))
				}}
			var said strings.Builder
			cancels, stopped := -1, false // the end of listening cancels, too
			i.watch(signals, func() { cancels++ }, &progress{w: &said}, func() string {
				if c.idle {
					return ""
				}
				return "finishing step 5 and saving"
			})
			for _, s := range c.signals {
				signals <- s.signal
			}
			i.end()
			select {
			case <-i.stop:
				stopped = true
			default:
			}
			if stopped != c.stops || (cancels > 0) != c.cancels || kills != c.kills || said.String() != c.says {
				t.Errorf("stopped %v, cancelled %d times, killed %d times, said %q", stopped, cancels, kills, said.String())
			}
		})
	}
}

// Work with nothing to lose that does not end when it is asked to is left as it is, in the way that takes the processes
// of other hosts along.
func TestWorkThatDoesNotEnd(t *testing.T) {
	before := patience
	defer func() { patience = before }()
	patience = 5 * time.Second
	synctest.Test(t, func(t *testing.T) {
		killed, signals := make(chan bool), make(chan os.Signal)
		i := &interrupts{answer: &answering{}, stop: make(chan struct{}), done: make(chan struct{}),
			kill: func() { close(killed) }, now: func() time.Time { return time.Unix(1, 0) }}
		var said strings.Builder
		i.watch(signals, func() {}, &progress{w: &said}, func() string { return "" })
		signals <- syscall.SIGTERM
		<-killed
		i.end()
		if !strings.Contains(said.String(), "took longer than 5s to end") {
			t.Errorf("said %q", said.String())
		}
	})
}

// Ctrl-C ends an answer and nothing else. Without an answer, or when that is ending already, it ends the program;
// SIGTERM always does.
func TestInterruptOfAnAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		first, second os.Signal
		endsAnswer    bool
	}{
		"twice":   {os.Interrupt, os.Interrupt, true},
		"SIGTERM": {syscall.SIGTERM, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			signals := make(chan os.Signal)
			i := &interrupts{answer: &answering{}, stop: make(chan struct{}), done: make(chan struct{}),
				now: func() time.Time { return time.Unix(1, 0) }}
			var said strings.Builder
			i.watch(signals, cancel, &progress{w: &said}, func() string { return "" })
			stop, done := i.answer.begin()
			signals <- c.first
			select {
			case <-stop:
			case <-ctx.Done():
			}
			if (ctx.Err() == nil) != c.endsAnswer {
				t.Errorf("the program: %v", ctx.Err())
			}
			if c.second != nil {
				signals <- c.second
			}
			<-ctx.Done()
			done()
			i.end()
			if want := "interrupted: stopping; once more after 2s to stop at once\n"; said.String() != want {
				t.Errorf("said %q", said.String())
			}
		})
	}
}

// A run that was made to end has lost steps, and says so. Other verbs have nothing to lose.
func TestEndOfWhatWasCancelled(t *testing.T) {
	for _, trains := range []bool{true, false} {
		var stderr strings.Builder
		status := (&program{stderr: &progress{w: &stderr}, trains: trains}).end(fmt.Errorf("step 4: %w", context.Canceled))
		if (status == exitFailed) != trains || (status == exitInterrupted) == trains || strings.Contains(stderr.String(), "without saving") != trains {
			t.Errorf("a verb that trains (%v): status %d, %s", trains, status, stderr.String())
		}
	}
}

// Every verb that may take long ends when its context does, and leaves no files over.
func TestEveryVerbEndsWithItsContext(t *testing.T) {
	w := newWorkshop(t)
	invoke(t, "train", w.path("run.yaml"), "--set", "save.every=1").must(t)
	model, data := w.path("model"), w.path("data/a.txt")
	w.write("tokens.json", `{"input_ids": [[1, 2]], "labels": [[1, 2]]}`)
	w.write("t.jinja", "{{ messages[0].content }}")
	before := fmt.Sprint(w.files("."))
	for name, args := range map[string][]string{
		"train":             {"train", w.path("run.yaml"), "--set", "output_dir=" + w.path("new")},
		"plan":              {"plan", w.path("run.yaml")},
		"preview":           {"preview", w.path("run.yaml")},
		"eval":              {"eval", "--model", model, "--data", data, "--tokenizer", "bytes"},
		"grad":              {"grad", "--model", model, "--tokens", w.path("tokens.json"), "--out", w.path("grad.safetensors")},
		"generate":          {"generate", "--model", model, "--prompt", "the", "--tokenizer", "bytes"},
		"chat":              {"chat", "--model", model, "--chat-template", w.path("t.jinja"), "--tokenizer", "bytes"},
		"a prompt to come":  {"generate", "--model", model, "--prompt", "-", "--tokenizer", "bytes"},
		"export":            {"export", model, w.path("exported")},
		"export checkpoint": {"export", "--checkpoint", w.path("out/checkpoints/step-000003"), "--model", model, "--out", w.path("exported")},
		"checkpoint verify": {"checkpoint", "verify", w.path("out")},
		"bench":             {"bench", "--model", model, "--steps", "1", "--sequence-len", "32", "--tokens", "32"},
		"probe":             {"probe", "--path", w.dir},
		"demo":              {"demo", "--dir", w.path("demo")},
		"import":            {"import", "../../gguf/testdata/tiny_llama.gguf", w.path("imported")},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr strings.Builder
			p := &program{stdin: endless{}, stdout: &stdout, stderr: &progress{w: &stderr}}
			parser, err := newParser(&stdout, &stderr)
			if err != nil {
				t.Fatal(err)
			}
			cmd, err := parser.Parse(args)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			p.ctx = ctx
			p.env = &train.Env{Open: p.openDevice, Accounts: hostmem.New(), Progress: &stderr}
			if err := cmd.Run(p); !errors.Is(err, context.Canceled) && !errors.Is(err, train.ErrInterrupted) {
				t.Errorf("error %v", err)
			}
			if now := fmt.Sprint(w.files(".")); now != before || stdout.Len() > 0 {
				t.Errorf("output %q, files:\n%s\nbefore:\n%s", stdout.String(), now, before)
			}
		})
	}
}

// endless is standard input from which nothing comes.
type endless struct{}

func (endless) Read([]byte) (int, error) { select {} }

// start is the program in a process of its own, after its first line with a word on standard error.
func start(t *testing.T, cmd *exec.Cmd, word string) *bufio.Scanner {
	t.Helper()
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(pipe)
	await(t, lines, word)
	return lines
}

// await reads lines up to one with a word.
func await(t *testing.T, lines *bufio.Scanner, word string) {
	t.Helper()
	for lines.Scan() {
		if strings.Contains(lines.Text(), word) {
			return
		}
	}
	t.Fatalf("no line has %q", word)
}

// A terminal that goes away takes no run with it: the step is finished and saved, as after SIGTERM.
// So it is after what the launcher of one process sends.
func TestLostTerminalSaves(t *testing.T) {
	w := newWorkshop(t)
	for i, sent := range []os.Signal{syscall.SIGHUP, syscall.SIGTERM, os.Interrupt, syscall.SIGUSR1} {
		if signal.Ignored(sent) {
			continue // as below nohup: the process would inherit that
		}
		cmd := inProcess("runs", "train", w.path("run.yaml"), "--set", "max_steps=1000000")
		if sent == syscall.SIGUSR1 { // which a launcher sends, also to one process
			cmd.Env = append(cmd.Env, "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1")
		}
		lines := start(t, cmd, "  loss ")
		if err := cmd.Process.Signal(sent); err != nil {
			t.Fatal(err)
		}
		await(t, lines, "saved in "+w.path("out/checkpoints/step-"))
		cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != exitInterrupted {
			t.Errorf("%v, the %dth start: %v", sent, i+1, cmd.ProcessState)
		}
	}
}

// Under nohup SIGHUP is nothing.
func TestNohup(t *testing.T) {
	w := newWorkshop(t)
	cmd := inProcess("runs", "train", w.path("run.yaml"), "--set", "max_steps=1000000")
	cmd.Args = append([]string{"sh", "-c", `trap "" HUP; exec "$0" "$@"`}, cmd.Args...)
	cmd.Path = "/bin/sh"
	lines := start(t, cmd, "  loss ")
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		await(t, lines, "  loss ")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
}

// A pipe that is closed on standard error takes no run with it. One that is closed on standard output, as by head, ends
// the program without a word.
func TestClosedPipe(t *testing.T) {
	w := newWorkshop(t)
	cmd := inProcess("runs", "train", w.path("run.yaml"))
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	read.Close()
	cmd.Stderr, cmd.Stdout = write, io.Discard
	if err := cmd.Run(); err != nil || w.files("out/model") == nil {
		t.Errorf("%v; model: %v", err, w.files("out/model"))
	}
	cmd = inProcess("runs", "version")
	var stderr strings.Builder
	cmd.Stdout, cmd.Stderr = write, &stderr
	cmd.Run()
	if cmd.ProcessState.ExitCode() != exitFailed || stderr.String() != "" {
		t.Errorf("results into a closed pipe: %v: %s", cmd.ProcessState, stderr.String())
	}
	write.Close()
}
