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
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	over, err := run(ctx, *millrace, *dir, *only, *steps, *tiny)
	if err != nil {
		log.Fatal(err)
	}
	if over > 0 {
		os.Exit(1)
	}
}

// shape is a config.json of a llama.
type shape struct {
	hidden, intermediate, layers, heads, kvHeads, vocab int
	tied                                                bool
}

var (
	smol   = shape{576, 1536, 30, 9, 3, 49152, true} // SmolLM2-135M
	untied = shape{576, 1536, 30, 9, 3, 49152, false}
	wide   = shape{1024, 4096, 6, 16, 16, 32000, false}
)

// configuration is one row.
type configuration struct {
	name  string
	shape shape
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

// result has the fields of `millrace bench --json` that are compared.
type result struct {
	StepSec          float64            `json:"step_sec"`
	StepMinSec       float64            `json:"step_min_sec"`
	StepMaxSec       float64            `json:"step_max_sec"`
	PredictedStepSec float64            `json:"predicted_step_sec"`
	Lanes            map[string]float64 `json:"lanes"`
	PredictedLanes   map[string]float64 `json:"predicted_lanes"`
	PredictedLimit   string             `json:"predicted_limit"`
	Machine          string             `json:"machine"`
	DiskBytes        int64              `json:"disk_bytes"`
	PlannedBytes     int64              `json:"planned_bytes"`

	peakBytes int64 // the kernel's account
}

// runner has what all rows share.
type runner struct {
	ctx           context.Context
	millrace, dir string
	steps         int
	tiny          bool
}

func run(ctx context.Context, millrace, dir, only string, steps int, tiny bool) (over int, err error) {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return 0, fmt.Errorf("-only: %w", err)
	}
	if dir, err = os.MkdirTemp(dir, "millrace-predicted-"); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if millrace == "" {
		millrace = filepath.Join(dir, "millrace")
		if out, err := exec.CommandContext(ctx, "go", "build", "-o", millrace, "github.com/millrace/millrace/cmd/millrace").CombinedOutput(); err != nil {
			return 0, fmt.Errorf("go build: %w: %s", err, out)
		}
	}
	r := &runner{ctx, millrace, dir, steps, tiny}
	begin := time.Now()
	probed, _, err := r.call("probe", "--path", dir)
	if err != nil {
		return 0, err
	}
	fmt.Printf("```\n%s```\n\n", probed)
	fmt.Println("| configuration | on disk | planned peak | measured peak | below plan | planned s | measured s (fastest to slowest) | off by | limit |\n|---|---|---|---|---|---|---|---|---|")
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
		fmt.Printf("| %s | %s | %s | %s | %.1f%%%s | %.3f | %.3f (%.3f to %.3f) | %+.0f%%%s | %s |\n", c.name, mib(got.DiskBytes), mib(got.PlannedBytes),
			mib(got.peakBytes), 100*below, mark(below < 0 || below > peakShare), got.PredictedStepSec, got.StepSec, got.StepMinSec, got.StepMaxSec,
			100*off, mark(math.Abs(off) > secondsShare), got.PredictedLimit)
		log.Printf("%s: lanes planned %v, measured %v", c.name, lanes(got.PredictedLanes), lanes(got.Lanes))
	}
	fmt.Printf("\n%d rows in %.0f s: %d peaks above their plan; %d figures marked (!): a peak above its plan or more than %.0f%% below it, a step more than %.0f%% off\n",
		rows, time.Since(begin).Seconds(), over, marked, 100*peakShare, 100*secondsShare)
	return over, nil
}

// measure runs a configuration. If its host budget is a share, a short run without a budget first tells of how many
// bytes.
func (r *runner) measure(c configuration) (*result, error) {
	model, err := r.model(c.shape)
	if err != nil {
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
		args = append(args, "--memory-disk", "auto", "--memory-path", filepath.Join(r.dir, "state"),
			"--memory-host", fmt.Sprintf("%dB", int64(share*float64(whole.PlannedBytes))))
	}
	return r.bench(append(args, measured...))
}

func (r *runner) bench(args []string) (*result, error) {
	out, peak, err := r.call(args...)
	if err != nil {
		return nil, err
	}
	got := &result{peakBytes: peak}
	return got, json.Unmarshal(out, got)
}

// call runs the program, which has its measured machine in our directory, and returns what it prints and the peak of
// its resident memory.
func (r *runner) call(args ...string) (out []byte, peakBytes int64, err error) {
	cmd := exec.CommandContext(r.ctx, r.millrace, args...)
	cmd.Env = append(os.Environ(), "MILLRACE_CACHE="+filepath.Join(r.dir, "cache"))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	var problem strings.Builder
	cmd.Stderr = &problem
	if out, err = cmd.Output(); err != nil {
		return nil, 0, fmt.Errorf("millrace %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(problem.String()))
	}
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return nil, 0, errors.New("this system does not say how much memory a process had")
	}
	return out, usage.Maxrss * 1024, nil // in KiB on Linux
}

// model writes a config.json.
func (r *runner) model(s shape) (dir string, err error) {
	if r.tiny {
		s.layers, s.vocab = 3, 4096
	}
	doc, err := json.Marshal(map[string]any{"model_type": "llama", "architectures": []string{"LlamaForCausalLM"}, "vocab_size": s.vocab,
		"hidden_size": s.hidden, "intermediate_size": s.intermediate, "num_hidden_layers": s.layers, "num_attention_heads": s.heads,
		"num_key_value_heads": s.kvHeads, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000.0,
		"tie_word_embeddings": s.tied, "hidden_act": "silu", "initializer_range": 0.02, "torch_dtype": "bfloat16"})
	if err != nil {
		return "", err
	}
	dir = filepath.Join(r.dir, "model")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "config.json"), doc, 0o644)
}

func mib(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}

// lanes are the busy seconds of a step.
func lanes(sec map[string]float64) string {
	var b strings.Builder
	for _, name := range []string{"fetch", "compute", "drain", "update", "disk"} {
		fmt.Fprintf(&b, "%s %.3f ", name, sec[name])
	}
	return strings.TrimSpace(b.String())
}
