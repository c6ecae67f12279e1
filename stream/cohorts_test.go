package stream_test

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/tensor"
)

// sums are the gradients of a step by part, in fp32 as they are stored, and what else a step adds up.
type sums struct {
	grads [][]float32
	loss  float64
	loads [][]int
}

// sumsOf computes the gradients of a batch.
func sumsOf(t *testing.T, s *subject, dev device.Device, change func(*plan.Placement), b *stream.Batch) (all sums) {
	t.Helper()
	r := start(t, s, setup{device: dev, change: change})
	defer r.close(t)
	res, err := r.engine.Gradients(context.Background(), b, 1)
	if err != nil {
		t.Fatal(err)
	}
	all.loss, all.loads = res.LossSum, res.Loads
	for part := range r.plan.Model.Parts {
		g := []float32{}
		if r.plan.Trained(part) {
			if g, err = stream.Grads(context.Background(), r.plan, r.store, part); err != nil {
				t.Fatal(err)
			}
		}
		all.grads = append(all.grads, g)
	}
	return all
}

// plus adds sums in the order of cohorts.
func (a sums) plus(b sums) sums {
	if a.grads == nil {
		return b
	}
	for part, g := range b.grads {
		for i, x := range g {
			a.grads[part][i] += x
		}
	}
	a.loss += b.loss
	for block := range b.loads {
		for i, n := range b.loads[block] {
			a.loads[block][i] += n
		}
	}
	return a
}

// copied has other memory.
func (a sums) copied() sums {
	c := a
	c.grads, c.loads = nil, nil
	for _, g := range a.grads {
		c.grads = append(c.grads, slices.Clone(g))
	}
	for _, n := range a.loads {
		c.loads = append(c.loads, slices.Clone(n))
	}
	return c
}

// sameSums checks that sums have the same bits.
func sameSums(t *testing.T, name string, s *subject, got, want sums) {
	t.Helper()
	if !slices.EqualFunc(got.loads, want.loads, slices.Equal) || got.loss != want.loss {
		t.Errorf("%s: loss %v and loads %v, want %v and %v", name, got.loss, got.loads, want.loss, want.loads)
	}
	for part, g := range got.grads {
		if i := differs(g, want.grads[part]); i >= 0 {
			t.Errorf("%s: element %d of the gradient of %s is %v, want %v", name, i, s.model.Parts[part].Name, g[i],
				want.grads[part][i])
		}
	}
}

// cohort are steps of the same subject with the micro-batches of a cohort alone.
func (s *subject) cohort() *subject {
	c := *s
	c.numerics.MicroBatches, c.numerics.Cohorts, c.numerics.Exchange = s.numerics.CohortMicros(), 0, 0
	return &c
}

// inBF16 rounds gradients to the nearest number of bf16, to the even one of two.
func (a sums) inBF16() sums {
	for _, g := range a.grads {
		for i, x := range g {
			bits := math.Float32bits(x)
			g[i] = math.Float32frombits((bits + 0x7fff + bits>>16&1) &^ 0xffff)
		}
	}
	return a
}

// The sums of a step in cohorts have the bits of those of steps with the micro-batches of one cohort each, added in the
// order of cohorts: the slow reference, also where the sum of each cohort is rounded to bf16 first. With one cohort
// they are other sums, within rounding.
func TestCohortsAreStepsOfTheirOwn(t *testing.T) {
	dev := newCPU(t)
	defer dev.Close()
	for name, s := range map[string]shape{
		"untied":          {Type: "llama"},
		"tied":            {Type: "qwen3", Tied: true},
		"frozen in part":  {Type: "llama", FrozenBlocks: 1, FrozenFFN: true, FrozenEmbed: true},
		"parts of blocks": {Type: "patchwork", Groups: 2, Tied: true},
		"delta nets":      {Type: hybrid},
		"experts":         {families: []model.Family{modeltest.Mixtures(2)}},
		"with dense":      {families: []model.Family{modeltest.WithDense(3)}},
		"new layers":      {families: []model.Family{made}},
		"sides":           {Layers: 6, families: []model.Family{crossing}},
	} {
		t.Run(name, func(t *testing.T) {
			shape := tiny
			shape.Type, shape.Tied, shape.Groups, shape.families = s.Type, s.Tied, s.Groups, s.families
			shape.FrozenBlocks, shape.FrozenFFN, shape.FrozenEmbed = s.FrozenBlocks, s.FrozenFFN, s.FrozenEmbed
			if len(s.families) > 0 {
				shape.Type = s.families[0].ModelType
			}
			if s.Layers > 0 {
				shape.Layers = s.Layers
			}
			const cohorts, micros = 3, 2
			shape.Micro, shape.Cohorts = cohorts*micros, cohorts
			shape.Gradients, shape.BlockChunk = true, plan.BlockChunkMultiple
			sub := shape.subject(t, 1)
			batch := sub.batches[0]
			var want, narrow sums
			for micro := range slices.Chunk(batch.Micro, micros) {
				alone := &stream.Batch{Micro: micro, Targets: batch.Targets}
				of := sumsOf(t, sub.cohort(), dev, streamed(1), alone)
				want = want.plus(of.copied())
				narrow = narrow.plus(of.inBF16())
			}
			inBF16 := *sub
			inBF16.numerics.Exchange = tensor.BF16
			for name, change := range map[string]func(*plan.Placement){"bound": nil, "streamed": streamed(2),
				"on disk": allOnDisk, "head at once": func(p *plan.Placement) { streamed(2)(p); p.HeadAtOnce = true },
				"dealt": func(p *plan.Placement) {
					streamed(2)(p)
					ranks := make([]int, len(p.Where.Inputs))
					ranks[1] = 1
					p.Deal = plan.DealBlocks(ranks)
				}} {
				sameSums(t, name, sub, sumsOf(t, sub, dev, change, batch), want)
				sameSums(t, name+", in bf16", sub, sumsOf(t, &inBF16, dev, change, batch), narrow)
			}
			one, others := *sub, 0
			one.numerics.Cohorts = 0
			for part, g := range sumsOf(t, &one, dev, streamed(2), batch).grads {
				most, off := 0.0, 0.0
				for i, x := range g {
					most = max(most, math.Abs(float64(x)))
					off = max(off, math.Abs(float64(x)-float64(want.grads[part][i])))
				}
				if off > 1e-6*most {
					t.Errorf("the gradient of %s is up to %v, and in one cohort it differs by %v",
						sub.model.Parts[part].Name, most, off)
				}
				if off > 0 {
					others++
				}
			}
			if others == 0 {
				t.Error("in one cohort, all gradients have the same bits")
			}
		})
	}
}

// differs is the first index at which two vectors have other bits; -1 if they are equal.
func differs(a, b []float32) int {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return i
		}
	}
	return -1
}
