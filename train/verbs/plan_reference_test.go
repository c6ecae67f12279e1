package verbs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/traintest"
)

// The plan of a loop that is held to a reference counts what this takes of its own budget, on this machine and on a
// named one, and refuses a budget that is too small.
func TestPlanCountsAReference(t *testing.T) {
	planned := func(host, device int64, machine string) (*Planned, error) {
		c := runfile.Defaults()
		c.Model, c.SequenceLen, c.BatchTokens = traintest.WriteConfig(t, nil), 64, 1024
		c.Device, c.MaxSteps = "cpu", 3
		c.Datasets = []data.Source{{Path: "not read", Type: data.Prompts}}
		c.Objective = runfile.Objective{Type: "policy", KL: optim.Given(0.1), Reference: "start"}
		c.RL = runfile.RL{PromptsPerStep: 2, Samples: 4, MaxTokens: 8, Iterations: 1, Temperature: 1, TopP: 1,
			Reward:          []runfile.Reward{{Name: "short", Type: runfile.RewardLength}},
			ReferenceMemory: runfile.ModelMemory{Host: runfile.Bytes{N: host}, Device: runfile.Bytes{N: device}}}
		return PlanFor(t.Context(), &c, PlanOptions{Env: traintest.NewEnv(t), Machine: machine})
	}
	p, err := planned(1<<30, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	r := p.Reference
	if r == nil || !(r.Seconds > 0) || r.Passes*r.Plan.Numerics.MicroBatch < 8 || r.Plan.ProcessBytes() > 1<<30 {
		t.Fatalf("%+v", r)
	}
	if text := p.String(); !strings.Contains(text, "reference: ") || !strings.Contains(text, "the 8 answers of a round") {
		t.Error(text)
	}
	if _, err := planned(1<<20, 0, ""); err == nil ||
		!strings.Contains(fmt.Sprint(err), "reference: rl.reference_memory.host: the model needs ") {
		t.Errorf("with 1 MiB the error is %v", err)
	}
	if _, err := planned(1<<30, 0, "rtx4090-pc-128gb"); err == nil ||
		!strings.Contains(fmt.Sprint(err), "rl.reference_memory.device is missing") {
		t.Errorf("without memory of the GPU the error is %v", err)
	}
	if p, err = planned(2<<30, 1<<30, "rtx4090-pc-128gb"); err != nil || p.Reference.Plan.DeviceTotalBytes() > 1<<30 ||
		!strings.Contains(p.String(), " of the device besides the run") {
		t.Errorf("on a GPU: %+v, %v", p, err)
	}
}
