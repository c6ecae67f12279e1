package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Program runs the program millrace, with a temporary directory for its caches and for all files of the benchmark.
type Program struct {
	Dir  string
	ctx  context.Context
	path string
	made time.Time
}

// RunProgram opens a program in a new directory below dir, prints what it measures of the machine, and has a benchmark
// use it. An empty path has the program built from this module. An interrupt ends the program's processes, and the
// directory is removed in any case.
func RunProgram(path, dir, name string, benchmark func(*Program) error) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if dir, err = os.MkdirTemp(dir, "millrace-"+name+"-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if path == "" {
		path = filepath.Join(dir, "millrace")
		build := exec.CommandContext(ctx, "go", "build", "-o", path, "github.com/millrace/millrace/cmd/millrace")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("go build: %w: %s", err, out)
		}
	}
	p := &Program{Dir: dir, ctx: ctx, path: path, made: time.Now()}
	probed, _, err := p.Call("probe", "--path", dir)
	if err != nil {
		return err
	}
	fmt.Printf("```\n%s```\n\n", probed)
	return benchmark(p)
}

// Seconds returns the time since the program was opened.
func (p *Program) Seconds() float64 { return time.Since(p.made).Seconds() }

// Call runs the program, and returns its standard output and the peak of its resident memory.
func (p *Program) Call(args ...string) (out []byte, peakBytes int64, err error) {
	cmd := exec.CommandContext(p.ctx, p.path, args...)
	cmd.Env = append(os.Environ(), "MILLRACE_CACHE="+filepath.Join(p.Dir, "cache"))
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

// Llama has the sizes of a model of that family.
type Llama struct {
	Hidden, Intermediate, Layers, Heads, KVHeads, Vocab int
	Tied                                                bool
}

// SmolLM2 is SmolLM2-135M.
var SmolLM2 = Llama{576, 1536, 30, 9, 3, 49152, true}

// Write writes the model's config.json to a directory, which it makes.
func (l Llama) Write(dir string) error {
	doc, err := json.Marshal(map[string]any{"model_type": "llama", "architectures": []string{"LlamaForCausalLM"},
		"vocab_size": l.Vocab, "hidden_size": l.Hidden, "intermediate_size": l.Intermediate,
		"num_hidden_layers": l.Layers, "num_attention_heads": l.Heads, "num_key_value_heads": l.KVHeads,
		"max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": l.Tied,
		"hidden_act": "silu", "initializer_range": 0.02, "torch_dtype": "bfloat16"})
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "config.json"), doc, 0o644))
}
