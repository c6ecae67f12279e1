package train

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/stream"
)

// goldenTaught is a run of testdata/distill.json: distill.py next to it says how PyTorch has made it.
type goldenTaught struct {
	K                        int
	Share, Temperature       float64
	Losses, KLs, NLLs, Norms []float64
}

// teach gives a document what the teacher of distill.py says of it at a temperature: of each token the k likeliest
// ones.
func teach(d *stream.Document, number uint32, k int, temperature float64) {
	const vocab = 98
	d.TopIDs, d.TopLogProbs = nil, nil
	for t := range d.Length {
		logits, sum := make([]float64, vocab), 0.0
		ids := make([]int32, vocab)
		for i := range logits {
			logits[i] = 64 * float64(goldenWeight(1000+number, uint32(t*vocab+i))) / temperature
			sum += math.Exp(logits[i])
			ids[i] = int32(i)
		}
		slices.SortStableFunc(ids, func(a, b int32) int {
			if logits[a] > logits[b] {
				return -1
			}
			return 1
		})
		d.TopIDs = append(d.TopIDs, ids[:k]...)
		for _, id := range ids[:k] {
			d.TopLogProbs = append(d.TopLogProbs, float32(logits[id]-math.Log(sum)))
		}
	}
}

// TestDistillLikePyTorch compares ten steps that learn from a teacher with autograd's in float64, for documents in rows
// of their own, two in a row, and in rows of another order.
func TestDistillLikePyTorch(t *testing.T) {
	g := readGoldenObjectives(t)
	text, err := os.ReadFile("testdata/distill.json")
	if err != nil {
		t.Fatal(err)
	}
	var runs []goldenTaught
	if err := json.Unmarshal(text, &runs); err != nil || len(runs) != 6 {
		t.Fatalf("%d runs, %v", len(runs), err)
	}
	c := goldenConfig(t)
	for _, run := range runs {
		for l, layout := range layouts {
			steps := len(run.Losses)
			if l > 0 && testing.Short() {
				steps = 3
			}
			o, err := objective.New(objective.Settings{Type: "distill", TopK: run.K, Share: &run.Share,
				Temperature: &run.Temperature})
			if err != nil {
				t.Fatal(err)
			}
			r := openRun(t, c, "", OpenOptions{Objective: o})
			all := g.documents(&goldenRun{}, o.Needs())
			b := placed(all, layout.rows(len(all)), objective.Needs{}, r.Plan().Whole)
			for i := range b.Documents {
				teach(&b.Documents[i], uint32(i), run.K, run.Temperature)
			}
			for step := range steps {
				res, err := r.Step(t.Context(), b, r.Update(1e-3))
				if err != nil {
					t.Fatal(err)
				}
				m := res.Objective.Metrics()
				for _, x := range []struct {
					what      string
					got, want float64
					limit     float64 // relative
				}{{"loss", res.Loss(), run.Losses[step], lossLimit}, {"kl", m["kl"], run.KLs[step], lossLimit},
					{"nll_loss", m["nll_loss"], run.NLLs[step], lossLimit}, {"gradient norm", res.GradNorm, run.Norms[step],
						normLimit}} {
					if d := math.Abs(x.got-x.want) / x.want; !(d <= x.limit) {
						t.Errorf("K %d, share %v, temperature %v, %s, step %d: %s %v, PyTorch's %v: %.2g apart", run.K, run.Share,
							run.Temperature, layout.name, step+1, x.what, x.got, x.want, d)
					}
				}
			}
		}
	}
}
