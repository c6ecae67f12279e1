package train

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/rehearse"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
)

// longRequest asks for a step of one sequence of a 7B model on a named machine.
func longRequest(t *testing.T, machine string, sequenceLen int) plan.Request {
	t.Helper()
	text, err := plan.Shape("qwen2.5-7b-1m")
	if err != nil {
		t.Fatal(err)
	}
	on, err := plan.FindMachine(machine)
	if err != nil {
		t.Fatal(err)
	}
	return plan.Request{Model: modelOf(t, string(text)), Device: on.Device, Machine: on.Machine, DeviceBytes: on.DeviceBytes,
		HostBytes: on.HostBytes, ProgramBytes: plan.ProgramBytes(on.Device, 1),
		Numerics: plan.Numerics{Compute: tensor.BF16, Master: optim.Split, SequenceLen: sequenceLen}}
}

// 512k tokens of context of a 7B model fit on a GPU of 80 GB, as planned and as rehearsed; in one chunk they do not.
func TestHalfAMillionTokens(t *testing.T) {
	if testing.Short() {
		t.Skip("a rehearsal of a large model")
	}
	const tokens = 512 << 10
	r := longRequest(t, "h100-pcie5", tokens)
	p, err := plan.Fitting{Request: r, Rows: 1}.Fit(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	got, err := rehearse.Steps(p, 2)
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	for _, b := range p.Device {
		table.WriteString("\n  " + b.Purpose + " " + plan.FormatBytes(b.Bytes))
	}
	t.Logf("%s on the device, blocks in chunks of %d:%s", plan.FormatBytes(got.DeviceBytes), p.Numerics.BlockChunk, &table)
	if got.DeviceBytes > 79<<30 || p.Numerics.Positions() != tokens || p.Numerics.BlockChunk != 16384 {
		t.Errorf("%d bytes for %+v", got.DeviceBytes, p.Numerics)
	}
	// What attention leaves comes from host memory sooner than it is computed again.
	for b := range p.Model.Blocks {
		if !p.ActivationsPass(b) && p.Keep(b) == nn.KeepInput {
			t.Errorf("attention of block %d is computed again", b)
		}
	}
	_, err = plan.Fitting{Request: r, Rows: 1, Cuts: runfile.Sizes{BlockChunk: tokens}.Cuts()}.Fit(context.Background())
	if err == nil || !strings.Contains(err.Error(), "numerics.block_chunk=") {
		t.Errorf("in one chunk: %v", err)
	}
}

// A long document trains in a budget that only chunks make enough, and comes to what a run in one chunk comes to.
func TestLongContextTrains(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out some seconds of arithmetic; make test runs them")
	}
	c := smallConfig(t)
	c.Model = writeModel(t, map[string]any{"max_position_embeddings": 4096, "intermediate_size": 1024})
	doc := filepath.Join(t.TempDir(), "long.txt")
	text := strings.Repeat("the miller opens the gate, and the race runs over the wheel; ", 400)
	if err := os.WriteFile(doc, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	c.Datasets = []data.Source{{Path: doc, Type: data.Text}}
	c.SequenceLen, c.BatchTokens, c.MaxSteps, c.WarmupSteps = 4096, 4096, 2, 0
	run := func(rows runfile.Auto, memory runfile.Memory) (*Summary, error) {
		now := *c
		now.Numerics.BlockChunk, now.Memory, now.OutputDir = rows, memory, filepath.Join(t.TempDir(), "run")
		if err := now.Check(); err != nil {
			t.Fatal(err)
		}
		return Train(context.Background(), &now, Options{Env: newEnv(t)})
	}
	const device = "40MiB"
	if _, err := run(4096, budget(t, device)); err == nil || !strings.Contains(err.Error(), "numerics.block_chunk=") {
		t.Fatalf("in one chunk: %v", err)
	}
	chunks, err := run(0, budget(t, device))
	if err != nil {
		t.Fatal(err)
	}
	whole, err := run(4096, runfile.Memory{})
	if err != nil {
		t.Fatal(err)
	}
	if chunks.FirstLoss != whole.FirstLoss || !(math.Abs(chunks.LastLoss-whole.LastLoss) <= 1e-5) || !(chunks.LastLoss < chunks.FirstLoss) {
		t.Errorf("losses %v to %v in chunks, %v to %v in one", chunks.FirstLoss, chunks.LastLoss, whole.FirstLoss, whole.LastLoss)
	}
}
