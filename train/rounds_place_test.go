package train

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rl"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/traintest"
)

// deepLoop is a loop whose state is large enough to go to disk: of nine layers, and with samples.
func deepLoop(t *testing.T) *runfile.Config {
	c, deep := loopConfig(t), maps.Clone(qwenConfig)
	deep["num_hidden_layers"] = 9
	c.Model = traintest.WriteModel(t, deep)
	c.MaxSteps, c.Numerics = 3, runfile.Sizes{MicroBatch: 2, HeadChunk: 32}
	c.Samples = someSamples(2)
	return c
}

// inPlace runs a loop with its state in a place, and checks that it has the bits of one that was run. It returns its
// plan.
func inPlace(t *testing.T, c *runfile.Config, p placement, devices int) *plan.Plan {
	t.Helper()
	own := *c
	own.Memory, own.OutputDir = p.memory, filepath.Join(t.TempDir(), "run")
	env := newEnv(t)
	env.Tests.ProgramBytes = 1
	if p.cache != "" {
		env.CacheDir = p.cache
	}
	if devices > 1 {
		env = devicesEnv(t, devices)
		env.Tests.ProgramBytes = 1
	}
	if _, err := Train(t.Context(), &own, Options{Env: env}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(loopWeights(t, &own), loopWeights(t, c)) {
		t.Error("the weights are others")
	}
	for round := range c.MaxSteps {
		name := filepath.Join(rl.Dir, rl.RowsName(round))
		a, errA := os.ReadFile(filepath.Join(own.OutputDir, name))
		b, errB := os.ReadFile(filepath.Join(c.OutputDir, name))
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("the answers of round %d are others (%v, %v)", round, errA, errB)
		}
	}
	a, b := samplesOf(t, own.OutputDir), samplesOf(t, c.OutputDir)
	if len(a) == 0 || !reflect.DeepEqual(a, b) {
		t.Errorf("the samples are others: %d, and there were %d", len(a), len(b))
	}
	var planned plan.Plan
	doc, err := os.ReadFile(filepath.Join(own.OutputDir, rundir.PlanName))
	if err == nil {
		err = json.Unmarshal(doc, &planned)
	}
	q := planned.Sampler
	switch {
	case err != nil || (q != nil) != !planned.Bound():
		t.Fatalf("the plan has the sampler %+v, %v", q, err)
	case q != nil && (planned.SamplerBytes() == 0 || planned.DeviceBytes < q.DeviceBytes || !q.Outputs.Continues() ||
		planned.Outputs.Continues()):
		t.Errorf("%d bytes on the device, %d for the sampler; %d of host memory", planned.DeviceBytes, q.DeviceBytes,
			planned.SamplerBytes())
	}
	return &planned
}

// Where a loop keeps its state changes no bit of its answers and its weights. Where weights are streamed, answers
// have a plan of their own, and a run's samples follow it, too.
func TestLoopInEachPlace(t *testing.T) {
	c := deepLoop(t)
	loopRecords(t, c)
	steps := *c // so that what is tight for them alone goes to disk
	steps.RL, steps.Samples = runfile.RL{}, runfile.Defaults().Samples
	for _, p := range placementsOf(t, &steps) {
		t.Run(p.name, func(t *testing.T) {
			planned := inPlace(t, c, p, 1)
			if p.cache != "" && !planned.AnyStateResident() {
				t.Error("no state is on the device")
			}
			if (planned.DiskBytes > 0) != (p.name == "on disk") {
				t.Errorf("%d bytes are on disk", planned.DiskBytes)
			}
		})
	}
	t.Run("two devices", func(t *testing.T) {
		if planned := inPlace(t, c, placement{memory: budget(t, "3MiB")}, 2); planned.Ranks() != 2 {
			t.Errorf("steps are dealt to %d devices", planned.Ranks())
		}
	})
}

// A critic shares the model of a loop that is streamed.
func TestStreamedLoopWithACritic(t *testing.T) {
	c := deepLoop(t)
	c.Objective.Loss = runfile.Losses{"ppo"}
	loopRecords(t, c)
	inPlace(t, c, placement{memory: budget(t, "3MiB")}, 1)
}
