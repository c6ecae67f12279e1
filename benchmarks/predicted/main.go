// Command predicted compares plans with measurements. It probes the machine, and runs `millrace bench` for ten
// configurations that differ in precision, sequence length, batch, budgets, tier, recomputation, moments, clipping and
// the head. It prints two figures as planned and as measured: the peak of the process's resident memory, and the
// seconds of a step.
//
// The peak is the kernel's account of the process that ran, and not the process's own. A peak above its plan fails the
// comparison (exit status 1). A peak more than 5% below it, or a step that takes 20% more or less than predicted, is
// marked.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/millrace/millrace/bench"
	"github.com/millrace/millrace/benchmarks/internal/harness"
	"github.com/millrace/millrace/trace"
)

// A plan may differ from the measurement by these shares.
const (
	peakShare    = 0.05 // below
	secondsShare = 0.20 // either way
)

func main() {
	log.SetFlags(0)
	millrace := flag.String("millrace", "", "the program; built from this module if it is not given")
	dir := flag.String("dir", os.TempDir(), "a directory on the drive for the disk tier; what is made there is removed")
	only := flag.String("only", "", "run the configurations whose names match this expression")
	steps := flag.Int("steps", 3, "steps that are measured, after one that is not")
	tiny := flag.Bool("tiny", false, "shrink the models, to try the comparison itself: peaks and seconds are then of small things")
	flag.Parse()
	wanted, err := regexp.Compile(*only)
	if err != nil {
		log.Fatalf("-only: %v", err)
	}
	over := 0
	if err := harness.RunProgram(*millrace, *dir, "predicted", func(p *harness.Program) (err error) {
		over, err = run(&runner{p, *steps, *tiny}, wanted)
		return err
	}); err != nil {
		log.Fatal(err)
	}
	if over > 0 {
		os.Exit(1)
	}
}

var (
	smol   = harness.SmolLM2
	untied = harness.Llama{Hidden: 576, Intermediate: 1536, Layers: 30, Heads: 9, KVHeads: 3, Vocab: 49152}
	wide   = harness.Llama{Hidden: 1024, Intermediate: 4096, Layers: 6, Heads: 16, KVHeads: 16, Vocab: 32000}
)

// configuration is one row.
type configuration struct {
	name  string
	shape harness.Llama
	args  string
	host  float64 // memory.host as a share of what the run takes without a budget, the rest goes to disk; 0: no budget
}

var configurations = []configuration{
	{"bf16", smol, "--sequence-len 1024 --batch-tokens 1024", 0},
	{"f32", smol, "--compute f32 --sequence-len 1024 --batch-tokens 1024", 0},
	{"bf16, all recomputed, one long sequence", smol, "--sequence-len 2048 --batch-tokens 2048 --recompute always", 0},
	{"bf16, streamed through 64 MiB", smol, "--sequence-len 512 --batch-tokens 2048 --micro-batch 1 --memory-device 64MiB", 0},
	{"f32, streamed through 192 MiB", smol, "--compute f32 --sequence-len 256 --batch-tokens 1024 --memory-device 192MiB", 0},
	{"bf16, untied head, no clipping", untied, "--sequence-len 512 --batch-tokens 1024 --max-grad-norm 0", 0},
	{"bf16, 8-bit moments, short sequences", smol, "--sequence-len 128 --batch-tokens 2048 --moments 8bit", 0},
	{"bf16, wide, untied head", wide, "--sequence-len 512 --batch-tokens 1024", 0},
	{"bf16, state on disk", smol, "--sequence-len 512 --batch-tokens 2048", 0.6},
	{"bf16, 8-bit moments, streamed, state on disk", untied, "--sequence-len 512 --batch-tokens 2048 --moments 8bit --memory-device 128MiB", 0.7},
}

// result is a measured step, with the kernel's account of the process's peak.
type result struct {
	bench.Result
	peakBytes int64
}

// runner has what all rows share.
type runner struct {
	*harness.Program
	steps int
	tiny  bool
}

// run prints the table, and returns how many peaks are above their plan.
func run(r *runner, wanted *regexp.Regexp) (over int, err error) {
	harness.Head("| configuration | on disk | planned peak | measured peak | below plan | planned s " +
		"| measured s (fastest to slowest) | off by | limit |")
	marked, rows := 0, 0
	for _, c := range configurations {
		if !wanted.MatchString(c.name) {
			continue
		}
		got, err := r.measure(c)
		if err != nil {
			return over, fmt.Errorf("%s: %w", c.name, err)
		}
		rows++
		below := 1 - float64(got.peakBytes)/float64(got.PlannedBytes)
		off := got.StepSec/got.PredictedStepSec - 1
		mark := func(bad bool) string {
			if bad {
				marked++
				return " (!)"
			}
			return ""
		}
		if below < 0 {
			over++
		}
		fmt.Printf("| %s | %s | %s | %s | %.1f%%%s | %.3f | %.3f (%.3f to %.3f) | %+.0f%%%s | %s |\n", c.name,
			harness.MiB(got.DiskBytes, 1), harness.MiB(got.PlannedBytes, 1), harness.MiB(got.peakBytes, 1), 100*below,
			mark(below < 0 || below > peakShare), got.PredictedStepSec, got.StepSec, got.StepMinSec, got.StepMaxSec,
			100*off, mark(math.Abs(off) > secondsShare), got.PredictedLimit)
		log.Printf("%s: lanes planned %v, measured %v", c.name, lanes(got.PredictedLanes), lanes(got.Lanes))
	}
	fmt.Printf("\n%d rows in %.0f s: %d peaks above their plan; %d figures marked (!): "+
		"a peak above its plan or more than %.0f%% below it, a step more than %.0f%% off\n",
		rows, r.Seconds(), over, marked, 100*peakShare, 100*secondsShare)
	return over, nil
}

// measure runs a configuration. If its host budget is a share, a short run without a budget first tells of how many
// bytes.
func (r *runner) measure(c configuration) (*result, error) {
	if r.tiny {
		c.shape.Layers, c.shape.Vocab = 3, 4096
	}
	model := filepath.Join(r.Dir, "model")
	if err := c.shape.Write(model); err != nil {
		return nil, err
	}
	args := append([]string{"bench", "--json", "--model", model}, strings.Fields(c.args)...)
	if r.tiny {
		args = append(args, "--sequence-len", "128", "--batch-tokens", "256") // the last of a flag counts
	}
	measured := []string{"--warmup", "1", "--steps", fmt.Sprint(r.steps)}
	if c.host > 0 {
		share := c.host
		if r.tiny {
			share = 0.92 // staging memory does not shrink with the model
		}
		whole, err := r.bench(append(args, "--warmup", "0", "--steps", "1"))
		if err != nil {
			return nil, err
		}
		args = append(args, "--memory-disk", "auto", "--memory-path", filepath.Join(r.Dir, "state"),
			"--memory-host", fmt.Sprintf("%dB", int64(share*float64(whole.PlannedBytes))))
	}
	return r.bench(append(args, measured...))
}

func (r *runner) bench(args []string) (*result, error) {
	out, peak, err := r.Call(args...)
	if err != nil {
		return nil, err
	}
	got := &result{peakBytes: peak}
	return got, json.Unmarshal(out, got)
}

// lanes lists the busy seconds of a step.
func lanes(sec trace.Lanes) string {
	return fmt.Sprintf("fetch %.3f compute %.3f drain %.3f update %.3f disk %.3f", sec[trace.Fetch],
		sec[trace.Compute], sec[trace.Drain], sec[trace.Update], sec[trace.Disk])
}
