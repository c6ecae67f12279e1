package train

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/millrace/millrace/trace"
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
				if strings.HasPrefix(name, trace.LayersPrefix) {
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
