package train

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/stream"
)

// testdata/objectives.json has what TRL's trainers compute; objectives.py next to it says how. The test makes the
// same model, lets the objective read the log-probabilities of a step, and takes the step with the weights that it
// gives: two forward passes, and no stop between them in the engine.

// goldenObjectives is the file.
type goldenObjectives struct {
	Versions map[string]string
	Pairs    []struct{ Prompt, Chosen, Rejected []int32 }
	Runs     []goldenRun
}

// goldenRun has the curves of a run, by step.
type goldenRun struct {
	Name        string
	Settings    objective.Settings
	Undesirable []int // documents of kto
	Losses      []float64
	Norms       []float64
	Metrics     map[string][]float64

	loose float64 // multiplies how far losses and metrics may be after the first step; 0: 1
}

func readGoldenObjectives(t *testing.T) (g goldenObjectives) {
	t.Helper()
	text, err := os.ReadFile("testdata/objectives.json")
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&g); err != nil {
		t.Fatal(err)
	}
	return g
}

// compared is a document of a step.
type compared struct {
	group              int
	side               objective.Side
	prompt, completion []int32
}

// documents lists those of a step of a golden run, in the order of the data.
func (g *goldenObjectives) documents(run *goldenRun, needs objective.Needs) (all []compared) {
	completion := func(i int) []int32 {
		if slices.Contains(run.Undesirable, i) {
			return g.Pairs[i].Rejected
		}
		return g.Pairs[i].Chosen
	}
	for i, p := range g.Pairs {
		add := func(side objective.Side, completion []int32) {
			all = append(all, compared{group: i, side: side, prompt: p.Prompt, completion: completion})
		}
		switch {
		case needs.Pairs:
			add(objective.Chosen, p.Chosen)
			add(objective.Rejected, p.Rejected)
		case needs.Labels:
			side := objective.Desirable
			if slices.Contains(run.Undesirable, i) {
				side = objective.Undesirable
			}
			add(side, completion(i))
			if needs.Mismatched {
				add(objective.Mismatched, completion((i+len(g.Pairs)-1)%len(g.Pairs)))
			}
		default:
			add(objective.Alone, p.Chosen)
		}
	}
	return all
}

// layouts are ways to place documents into rows, by their numbers. All give the same step.
var layouts = []struct {
	name string
	rows func(documents int) [][]int
}{
	{"rows of their own", func(n int) (rows [][]int) {
		for i := range n {
			rows = append(rows, []int{i})
		}
		return rows
	}},
	{"two in a row", func(n int) (rows [][]int) {
		for i := 0; i < n; i += 2 {
			rows = append(rows, []int{i, i + 1})
		}
		return rows
	}},
	{"another order", func(n int) (rows [][]int) {
		for i := range n {
			rows = append(rows, []int{n - 1 - i})
		}
		return rows
	}},
}

// placed makes a batch of documents. Prompts have targets where the objective needs them, of weight 0.
func placed(all []compared, rows [][]int, needs objective.Needs, n plan.Numerics) *stream.Batch {
	b := &stream.Batch{Documents: make([]stream.Document, len(all))}
	for range n.MicroBatches {
		b.Micro = append(b.Micro, batch.New(n.MicroBatch*n.SequenceLen))
	}
	for row, members := range rows {
		micro, at := row/n.MicroBatch, row%n.MicroBatch*n.SequenceLen
		for _, i := range members {
			d, m := &all[i], b.Micro[micro]
			tokens := slices.Concat(d.prompt, d.completion)
			m.SetDocument(at, tokens)
			for t := range tokens[1:] {
				inPrompt := t+1 < len(d.prompt)
				if inPrompt {
					m.Weights[at+t] = 0
				}
				if !inPrompt || needs.Prompts {
					m.Targets[at+t] = tokens[t+1]
					b.Targets++
				}
			}
			b.Documents[i] = stream.Document{Micro: micro, First: at, Length: len(tokens), Group: d.group, Side: d.side}
			at += len(tokens)
		}
	}
	return b
}

// weighed has an objective give a batch its weights, from the figures that the run computes. Log-probabilities of the
// first step are the reference.
func weighed(t *testing.T, r *Run, o objective.Objective, b *stream.Batch) (*stream.Batch, objective.Result) {
	t.Helper()
	figures, err := r.session.Engine.Figures(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b.Documents {
		if d := &b.Documents[i]; o.Needs().Reference && d.Reference == nil {
			d.Reference = slices.Clone(figures[d.Micro].LogProbs[d.First:][:d.Length])
		}
	}
	w, res, err := b.Weigh(o, len(b.Micro), figures)
	if err != nil {
		t.Fatal(err)
	}
	return w, res
}

// goldenConfig is a run of the golden model: batches of 8 rows of 24 tokens.
func goldenConfig(t *testing.T) *runfile.Config {
	t.Helper()
	c := smallConfig(t)
	c.Model, c.Datasets = writeGoldenModel(t), nil
	c.SequenceLen, c.BatchTokens = 24, 24*8
	c.Numerics = runfile.Sizes{MicroBatch: 4}
	c.MaxGradNorm, c.WeightDecay = 1, 0
	return c
}

// writeGoldenModel writes the model of objectives.py: its weights follow from the numbers of tensors in the order of
// their names.
func writeGoldenModel(t *testing.T) string {
	t.Helper()
	dir := writeConfig(t, map[string]any{"vocab_size": 98, "intermediate_size": 80, "rms_norm_eps": 1e-6})
	config, err := hf.ReadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(config)
	if err != nil {
		t.Fatal(err)
	}
	tensors := slices.Clone(m.Tensors())
	slices.SortFunc(tensors, func(a, b model.Tensor) int { return strings.Compare(a.Name, b.Name) })
	values := map[string][]float32{}
	for i, x := range tensors {
		size := 1
		for _, n := range x.Shape {
			size *= n
		}
		of := make([]float32, size)
		for j := range of {
			if of[j] = 1; len(x.Shape) > 1 {
				of[j] = goldenWeight(uint32(i), uint32(j))
			}
		}
		values[x.Name] = of
	}
	writeTensors(t, filepath.Join(dir, "model.safetensors"), m, values)
	return dir
}

// goldenWeight is an element of a tensor: a multiple of 2^-27 from -1/16 on and below 1/16.
func goldenWeight(tensor, element uint32) float32 {
	h := element + tensor*0x9e3779b9
	h ^= h >> 16
	h *= 0x85ebca6b
	h ^= h >> 13
	h *= 0xc2b2ae35
	h ^= h >> 16
	return (float32(h>>8) - 1<<23) / (1 << 27)
}

// TestObjectivesLikeTRL compares steps of each objective with TRL's trainers, for documents in rows of their own, two
// in a row, and in rows of another order. The first loss does not depend on that: it has the same bits.
func TestObjectivesLikeTRL(t *testing.T) {
	g := readGoldenObjectives(t)
	c := goldenConfig(t)
	for i := range g.Runs {
		run, first := &g.Runs[i], math.NaN()
		for l, layout := range layouts {
			steps := len(run.Losses)
			if l > 0 || testing.Short() {
				steps = 3
			}
			if l > 0 && testing.Short() && i%4 != 0 {
				continue
			}
			t.Run(run.Name+", "+layout.name, func(t *testing.T) {
				o, err := objective.New(run.Settings)
				if err != nil {
					t.Fatal(err)
				}
				r := openRun(t, c, "", OpenOptions{LogProbs: true})
				all := g.documents(run, o.Needs())
				b := placed(all, layout.rows(len(all)), o.Needs(), r.Plan().Whole)
				for step := range steps {
					w, res := weighed(t, r, o, b)
					taken, err := r.Step(t.Context(), w, r.Update(1e-3))
					if err != nil {
						t.Fatal(err)
					}
					run.compare(t, step, res, taken)
					switch {
					case step == 0 && l == 0:
						first = res.Loss
					case step == 0 && res.Loss != first:
						t.Errorf("the first loss is %v, and %v for %s", res.Loss, first, layouts[0].name)
					}
				}
			})
		}
		if run.Name == "dpo sigmoid" && first != math.Ln2 {
			t.Errorf("the first loss of DPO is %v, and ln 2 is %v", first, math.Ln2)
		}
	}
}

// How far a step may be from TRL's, which are numbers of fp32.
const (
	lossLimit   = 1e-6 // relative
	normLimit   = 1e-5 // relative
	steepLimit  = 1e-4 // the same, where a weight changes much with a log-probability
	metricLimit = 1e-6 // absolute, and of values above 1 relative
	klLimit     = 5e-6 // the same of kl: TRL's is a difference of fp32 sums of some 20 nats
)

// compare holds a step against TRL's.
func (g *goldenRun) compare(t *testing.T, step int, res objective.Result, taken stream.Result) {
	t.Helper()
	relative := func(got, want float64) float64 { return math.Abs(got-want) / math.Abs(want) }
	limit := normLimit
	if name := g.Settings.Resolved().Losses; slices.Contains(name, "discopop") || slices.Contains(name, "simpo") {
		limit = steepLimit
	}
	loose := 1.0
	if step > 0 {
		loose = max(loose, g.loose)
	}
	if d := relative(res.Loss, g.Losses[step]); !(d <= loose*lossLimit) {
		t.Errorf("step %d: loss %v, TRL's %v: %.2g apart", step+1, res.Loss, g.Losses[step], d)
	}
	if d := relative(taken.GradNorm, g.Norms[step]); !(d <= limit) {
		t.Errorf("step %d: gradient norm %v, TRL's %v: %.2g apart", step+1, taken.GradNorm, g.Norms[step], d)
	}
	metrics := res.Metrics()
	for name, want := range g.Metrics {
		limit := metricLimit
		if name == "kl" {
			limit = klLimit
		}
		got, ok := metrics[name]
		// TRL also logs what its loss does not read.
		if isUnread := !ok && slices.Max(want) == 0 && slices.Min(want) == 0; isUnread {
			continue
		}
		if d := math.Abs(got-want[step]) / max(1, math.Abs(want[step])); !ok || !(d <= loose*limit) {
			t.Errorf("step %d: %s %v (%v), TRL's %v: %.2g apart", step+1, name, got, ok, want[step], d)
		}
	}
}
