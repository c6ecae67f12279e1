// Command stall compares the time that steps wait for a checkpoint with the plan's prediction. It probes the machine,
// and trains a small model that saves every third step, with its state in memory and then on disk, where checkpoints
// are hard links.
//
// A save gets its state during the step after it. The stall is the median of those steps, less the median of the steps
// that save nothing.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/millrace/millrace/benchmarks/internal/harness"
	"github.com/millrace/millrace/trace"
)

const saveEvery = 3

func main() {
	log.SetFlags(0)
	millrace := flag.String("millrace", "", "the program; built from this module if it is not given")
	dir := flag.String("dir", os.TempDir(), "a directory on the drive that is saved to; what is made there is removed")
	saves := flag.Int("saves", 4, "checkpoints of each run")
	tiny := flag.Bool("tiny", false, "shrink the model, to try the comparison itself")
	flag.Parse()
	if err := harness.RunProgram(*millrace, *dir, "stall", func(p *harness.Program) error {
		return run(&runner{Program: p, saves: *saves}, *tiny)
	}); err != nil {
		log.Fatal(err)
	}
}

// runner has what all rows share.
type runner struct {
	*harness.Program
	config string
	saves  int
}

// row is a run, with its state in memory or on disk.
type row struct {
	name        string
	batchTokens int
	onDisk      bool
}

func run(r *runner, tiny bool) error {
	if err := r.prepare(tiny); err != nil {
		return err
	}
	harness.Head("| state | copied a save | on disk | step planned, s | step measured, s | step that saves, s " +
		"| stall planned, s | stall measured, s | of it commit, s |")
	for _, w := range []row{
		{"in memory, short steps", 256, false},
		{"in memory", 1024, false},
		{"on disk, short steps", 256, true},
		{"on disk", 1024, true},
	} {
		line, err := r.measure(w)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		fmt.Println(line)
	}
	fmt.Printf("\n%d saves a run, one every %d steps; %.0f s in all\n", r.saves, saveEvery, r.Seconds())
	return nil
}

// prepare writes the configuration of a SmolLM2-135M, random letters to train it on, and the run file.
func (r *runner) prepare(tiny bool) error {
	shape := harness.SmolLM2
	if tiny {
		shape.Layers, shape.Hidden, shape.Heads = 6, 192, 3
	}
	model := filepath.Join(r.Dir, "model")
	if err := shape.Write(model); err != nil {
		return err
	}
	var text bytes.Buffer
	random := rand.New(rand.NewPCG(1, 2))
	for range 400 {
		line := make([]byte, 400)
		for i := range line {
			line[i] = 'a' + byte(random.IntN(26))
		}
		fmt.Fprintf(&text, "{\"text\": %q}\n", line)
	}
	data := filepath.Join(r.Dir, "text.jsonl")
	r.config = filepath.Join(r.Dir, "run.yaml")
	yaml := fmt.Sprintf("model: %q\ninit: random\ntokenizer: bytes\ndatasets:\n  - {path: %q, type: text}\n"+
		"sequence_len: 256\nsave: {every: %d, keep: 1}\nmax_steps: %d\nlearning_rate: 1e-4\n",
		model, data, saveEvery, saveEvery*r.saves+1)
	return errors.Join(os.WriteFile(data, text.Bytes(), 0o644), os.WriteFile(r.config, []byte(yaml), 0o644))
}

// planned has the fields of `millrace plan --json` that are used.
type planned struct {
	HostBytes   int64 `json:"host_bytes"`
	DeviceBytes int64 `json:"device_bytes"`
	DiskBytes   int64 `json:"disk_bytes"`
	Predicted   struct {
		StepSec float64 `json:"step_sec"`
	} `json:"predicted"`
	Forecast struct {
		CheckpointBytes    int64   `json:"checkpoint_bytes"`
		CheckpointStallSec float64 `json:"checkpoint_stall_sec"`
	} `json:"forecast"`
}

func (r *runner) measure(w row) (line string, err error) {
	out := filepath.Join(r.Dir, "run")
	args := []string{r.config, "--json", "--set", "output_dir=" + out,
		"--set", fmt.Sprintf("batch_tokens=%d", w.batchTokens)}
	p, err := r.plan(args)
	if err == nil && w.onDisk {
		args, p, err = r.toDisk(args, p)
	}
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(out)) }()
	text, _, err := r.Call(append([]string{"train"}, args...)...)
	if err != nil {
		return "", err
	}
	var summary struct {
		SaveStallSec float64 `json:"save_stall_sec"`
	}
	if err := json.Unmarshal(text, &summary); err != nil {
		return "", err
	}
	saving, others, err := steps(filepath.Join(out, "metrics.jsonl"))
	if err != nil {
		return "", err
	}
	commits := r.saves + 1 // the run's end is one, too
	return fmt.Sprintf("| %s | %s | %s | %.3f | %.3f | %.3f | %.3f | %.3f | %.3f |", w.name,
		harness.MiB(p.Forecast.CheckpointBytes, 0), harness.MiB(p.DiskBytes, 0),
		p.Predicted.StepSec, others.Median(), saving.Median(), p.Forecast.CheckpointStallSec, saving.Median()-others.Median(),
		summary.SaveStallSec/float64(commits)), nil
}

// toDisk lowers the host's budget until most of what a save would copy is on disk.
func (r *runner) toDisk(args []string, whole *planned) ([]string, *planned, error) {
	for share := 0.9; ; share -= 0.1 {
		less := slices.Concat(args, []string{"--set", "memory.disk=auto",
			"--set", "memory.path=" + filepath.Join(r.Dir, "state"), "--set", fmt.Sprintf("memory.host=%dB", int64(share*float64(whole.HostBytes+whole.DeviceBytes)))})
		p, err := r.plan(less)
		if err != nil || p.Forecast.CheckpointBytes < whole.Forecast.CheckpointBytes/2 {
			return less, p, err
		}
	}
}

func (r *runner) plan(args []string) (*planned, error) {
	text, _, err := r.Call(append([]string{"plan"}, args...)...)
	if err != nil {
		return nil, err
	}
	p := &planned{}
	return p, json.Unmarshal(text, p)
}

// steps returns the seconds of the steps that hand state to a save, and of the others. It leaves out the first two: the
// first has no update before it, and both warm up.
func steps(metrics string) (saving, others harness.Series, err error) {
	f, err := os.Open(metrics)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	all, err := trace.ReadMetrics(f)
	if err != nil {
		return nil, nil, err
	}
	for _, m := range all {
		switch {
		case m.Step <= 2:
		case m.Step%saveEvery == 1:
			saving = append(saving, m.StepSec)
		default:
			others = append(others, m.StepSec)
		}
	}
	if len(saving) == 0 || len(others) == 0 {
		return nil, nil, fmt.Errorf("%s: there are too few steps", metrics)
	}
	return saving, others, nil
}
