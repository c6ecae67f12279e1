package plan

import (
	"context"
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/tensor"
)

// named is a request for a published shape on a named machine.
func named(t *testing.T, shape, machine string, n Numerics) Request {
	t.Helper()
	text, err := Shape(shape)
	if err != nil {
		t.Fatal(err)
	}
	config, err := hf.ParseConfig(shape, text)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(config)
	if err != nil {
		t.Fatal(err)
	}
	on, err := FindMachine(machine)
	if err != nil {
		t.Fatal(err)
	}
	n.Compute, n.Master = tensor.BF16, optim.Split
	return Request{Model: m, Numerics: n, Device: on.Device, Machine: on.Machine,
		ProgramBytes: ProgramBytes(on.Device, 1),
		DeviceBytes:  on.DeviceBytes, HostBytes: on.HostBytes, DiskBytes: on.DiskBytes}
}

// endsAt is a context that has ended from the n-th time on that it is asked.
type endsAt struct {
	context.Context
	n, asked int
	ended    func()
}

func (c *endsAt) Err() error {
	c.asked++
	if c.asked < c.n {
		return nil
	}
	if c.asked == c.n {
		c.ended()
	}
	return context.Canceled
}

// A search whose context has ended does no more work worth the name, wherever it is.
func TestSearchEndsWithItsContext(t *testing.T) {
	r := named(t, "qwen2.5-14b", "rtx3090-pc-24gb-64gb", Numerics{SequenceLen: 2048, MicroBatch: 1, MicroBatches: 4, HeadChunk: 512})
	for what, search := range map[string]func(*chooser) error{
		"New": func(c *chooser) error { _, err := c.choose(true); return err },
		"SuggestFixes": func(c *chooser) error {
			c.HostBytes, c.DiskBytes = 1<<30, 0
			c.fixes()
			return c.ctx.Err()
		},
	} {
		whole := &endsAt{Context: context.Background(), n: 1 << 40}
		if err := search(&chooser{Request: r, ctx: whole, workers: 1}); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if whole.asked < 10 {
			t.Errorf("%s looks at its context %d times", what, whole.asked)
		}
		for n := 1; n < whole.asked; n += max(whole.asked/10, 1) {
			var then effort
			c := &chooser{Request: r, workers: 1}
			c.ctx = &endsAt{Context: context.Background(), n: n, ended: func() { then = c.effort }}
			if err := search(c); !errors.Is(err, context.Canceled) {
				t.Fatalf("%s: ended the %dth time of %d: %v", what, n, whole.asked, err)
			}
			if c.effort.operations > then.operations || c.effort.placements > then.placements+8 {
				t.Errorf("%s: ended the %dth time of %d at %+v, and did more up to %+v", what, n, whole.asked, then, c.effort)
			}
		}
	}
}

// A search takes about as long for any number of micro-batches, and what it predicts is what it would take much
// longer to find.
func TestManyMicroBatches(t *testing.T) {
	search := func(micros int) (*Plan, effort) {
		r := named(t, "llama-3-8b", "rtx4090-pc-256gb", Numerics{SequenceLen: 1024, MicroBatch: 1, MicroBatches: micros,
			HeadChunk: 1024})
		r.DeviceBytes, r.HostBytes, r.DiskBytes = 1<<41, 2<<40, 1<<45
		c := &chooser{Request: r, ctx: context.Background()}
		p, err := c.choose(true)
		if err != nil {
			t.Fatal(err)
		}
		return p, c.effort
	}
	_, few := search(simulatedMicros)
	const micros = 128 // four in a group: a search that took longer for more of them would do four times the work
	p, many := search(micros)
	t.Logf("%+v for %d micro-batches, %+v for %d", few, simulatedMicros, many, micros)
	if many.operations > 2*few.operations || many.placements > 2*few.placements || many.operations > 1.2e6 ||
		many.placements > 2500 {
		t.Errorf("%+v for %d micro-batches, %+v for %d", few, simulatedMicros, many, micros)
	}
	on, err := FindMachine("rtx4090-pc-256gb")
	if err != nil {
		t.Fatal(err)
	}
	if each := p.simulateEach(on.Machine, on.Device); math.Abs(each.StepSeconds-p.Predicted.StepSeconds) > 1e-3*each.StepSeconds {
		t.Errorf("a step takes %.6g s, one by one %.6g s", p.Predicted.StepSeconds, each.StepSeconds)
	}
}

// Most placements for a mixture are seen to be slower without a simulation.
func TestMostPlacementsAreNotSimulated(t *testing.T) {
	r := named(t, "qwen3-30b-a3b", "h100-sxm", Numerics{SequenceLen: 2048, MicroBatch: 8, MicroBatches: 4,
		HeadChunk: 4096})
	c := &chooser{Request: r, ctx: t.Context()}
	if _, err := c.choose(true); err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", c.effort)
	if c.effort.simulations > 150 || c.effort.placements > 2500 {
		t.Errorf("%+v, of more than 700 placements that differ", c.effort)
	}
}

// The memory that a placement takes is added up once, and each caller has a plan of its own.
func TestMeasuredOnce(t *testing.T) {
	r := named(t, "qwen3-4b", "rtx4090-pc-256gb", Numerics{SequenceLen: 128, MicroBatch: 1, MicroBatches: 2,
		HeadChunk: 128})
	c := &chooser{Request: r, ctx: t.Context(), measured: newMeasured()}
	place := c.smallest(false)
	one, same := c.measure(place), c.measure(place.Clone())
	if c.effort.placements != 1 || one == same || !reflect.DeepEqual(one, same) {
		t.Errorf("%d placements were added up: %+v, %+v", c.effort.placements, one, same)
	}
	place.HeadAtOnce = true
	if other := c.measure(place); c.effort.placements != 2 || other.DeviceBytes == one.DeviceBytes {
		t.Errorf("with the head at once it takes %d bytes, as before", other.DeviceBytes)
	}
	for slots := range mostMeasured {
		place.Rings.Weights = 1 + slots
		c.measure(place)
	}
	if n := len(c.measured.plans); n > mostMeasured {
		t.Errorf("%d plans are remembered", n)
	}
}

// A search that looks for shorter steps than a limit finds the plan that it finds without, if there is one; and what it
// predicts in the memory of other simulations equals the prediction of a walk by itself.
func TestSearchWithinALimit(t *testing.T) {
	for _, of := range []struct{ shape, machine string }{
		{"qwen2.5-1.5b", "rtx2060-laptop-6gb"},
		{"qwen3-4b", "rtx4090-x2-256gb"},
	} {
		r := named(t, of.shape, of.machine, Numerics{SequenceLen: 1024, MicroBatch: 1, MicroBatches: 4,
			HeadChunk: 1024})
		p, err := r.choose(t.Context(), true, 0)
		if err != nil {
			t.Fatal(err)
		}
		sec := p.Predicted.StepSeconds
		if alone := p.Simulate(r.Machine, r.Device); !reflect.DeepEqual(alone, p.Predicted) {
			t.Errorf("%s: predicted %+v, by itself %+v", of.shape, p.Predicted, alone)
		}
		var seen Progress
		within, err := r.choose(WithProgress(t.Context(), func(q Progress) { seen = q }), true, 1.001*sec)
		if seen.Placements == 0 || seen.StepSeconds != sec {
			t.Errorf("%s: the search says that it has seen %+v; the fastest step takes %g s", of.shape, seen, sec)
		}
		if err != nil || !reflect.DeepEqual(within.Placement, p.Placement) ||
			!reflect.DeepEqual(within.Predicted, p.Predicted) {
			t.Errorf("%s: %v; within a limit %+v, without %+v", of.shape, err, within.Predicted, p.Predicted)
		}
		none, err := r.choose(t.Context(), true, 0.999*sec)
		if err != nil || !math.IsInf(none.Predicted.StepSeconds, 1) {
			t.Errorf("%s: %v; below the fastest step, of %g s, is %+v", of.shape, err, sec, none.Predicted)
		}
	}
}

// As many moves of a stage are made as fit: one more does not.
func TestRoom(t *testing.T) {
	r := named(t, "qwen2.5-1.5b", "rtx3090-pc-24gb-64gb", Numerics{SequenceLen: 2048, MicroBatch: 1, MicroBatches: 8,
		HeadChunk: 512})
	c := &chooser{Request: r, ctx: t.Context()}
	start := c.smallest(false)
	from, stages := c.measure(start), map[string]Stage{}
	for _, route := range c.routes(start) {
		for _, stage := range route {
			stages[stage.String()] = stage
		}
	}
	for name, stage := range stages {
		least, most := from.DeviceTotalBytes(), c.measure(c.with(start, stage)).DeviceTotalBytes()
		for _, eighths := range []int64{0, 3, 5, 8} {
			c.DeviceBytes = least + (most-least)*eighths/8
			got, want := c.room(from, start, stage), 0
			for want < len(stage) && c.fits(c.measure(c.with(start, stage[:want+1]))) == nil {
				want++
			}
			if got != want {
				t.Errorf("%s: %d moves fit %d of 8 shares, want %d", name, got, eighths, want)
			}
		}
	}
}

// Where the link is idle and host memory is left, gate and up wait there as well, and are not computed again.
func TestGateAndUpTravel(t *testing.T) {
	plans := map[string]*Plan{}
	for name, change := range map[string]func(*Request){
		"as it is":    func(*Request) {},
		"slow link":   func(r *Request) { r.Machine.UploadBytesPerSec, r.Machine.DownloadBytesPerSec = 8e9, 8e9 },
		"little room": func(r *Request) { r.HostBytes, r.DiskBytes = 140<<30, 0 },
	} {
		r := named(t, "llama-3-8b", "rtx4090-pc-256gb", Numerics{SequenceLen: 2048, MicroBatch: 4, MicroBatches: 8, HeadChunk: 2048})
		change(&r)
		p, err := New(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		plans[name] = p
	}
	travel := func(name string) (n int) {
		p := plans[name]
		for block := range p.Model.Blocks {
			if p.Keep(block) >= nn.KeepGateUp && p.ActivationsSpill(block) {
				n++
			}
		}
		return n
	}
	if travel("as it is") < 16 || travel("slow link") > 0 || travel("little room") > 4 {
		t.Errorf("gate and up travel of %d blocks, with a slow link of %d, with little room of %d",
			travel("as it is"), travel("slow link"), travel("little room"))
	}
	// Not more than that: what travels takes the RAM from updates.
	fast, slow := plans["as it is"].Predicted, plans["little room"].Predicted
	if fast.StepSeconds > 0.96*slow.StepSeconds {
		t.Errorf("a step takes %.3g s, with little room %.3g s", fast.StepSeconds, slow.StepSeconds)
	}
}

// One by one, each micro-batch costs what it does: the first one finds gradients that hold nothing, the others add.
func TestEachMicroBatchCosts(t *testing.T) {
	const micros = 3
	r := named(t, "qwen3-4b", "rtx4090-pc-256gb", Numerics{SequenceLen: 128, MicroBatch: 1, MicroBatches: micros,
		HeadChunk: 128})
	p, err := (&chooser{Request: r, ctx: context.Background()}).feasible()
	if err != nil {
		t.Fatal(err)
	}
	each, grouped := p.costs(&r.Machine, nil), p.Numerics.groupMicros(micros).costs(p, &r.Machine, nil)
	moved := map[int]int64{} // of backward visits, by micro-batch
	ops := p.Schedule(Steady).Ops
	for i := range ops {
		op := &ops[i]
		if got, want := grouped(op), each(op); got != want {
			t.Errorf("%s costs %+v, and in a group of its own %+v", op.Name(), want, got)
		}
		if op.Do == DoVisit && op.Micro != none && op.Visit.Writes.Has(nn.Grads) {
			moved[op.Micro] += each(op).moved
		}
	}
	if moved[1] != moved[2] || moved[0] >= moved[1] {
		t.Errorf("backward visits of micro-batches move %d bytes: the first should move the least, the others the same",
			moved)
	}
}
