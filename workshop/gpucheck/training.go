package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/millrace/millrace/trace"
)

// train trains the small model of random weights on the text that is here, with further keys set, as the run of a name.
func (c *check) train(name string, set ...string) error { return c.trainWith(nil, name, set...) }

// trainWith is train with further variables of the environment.
func (c *check) trainWith(env []string, name string, set ...string) error {
	folder := filepath.Join(c.work, "runs", name)
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	return c.run(env, name, set...)
}

// again trains as train does, in a folder that is there.
func (c *check) again(name string, set ...string) error { return c.run(nil, name, set...) }

func (c *check) run(env []string, name string, set ...string) error {
	args := []string{"train", c.runFile(), "--set", "output_dir=" + filepath.Join(c.work, "runs", name)}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	_, err := c.command(env, "millrace", args...)
	return err
}

// losses returns those of a run's steps.
func (c *check) losses(name string) ([]float64, error) {
	f, err := os.Open(filepath.Join(c.work, "runs", name, "metrics.jsonl"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	records, err := trace.ReadMetrics(f)
	var all []float64
	for _, m := range records {
		if m.Step > 0 {
			all = append(all, m.Loss)
		}
	}
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("run %s has no losses", name)
	}
	return all, err
}

// steps counts the steps of a run: 20, and fewer in a rehearsal.
func (c *check) steps() int {
	if c.tiny {
		return 2 // the second begins with the updates of the first
	}
	return 20
}

// parity compares the losses of the GPU with those of the CPU, which adds in another order.
func parity(c *check) (string, error) {
	if err := errors.Join(c.train("cpu", "device=cpu"), c.train("gpu")); err != nil {
		return "", err
	}
	return c.near("cpu", "gpu", c.steps(), 0.01)
}

// near reports the largest relative difference of the losses of two runs, an error if it is larger than a limit.
func (c *check) near(one, other string, steps int, limit float64) (string, error) {
	a, err := c.losses(one)
	if err != nil {
		return "", err
	}
	b, err := c.losses(other)
	if err != nil {
		return "", err
	}
	if len(a) != steps || len(b) != steps {
		return "", fmt.Errorf("%d and %d steps, want %d", len(a), len(b), steps)
	}
	worst := 0.0
	for i := range a {
		worst = max(worst, math.Abs(b[i]/a[i]-1))
	}
	note := fmt.Sprintf("the largest relative difference of %d losses is %.2g", steps, worst)
	if !(worst <= limit) {
		return "", errors.New(note)
	}
	return note, nil
}

// sameBits compares the models that two runs wrote.
func (c *check) sameBits(one, other string) error {
	var models [2][]byte
	for i, name := range []string{one, other} {
		var err error
		if models[i], err = os.ReadFile(filepath.Join(c.work, "runs", name, "model", "model.safetensors")); err != nil {
			return err
		}
	}
	if !bytes.Equal(models[0], models[1]) {
		return fmt.Errorf("runs %s and %s have other bits", one, other)
	}
	return nil
}

// plan plans the small model.
func (c *check) plan(set ...string) (p planned, err error) {
	args := []string{"plan", c.runFile(), "--json"}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	said, err := c.command(nil, "millrace", args...)
	if err != nil {
		return p, err
	}
	return p, json.Unmarshal([]byte(said), &p)
}

// streamedBudget returns the setting of memory.device with which the small model has to stream most. It tries some
// shares of the memory that the planner would use freely, plus the memory of the driver, and returns the smallest one
// that the planner accepts and streams in.
func (c *check) streamedBudget() (string, error) {
	whole, err := c.plan()
	if err != nil {
		return "", err
	}
	for _, share := range []float64{0.4, 0.55, 0.7, 0.85} {
		set := fmt.Sprintf("memory.device=%dKiB", (whole.DeviceDriverBytes+int64(share*float64(whole.DeviceBytes)))>>10)
		p, err := c.plan(set)
		switch {
		case isStatus(err, exitRequest): // too little
		case err != nil:
			return "", err
		case p.Predicted.UploadBytes > whole.Predicted.UploadBytes:
			return set, nil
		}
	}
	return "", errors.New("no smaller budget has weights streamed")
}

// streamed shows that a budget which has weights streamed changes no bit.
func streamed(c *check) (string, error) {
	budget, err := c.streamedBudget()
	if err != nil {
		return "", err
	}
	if err := errors.Join(c.train("resident"), c.train("streamed", budget), c.sameBits("resident", "streamed")); err != nil {
		return "", err
	}
	return "the same bits with " + budget, nil
}

// resumed shows that a run which is stopped and resumed ends with the same bits.
func resumed(c *check) (string, error) {
	half, whole := fmt.Sprintf("save.every=%d", c.steps()/2), fmt.Sprintf("max_steps=%d", c.steps())
	if err := errors.Join(c.train("whole", whole), c.train("halves", whole, half, "resume=auto")); err != nil {
		return "", err
	}
	folder := filepath.Join(c.work, "runs", "halves")
	err := errors.Join(os.RemoveAll(filepath.Join(folder, "model")),
		os.RemoveAll(filepath.Join(folder, "checkpoints", fmt.Sprintf("step-%06d", c.steps()))),
		c.again("halves", whole, half, "resume=auto"), c.sameBits("whole", "halves"))
	return fmt.Sprintf("the same bits, stopped after step %d of %d", c.steps()/2, c.steps()), err
}

// learns shows that training works: the loss falls by more than a third.
func learns(c *check) (string, error) {
	steps, tokens, least := 150, 8192, 0.66
	if c.tiny {
		steps, tokens, least = 12, 64, 1
	}
	if err := c.train("longer", fmt.Sprintf("max_steps=%d", steps), fmt.Sprintf("batch_tokens=%d", tokens)); err != nil {
		return "", err
	}
	losses, err := c.losses("longer")
	if err != nil {
		return "", err
	}
	first, last := losses[0], losses[len(losses)-1]
	note := fmt.Sprintf("loss %.3f after the first and %.3f after the last of %d steps", first, last, len(losses))
	if !(last < least*first) {
		return "", errors.New(note)
	}
	return note, nil
}

// realModel trains a real model on real data, and compares the losses with the CPU's.
func realModel(c *check) (string, error) {
	if c.model == "" || c.data == "" {
		return "", leftOut("--model and --data name no model and no data")
	}
	model := c.model
	if strings.HasSuffix(model, ".gguf") {
		model = filepath.Join(c.work, "real-model")
		if _, err := c.command(nil, "millrace", "import", c.model, model); err != nil {
			return "", err
		}
	}
	const steps = 6
	set := []string{"init=pretrained", "model=" + model, "tokenizer=auto", "learning_rate=2e-5", "sequence_len=512", "batch_tokens=1024",
		fmt.Sprint("max_steps=", steps), "numerics={micro_batch: 2, head_chunk: 512}", "datasets=[{path: " + c.data + ", type: " + dataType(c.data) + "}]"}
	if err := errors.Join(c.train("real-gpu", set...), c.train("real-cpu", append(set, "device=cpu")...)); err != nil {
		return "", err
	}
	return c.near("real-cpu", "real-gpu", steps, 0.01)
}

// dataType names the type of a file's data in run.yaml: GSM8K's questions and answers, or text.
func dataType(path string) string {
	if strings.HasSuffix(path, ".jsonl") {
		return "prompt-response, prompt: question, response: answer"
	}
	return "text"
}

// badInput shows that what a user may get wrong is one line and the right exit status.
func badInput(c *check) (string, error) {
	hidden := []string{"CUDA_VISIBLE_DEVICES="}
	refusals := []struct {
		want string
		env  []string
		set  string
	}{
		{"there is no such GPU", nil, "device=cuda:77"},
		{`CUDA_VISIBLE_DEVICES is ""`, hidden, "device=cuda:0"},
		{"memory.device", nil, "memory.device=1MiB"},
		{"is not the number of a GPU", nil, "device=cuda:first"},
	}
	for _, r := range refusals {
		_, err := c.command(r.env, "millrace", "plan", c.runFile(), "--set", r.set)
		var exit *exitError
		if !errors.As(err, &exit) || exit.status != exitRequest {
			return "", fmt.Errorf("%s: %v, want status %d", r.set, err, exitRequest)
		}
		var lines []string
		for _, line := range strings.Split(strings.TrimSpace(exit.text), "\n") {
			if !isNote(line) {
				lines = append(lines, line)
			}
		}
		if len(lines) != 1 || !strings.Contains(lines[0], r.want) {
			return "", fmt.Errorf("%s: it says %q, want one line with %q", r.set, lines, r.want)
		}
	}
	said, err := c.command(hidden, "millrace", "plan", c.runFile(), "--set", "device=auto")
	if err != nil || !strings.Contains(said, "CPU") {
		return "", fmt.Errorf("device auto without a GPU: %v; it does not compute on the CPU", err)
	}
	return fmt.Sprintf("%d mistakes are refused in a line each", len(refusals)), nil
}

// isNote reports whether a line is a note, which may precede the error.
func isNote(line string) bool {
	for _, note := range []string{"the driver is compiling", "kernels were compiled", "matrix products run on"} {
		if strings.HasPrefix(line, "millrace: device cuda:") && strings.Contains(line, note) {
			return true
		}
	}
	return false
}
