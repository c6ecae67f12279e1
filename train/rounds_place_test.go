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

// Where a loop keeps its state changes no bit of its answers and its weights. Where weights are streamed, answers
// have a plan of their own, and a run's samples follow it, too.
func TestLoopInEachPlace(t *testing.T) {
	c, deep := loopConfig(t), maps.Clone(qwenConfig)
	deep["num_hidden_layers"] = 9
	c.Model = traintest.WriteModel(t, deep)
	c.MaxSteps, c.Numerics = 3, runfile.Sizes{MicroBatch: 2, HeadChunk: 32}
	c.Samples = someSamples(2)
	loopRecords(t, c)
	weights := loopWeights(t, c)
	answers := func(c *runfile.Config) (all []byte) {
		for round := range c.MaxSteps {
			doc, err := os.ReadFile(filepath.Join(c.OutputDir, rl.Dir, rl.RowsName(round)))
			if err != nil {
				t.Error(err)
			}
			all = append(all, doc...)
		}
		return all
	}
	steps := *c // so that what is tight for them alone goes to disk
	steps.RL, steps.Samples = runfile.RL{}, runfile.Defaults().Samples
	for _, p := range placementsOf(t, &steps) {
		t.Run(p.name, func(t *testing.T) {
			own := *c
			own.Memory, own.OutputDir = p.memory, filepath.Join(t.TempDir(), "run")
			env := newEnv(t)
			env.Tests.ProgramBytes = 1
			if p.cache != "" {
				env.CacheDir = p.cache
			}
			_, err := Train(t.Context(), &own, Options{Env: env})
			if err != nil {
				t.Fatal(err)
			}
			if got := loopWeights(t, &own); !bytes.Equal(got, weights) {
				t.Error("the weights are others")
			}
			if !bytes.Equal(answers(&own), answers(c)) {
				t.Error("the answers are others")
			}
			a, b := samplesOf(t, own.OutputDir), samplesOf(t, c.OutputDir)
			if len(a) == 0 || !reflect.DeepEqual(a, b) {
				for i := range a {
					if !reflect.DeepEqual(a[i], b[i]) {
						t.Errorf("sample %d of step %d: %v, %v", a[i].Number, a[i].Step, a[i].Tokens, b[i].Tokens)
					}
				}
			}
			var planned plan.Plan
			doc, err := os.ReadFile(filepath.Join(own.OutputDir, rundir.PlanName))
			if err == nil {
				err = json.Unmarshal(doc, &planned)
			}
			q := planned.Sampler
			if err != nil || (q != nil) != !planned.Bound() {
				t.Fatalf("the plan has the sampler %+v, %v", q, err)
			}
			if q != nil && (planned.SamplerBytes() == 0 || planned.DeviceBytes < q.DeviceBytes || !q.Outputs.Continues() ||
				planned.Outputs.Continues()) {
				t.Errorf("%d bytes on the device, %d for the sampler; %d of host memory", planned.DeviceBytes, q.DeviceBytes,
					planned.SamplerBytes())
			}
			if p.cache != "" && !planned.AnyStateResident() {
				t.Error("no state is on the device")
			}
		})
	}
}
