// Command gpucheck checks a machine with a GPU, with the files in its own folder: is every kernel right, how fast is
// each part, how fast is a step?
//
// Minutes on a GPU are few. So there is a budget of seconds, results are printed as they come, and the rows that say
// most come first. A [row] is one question. It runs in processes of its own, in a process group that ends with it: a
// row that fails, crashes or hangs costs itself and the seconds that it took. A row that no longer fits in the budget
// is left out, and the table says so. Results go to a few files in one folder. They are written again after each row,
// so a killed check loses one row at most.
//
// gpu-check.sh packs the programs and what they read into an archive next to this one, which unpacks it; README.md
// lists the rows and their order.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Exit statuses.
const (
	exitDone        = 0
	exitFailed      = 1
	exitRequest     = 2
	exitInterrupted = 130
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr, rows)) }

// run runs the program and returns its exit status.
func run(args []string, stdout, stderr io.Writer, all []row) int {
	if len(args) > 0 && args[0] == packCommand {
		return packMain(args[1:], stderr)
	}
	begin := time.Now() // what unpacking takes is of the budget too
	o, err := options(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitDone
	}
	if err == nil {
		err = o.choose(all)
	}
	if err != nil {
		fmt.Fprintf(stderr, "gpucheck: %v\n", err)
		return exitRequest
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	status, err := func() (status int, err error) {
		dir, remove, err := files(o.dir)
		if err != nil {
			return exitFailed, err
		}
		defer func() { err = errors.Join(err, remove()) }()
		o.dir = dir
		c, err := newCheck(ctx, o, begin.Add(o.budget), stdout)
		if err != nil {
			return exitFailed, err
		}
		return c.all(), nil
	}()
	if err != nil {
		fmt.Fprintf(stderr, "gpucheck: %v\n", err)
		return exitFailed
	}
	return status
}

// options reads flags, and the environment for what they leave open.
func options(args []string, stderr io.Writer) (*config, error) {
	o := &config{}
	env := func(name, value string) string {
		if v := os.Getenv(name); v != "" {
			return v
		}
		return value
	}
	f := flag.NewFlagSet("gpucheck", flag.ContinueOnError)
	f.SetOutput(stderr)
	budget := f.String("budget", env("BUDGET", ""),
		"seconds that all rows may take together, 570, or those of the call (BUDGET)")
	f.StringVar(&o.call, "call", env("CALL", ""),
		"the rows of a planned call in their order, a or b, of which --only chooses (CALL)")
	f.StringVar(&o.out, "out", env("OUT", "gpu-check.out"), "folder for results, at most 8 files (OUT)")
	f.StringVar(&o.gpu, "gpu", env("GPU", "cuda:0"), "the GPU of the rows that run the program (GPU)")
	f.StringVar(&o.only, "only", env("ONLY", "*"), "patterns of the rows to run, such as 'kernels* bench-always' (ONLY)")
	f.StringVar(&o.shape, "shape", env("SHAPE", "qwen2.5-7b"), "the shape of the benchmarks (SHAPE)")
	f.StringVar(&o.model, "model", env("MODEL", ""), "a Hugging Face directory or a GGUF file for the row real (MODEL)")
	f.StringVar(&o.data, "data", env("DATA", ""), "text or JSONL for the row real (DATA)")
	f.StringVar(&o.peers, "peers", env("PEERS", "*"),
		"patterns of the rows that the row peers runs, such as '*7b*llmq*' (PEERS)")
	f.BoolVar(&o.tiny, "tiny", os.Getenv("TINY") == "1", "sizes for a rehearsal without a GPU: no figure means anything (TINY=1)")
	here, err := os.Executable()
	if err != nil {
		return nil, err
	}
	f.StringVar(&o.dir, "dir", filepath.Dir(here), "the folder with the programs, packed or not")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("%q is no flag; --help lists them", f.Arg(0))
	}
	if *budget == "" {
		if o.call == "" {
			o.budget = sec(570)
		}
		return o, nil
	}
	given, err := strconv.ParseFloat(*budget, 64)
	if err != nil || !(given >= 1) || given > 1e6 {
		return nil, fmt.Errorf("--budget is %q: give seconds, such as 570", *budget)
	}
	o.budget = time.Duration(given * float64(time.Second))
	return o, nil
}
