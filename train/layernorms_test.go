package train

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
)

// With layer_norms a record has the norm of each layer's gradient, which is 0 of frozen ones; together they are the
// norm. The run is the same to the bit.
func TestLayerNorms(t *testing.T) {
	var models []string
	for _, asked := range []bool{false, true} {
		c := smallConfig(t)
		c.LayerNorms, c.TrainOnly = asked, []string{"model.layers.*", "model.norm.weight", "lm_head.weight"}
		sum, err := Train(context.Background(), c, Options{Env: newEnv(t)})
		if err != nil {
			t.Fatal(err)
		}
		models = append(models, sum.Model)
		for _, m := range metricsOf(t, c.OutputDir) {
			squares, n := 0.0, 0
			for name, x := range m.Objective {
				if strings.HasPrefix(name, trace.LayersPrefix) && strings.HasSuffix(name, "/grad_norm") {
					squares, n = squares+x*x, n+1
				}
			}
			switch {
			case !asked && n > 0:
				t.Errorf("%d layers without layer_norms", n)
			case asked && m.Step > 0 && (n < 3 || math.Abs(math.Sqrt(squares)-m.GradNorm) > 1e-9*m.GradNorm):
				t.Errorf("step %d: %d layers, together %v, the norm is %v", m.Step, n, math.Sqrt(squares), m.GradNorm)
			case asked && m.Step > 0 && (m.Objective["layers/embedding/grad_norm"] != 0 ||
				m.Objective["layers/block_1/grad_norm"] == 0 || m.Objective["layers/head/grad_norm"] == 0):
				t.Errorf("step %d: %v", m.Step, m.Objective)
			}
		}
	}
	sameModel(t, models[0], models[1])
}

// After a save a record has how long the weights of each layer are, and how far their latest update moved them: as the
// difference of two checkpoints says. Moments in codes have lost a part of that. Weights are the same to the bit.
func TestWeightNorms(t *testing.T) {
	for name, c := range map[string]struct {
		precision runfile.Precision
		slack     float64
	}{"f32": {runfile.Precision{Compute: "f32", Master: "f32", Moments: "f32"}, 1e-3},
		"split":   {runfile.Precision{Compute: "bf16", Master: "split", Moments: "f32"}, 1e-2},
		"split24": {runfile.Precision{Compute: "bf16", Master: "split24", Moments: "8bit"}, 0.2}} {
		t.Run(name, func(t *testing.T) {
			config := smallConfig(t)
			config.Precision, config.LayerNorms, config.WeightDecay = c.precision, true, 0.1
			config.Save.Every, config.Save.Keep = 1, 100
			config.Groups = []optim.Group{{Match: "model.layers.1.*", LearningRate: optim.Given(config.LearningRate / 4)}}
			config.TrainOnly = []string{"model.layers.*", "model.norm.weight", "lm_head.weight"}
			if _, err := Train(context.Background(), config, Options{Env: newEnv(t)}); err != nil {
				t.Fatal(err)
			}
			layers := map[string]float64{}
			for _, m := range metricsOf(t, config.OutputDir) {
				if m.Step < 3 {
					continue
				}
				weights, moves := betweenSaves(t, config.OutputDir, int(m.Step)-2)
				for layer, weight := range weights {
					at := trace.LayersPrefix + layer
					near := func(what string, want float64) {
						got, ok := m.Objective[at+what]
						if !ok || math.Abs(got-want) > c.slack*want {
							t.Errorf("step %d: %s%s is %v, want %v", m.Step, layer, what, got, want)
						}
					}
					near("/weight_norm", math.Sqrt(weight))
					near("/update_ratio", math.Sqrt(moves[layer]/weight))
					layers[layer] += moves[layer]
				}
			}
			if len(layers) < 3 || layers["embedding"] != 0 || layers["block_1"] == 0 || layers["head"] == 0 {
				t.Errorf("the moves of layers are %v", layers)
			}
		})
	}
}

// betweenSaves are the squares of the weights of each layer after the save of step+1, and of their changes since step.
func betweenSaves(t *testing.T, dir string, step int) (weights, moves map[string]float64) {
	t.Helper()
	var readers []*checkpoint.Weights
	var m *model.Model
	for _, at := range []int{step, step + 1} {
		c, err := checkpoint.Open(vfs.OS{}, filepath.Join(dir, "checkpoints", checkpoint.DirName(at)))
		if err != nil {
			t.Fatal(err)
		}
		if m, err = c.Model(); err != nil {
			t.Fatal(err)
		}
		readers = append(readers, c.Weights(m))
	}
	weights, moves = map[string]float64{}, map[string]float64{}
	for _, tensor := range m.Tensors() {
		name := tensor.Name
		before, err := readers[0].Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		before = slices.Clone(before)
		after, err := readers[1].Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		layer := "head"
		if of, ok := strings.CutPrefix(name, "model.layers."); ok {
			n, _, _ := strings.Cut(of, ".")
			i, _ := strconv.Atoi(n)
			layer = fmt.Sprint("block_", i+1)
		} else if strings.HasPrefix(name, "model.embed_tokens") {
			layer = "embedding"
		}
		for i, x := range after {
			weights[layer] += float64(x) * float64(x)
			moves[layer] += float64(x-before[i]) * float64(x-before[i])
		}
	}
	return weights, moves
}
