// Command evidence trains a model with each form of state, next to a loop whose states are float64, and prints how far
// from that loop the weights end. Losses of a few hundred steps do not tell forms apart that lose most of what they
// should learn; distance and slope do.
//
// The loop in float64 computes its gradients with the engine, at the bf16 halves of its weights, as the other runs do.
// Each run sees the same batches. With w0 the first weights, w64 the loop's last ones and w those of a run,
//
//	distance = |w - w64| / |w64 - w0|
//	slope    = <w - w0, w64 - w0> / |w64 - w0|^2
//
// A slope of 1 is the right length along the right way; less means that steps are systematically short.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/benchmarks/internal/harness"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train"
)

var (
	config = flag.String("config", "run.yaml", "run file: model, data, eval.datasets, budgets")
	steps  = flag.Int("steps", 300, "steps of each run")
	warmup = flag.Int("warmup", 10, "steps in which the learning rate rises")
	rate   = flag.Float64("rate", 1e-5, "learning rate after them")
	first  = flag.Int("first-seed", 1, "seed of the first runs: of the order of the data and of random bits")
	seeds  = flag.Int("seeds", 3, "runs of each form, each with the next seed")
	forms  = flag.String("forms", "split,f32 split24,f32 split,8bit split24,8bit split24,8+4 "+
		"split24,4bit",
		"masters and moments, the first one as the reference of losses")
)

func main() {
	flag.Parse()
	ctx := context.Background()
	harness.Head("| master, moments | seed | distance | slope | norms: distance, slope | embedding: distance, slope " +
		"| greatest step / rate | held-out loss | against the first form |")
	for seed := *first; seed < *first+*seeds; seed++ {
		exact, err := inFloat64(ctx, seed)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("| float64 | %d | 0 | 1 | 0, 1 | 0, 1 | - | %.5f | |\n", seed, exact.loss)
		reference := 0.0
		for i, form := range strings.Fields(*forms) {
			got, err := inForm(ctx, form, seed)
			if err != nil {
				log.Fatal(err)
			}
			if i == 0 {
				reference = got.loss
			}
			fmt.Printf("| %s | %d | %s | %s | %s | %.3g | %.5f | %+.3f%% |\n", form, seed,
				strings.ReplaceAll(exact.against(got, anyTensor), ", ", " | "), exact.against(got, isNorm),
				exact.against(got, isEmbedding), got.longest, got.loss, 100*(got.loss/reference-1))
		}
	}
}

// outcome has the weights before and after a run, by tensor, and what it came to.
type outcome struct {
	names      []string
	shapes     []tensor.Shape
	begin, end [][]float64
	loss       float64 // of held-out data
	longest    float64 // the greatest move of a weight in a step, over the learning rate
}

// against is the distance and the slope of another outcome's tensors of a kind.
func (o *outcome) against(got *outcome, is func(name string, shape tensor.Shape) bool) string {
	apart, along, way := 0.0, 0.0, 0.0
	for i, name := range o.names {
		if !is(name, o.shapes[i]) {
			continue
		}
		for k, w0 := range o.begin[i] {
			right, w := o.end[i][k]-w0, got.end[i][k]-w0
			apart += (w - right) * (w - right)
			along += w * right
			way += right * right
		}
	}
	return fmt.Sprintf("%.3f, %.3f", math.Sqrt(apart/way), along/way)
}

func anyTensor(string, tensor.Shape) bool { return true }

func isNorm(name string, shape tensor.Shape) bool {
	return strings.Contains(name, "norm") && len(shape) == 1
}

func isEmbedding(name string, _ tensor.Shape) bool {
	return strings.HasSuffix(name, "embed_tokens.weight")
}

// open opens the run with a form of state.
func open(ctx context.Context, form string, seed int, o millrace.OpenOptions) (*train.Run, error) {
	master, moments, _ := strings.Cut(form, ",")
	dir, err := os.MkdirTemp("", "evidence-")
	if err != nil {
		return nil, err
	}
	c, err := millrace.Config(*config, append(flag.Args(), "precision.master="+master, "precision.moments="+moments,
		fmt.Sprintf("seed=%d", seed), "weight_decay=0", "output_dir="+dir)...)
	if err != nil {
		return nil, err
	}
	o.Env = millrace.NewEnv(os.Stderr)
	return millrace.Open(ctx, c, o)
}

// rateAt is the learning rate of a step, from 1.
func rateAt(step int) float64 { return *rate * math.Min(1, float64(step)/float64(*warmup)) }

// inForm trains with a form of state.
func inForm(ctx context.Context, form string, seed int) (*outcome, error) {
	r, err := open(ctx, form, seed, millrace.OpenOptions{})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	o := &outcome{}
	for step := 1; step <= *steps; step++ {
		b, err := r.Next(ctx)
		if err != nil {
			return nil, err
		}
		res, err := r.Step(ctx, b, r.Update(rateAt(step)))
		if err != nil {
			return nil, err
		}
		o.longest = math.Max(o.longest, res.LongestMove)
	}
	return o, o.finish(ctx, r)
}

// finish reads the weights and the loss that a run ends with.
func (o *outcome) finish(ctx context.Context, r *train.Run) (err error) {
	for _, t := range r.Model().Tensors() {
		w, err := weights(ctx, r, t.Name)
		if err != nil {
			return err
		}
		o.names, o.shapes, o.end = append(o.names, t.Name), append(o.shapes, t.Shape), append(o.end, w)
	}
	held, err := r.Evaluate(ctx)
	o.loss = held.Loss
	return err
}

func weights(ctx context.Context, r *train.Run, name string) ([]float64, error) {
	w, err := r.Tensor(ctx, name)
	wide := make([]float64, len(w))
	for i, x := range w {
		wide[i] = float64(x)
	}
	return wide, err
}

// inFloat64 trains with states in float64. The engine has the weights rounded to fp32, of which it computes with the
// bf16 halves.
func inFloat64(ctx context.Context, seed int) (*outcome, error) {
	r, err := open(ctx, "split,f32", seed, millrace.OpenOptions{Gradients: true})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	o := &outcome{}
	tensors := r.Model().Tensors()
	var p, m, v [][]float64
	narrow := map[string][]float32{} // the weights that the engine has
	for _, t := range tensors {
		w, err := weights(ctx, r, t.Name)
		if err != nil {
			return nil, err
		}
		o.begin = append(o.begin, append([]float64(nil), w...))
		p, m, v = append(p, w), append(m, make([]float64, len(w))), append(v, make([]float64, len(w)))
		narrow[t.Name] = make([]float32, len(w))
	}
	for step := 1; step <= *steps; step++ {
		b, err := r.Next(ctx)
		if err != nil {
			return nil, err
		}
		res, err := r.Gradients(ctx, b)
		if err != nil {
			return nil, err
		}
		u := r.Update(rateAt(step))
		clip := optim.ClipScale(res.GradNorm, u.MaxGradNorm)
		for i, t := range tensors {
			gradient, err := r.Gradient(ctx, t.Name)
			if err != nil {
				return nil, err
			}
			adamw(p[i], m[i], v[i], gradient, clip, step, u.LR, u.AdamW)
			for k, x := range p[i] {
				narrow[t.Name][k] = float32(x)
			}
		}
		if err := r.SetTensors(ctx, narrow); err != nil {
			return nil, err
		}
	}
	if err := o.finish(ctx, r); err != nil {
		return nil, err
	}
	o.end = p
	return o, nil
}

// adamw is a step of AdamW without decay, as docs/numerics.md has it, in float64.
func adamw(p, m, v []float64, gradient []float32, clip float64, step int, lr float64, a optim.AdamW) {
	bc1, bc2 := 1-math.Pow(a.Beta1, float64(step)), 1-math.Pow(a.Beta2, float64(step))
	for i := range p {
		g := clip * float64(gradient[i])
		m[i] += (g - m[i]) * (1 - a.Beta1)
		v[i] = a.Beta2*v[i] + (1-a.Beta2)*g*g
		p[i] -= lr / bc1 * m[i] / (math.Sqrt(v[i]/bc2) + a.Eps)
	}
}
