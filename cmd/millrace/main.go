// Command millrace trains language models that do not fit on the device that computes.
//
// There is one file per verb: it declares the flags, calls one function of a public package, and
// prints the result. This file parses the command line and turns errors into a line and an exit status; interrupt.go
// turns signals into an orderly end; drivers.go opens devices.
//
// Invariants: results for programs go to standard output, and nothing else does; progress and errors go to standard
// error; an error is one line that says what, why and how to fix it.
package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/internal/mpi"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/train"
)

// Exit statuses.
const (
	exitDone        = 0
	exitFailed      = 1 // as a panic does, by internal/fault
	exitBadRequest  = 2
	exitInterrupted = 130 // train: nothing is lost, and what was done is saved
)

// commands are the verbs.
type commands struct {
	Train      trainCmd      `cmd:"" help:"Train a model as a run file says."`
	Plan       planCmd       `cmd:"" help:"Will it fit, how fast, and what limits it? Trains nothing."`
	Probe      probeCmd      `cmd:"" help:"Measure this machine, so that plans predict it."`
	Preview    previewCmd    `cmd:"" help:"Show what the model will see, and which tokens count in the loss."`
	Eval       evalCmd       `cmd:"" help:"Loss and perplexity of a model on data."`
	Grad       gradCmd       `cmd:"" help:"Write the loss and every gradient of a batch, to compare with PyTorch."`
	Generate   generateCmd   `cmd:"" help:"Continue a prompt."`
	Chat       chatCmd       `cmd:"" help:"Talk to a model."`
	Convert    convertCmd    `cmd:"" help:"Turn a file of LLaMA-Factory, Axolotl, TRL, verl or Trainer into a run file."`
	Import     importCmd     `cmd:"" help:"Turn a GGUF file into a Hugging Face directory."`
	Export     exportCmd     `cmd:"" help:"Write a model from a checkpoint, in another number format, or as GGUF."`
	Push       pushCmd       `cmd:"" help:"Upload a model to the Hugging Face hub."`
	Checkpoint checkpointCmd `cmd:"" help:"List checkpoints, or verify them."`
	Bench      benchCmd      `cmd:"" help:"Measure training steps of a model with random weights."`
	Serve      serveCmd      `cmd:"" help:"Show runs on a page that follows them."`
	Report     reportCmd     `cmd:"" help:"Show the curves of runs, and compare them."`
	Compare    compareCmd    `cmd:"" help:"Numbers of runs side by side, and which of their settings differ."`
	Metrics    metricsCmd    `cmd:"" help:"Print the numbers of a run's records, also as CSV."`
	Trace      traceCmd      `cmd:"" help:"Show what each lane did in a step of a trace, also as a picture."`
	Sweep      sweepCmd      `cmd:"" help:"Train once for each combination of values, and compare the runs."`
	Notify     notifyCmd     `cmd:"" help:"Try the notices of a run file."`
	Demo       demoCmd       `cmd:"" help:"Watch a small model learn, be killed, resume and end with the same bits."`
	Version    versionCmd    `cmd:"" help:"Say which build this is."`
	Completion completionCmd `cmd:"" help:"Print a script that makes a shell complete command lines."`
	Complete   completeCmd   `cmd:"" hidden:"" help:"List the words that complete a command line, for shells."`
	Man        manCmd        `cmd:"" help:"Write the man pages."`
}

const description = `Trains language models that do not fit on the device that computes: weights stream in, every ` +
	`micro-batch of the step uses them, gradients stream out.

Start with:  millrace plan run.yaml;  millrace train run.yaml

Exit status: 0 done, 1 failed, 2 the request is wrong, 130 interrupted, with nothing lost.`

// program has the surroundings of a run of the program.
type program struct {
	stdin   io.Reader
	stdout  io.Writer
	stderr  *progress
	signals <-chan os.Signal
	ctx     context.Context // ends when the user wants no more
	env     *train.Env
	trains  bool          // an end may lose steps
	isEnded bool          // ctx had ended before the verb was over
	asked   chan struct{} // a page has asked the run to stop
	answer  answering
	hosts   hosts
	world   atomic.Pointer[mpi.World] // the processes of a launcher; nil: the program is alone, and needs no MPI
}

// gcPercent lets the Go heap grow by a quarter between collections. Model state is not on it, and a step leaves
// little garbage; what grows is memory that the plan counts: with Go's 100, a run with 40 MiB of tokens peaked at 180
// MiB where 154 were planned, with 25 at 155, at the same speed. $GOGC overrides it.
const gcPercent = 25

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	fault.Watch()
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, listen(launched())))
}

// exit ends the parser's help.
type exit int

// run is the whole program; it returns the exit status.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer, signals <-chan os.Signal) (status int) {
	p := &program{stdin: stdin, stdout: stdout, stderr: &progress{w: stderr, terminal: terminal.CanDraw(stderr)},
		signals: signals}
	defer func() {
		switch end := recover().(type) {
		case nil:
		case exit:
			status = int(end)
		default:
			fault.Report(p.stderr, end)
			status = fault.Status
			p.leave(status, errFault)
		}
	}()
	for _, arg := range args {
		if !utf8.ValidString(arg) { // the library of flags makes other names of such
			return p.end(badFlag("the argument %s is not UTF-8; rename what it names, or name a link to it", arg))
		}
	}
	parser, err := newParser(stdout, p.stderr)
	if err != nil {
		panic(err) // the declarations above are wrong
	}
	args = verbOf(args)
	cmd, err := parser.Parse(args)
	if err != nil {
		return p.end(badFlag("%w", wrongRequest(err, parser.Model.Node, args)))
	}
	if err := checkLauncher(verbOfCommand(cmd)); err != nil {
		return p.end(err)
	}
	err = p.call(cmd)
	status = p.end(err)
	p.leave(status, err)
	return status
}

// errFault stands for a fault of the program, which one host alone has.
var errFault = errors.New("a fault of the program")

// verbOfCommand is the verb of a command line, without those of its own.
func verbOfCommand(cmd *kong.Context) string {
	verb, _, _ := strings.Cut(cmd.Command(), " ")
	return verb
}

// verbOf understands what other programs do: help VERB, --version and -v; without arguments the help is shown.
func verbOf(args []string) []string {
	switch {
	case len(args) == 0:
		return []string{"--help"}
	case args[0] == "help" || args[0] == "-h":
		return append(slices.Clone(args[1:]), "--help")
	case args[0] == "--version" || args[0] == "-v" || args[0] == "-V":
		return append([]string{"version"}, args[1:]...)
	}
	return args
}

// newParser reads command lines. Its help ends in a panic with an exit.
func newParser(stdout, stderr io.Writer) (*kong.Kong, error) {
	return kong.New(&commands{}, kong.Name("millrace"), kong.Description(description), kong.Writers(stdout, stderr),
		kong.Exit(func(status int) { panic(exit(status)) }), kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{NoExpandSubcommands: true, WrapUpperBound: 100}))
}

// call runs the chosen verb.
func (p *program) call(cmd *kong.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	p.ctx = ctx
	p.asked = make(chan struct{}, 1)
	i := &interrupts{answer: &p.answer, asked: p.asked, stop: make(chan struct{}), done: make(chan struct{}),
		now:  time.Now,
		kill: func() { p.quit(exitInterrupted) }}
	p.env = millrace.NewEnv(p.stderr)
	p.env.Open, p.env.Terminal, p.env.Stop = p.openDevice, p.stderr.terminal, i.stop
	i.watch(p.signals, cancel, p.stderr, p.env.Finishes)
	defer i.end()
	err := cmd.Run(p)
	p.isEnded = ctx.Err() != nil
	return err
}

// end prints an error and says which exit status it stands for.
func (p *program) end(err error) int {
	if err == nil {
		return exitDone
	}
	status, cause := exitFailed, err
	switch {
	case isReaderGone(err): // as head, which has what it wants
		return status
	case errors.Is(err, train.ErrInterrupted):
		status = exitInterrupted
	case errors.Is(err, context.Canceled) && p.trains:
		err = errors.New("stopped without saving: what was done since the latest checkpoint is lost; run the same command to continue from there")
	case errors.Is(err, context.Canceled):
		status, err = exitInterrupted, train.ErrInterrupted
	case errors.Is(err, blame.ErrRequest) && p.isEnded && !p.trains: // what an end cuts short says nothing of the request
		status, err = exitInterrupted, train.ErrInterrupted
	case errors.Is(err, blame.ErrRequest):
		status = exitBadRequest
	}
	if p.env != nil && p.env.Cluster != nil && !isOfAll(cause) {
		p.stderr.speakAs(p.env.Cluster.Name(p.env.Cluster.Host)) // also as rank 0
	}
	if !isOthers(cause) {
		p.stderr.line("millrace: %s", oneLine(err))
	}
	return status
}

// isReaderGone reports whether results could not be written because no program reads them any more.
func isReaderGone(err error) bool {
	e, ok := errors.AsType[*fs.PathError](err)
	return ok && e.Path == os.Stdout.Name() && errors.Is(e.Err, syscall.EPIPE)
}

// out takes the progress of verbs that package train does not carry out.
func (p *program) out() console.Out { return console.Out{Writer: p.stderr, Terminal: p.env.Terminal} }
