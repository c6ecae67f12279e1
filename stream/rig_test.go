package stream_test

import (
	"context"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/hostmem"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/tensor"
)

// rig is a golden model with a store and an engine.
type rig struct {
	plan     *plan.Plan
	store    *store.RAM
	engine   *stream.Engine
	accounts *hostmem.Accounts
	dev      device.Device
}

var f32 = plan.Numerics{Compute: tensor.F32, Master: optim.F32}
var bf16 = plan.Numerics{Compute: tensor.BF16, Master: optim.Split}

// numerics are those of a golden batch, micro-batches kept apart.
func numerics(g *modeltest.Golden, n plan.Numerics) plan.Numerics {
	n.SequenceLen, n.MicroBatch, n.MicroBatches, n.HeadChunk = len(g.First[0].Tokens), 1, len(g.First), 16
	return n
}

// machine has some rates; they choose nothing.
var machine = plan.Machine{Name: "test", F32FLOPsPerSec: 1e11, BF16FLOPsPerSec: 2e11, AttentionFLOPsPerSec: 1e10,
	DeviceBytesPerSec: 1e10, UploadBytesPerSec: 1e10, DownloadBytesPerSec: 1e10, AdamWBytesPerSec: 1e10, HostBytesPerSec: 1e10}

func newCPU(t testing.TB) device.Device {
	t.Helper()
	dev, err := cpu.New(cpu.Options{Workers: 2, Accounts: hostmem.New()})
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// newPlan plans with everything bound; change may then choose another placement.
func newPlan(t testing.TB, dir string, n plan.Numerics, dev device.Info, change func(*plan.Placement)) *plan.Plan {
	t.Helper()
	m, err := model.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.New(plan.Request{Model: m, Numerics: n, Device: dev, Machine: machine})
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		place := p.Placement
		change(&place)
		p = p.With(place)
	}
	return p
}

// newRig starts an engine on the golden weights. wrap may put something between engine and device.
func newRig(t testing.TB, g *modeltest.Golden, n plan.Numerics, change func(*plan.Placement), serial bool, wrap func(device.Device) device.Device) *rig {
	t.Helper()
	dev := newCPU(t)
	p := newPlan(t, g.Dir, n, dev.Info(), change)
	r := &rig{plan: p, accounts: hostmem.New(), dev: dev}
	var err error
	if r.store, err = store.NewRAM(r.accounts, p.Extents()); err != nil {
		t.Fatal(err)
	}
	w, err := hf.OpenWeights(g.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	err = stream.Fill(context.Background(), p, r.store, func(part *model.Part, v model.Values) error {
		return p.Model.ReadPart(w, part, v)
	})
	if err != nil {
		t.Fatal(err)
	}
	computes := dev
	if wrap != nil {
		computes = wrap(dev)
	}
	r.engine, err = stream.New(stream.Config{Plan: p, Device: computes, Host: computes, Store: r.store, Accounts: r.accounts, Serial: serial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close(t))
	return r
}

func (r *rig) close(t testing.TB) func() {
	return func() {
		if err := r.engine.Close(); err != nil {
			t.Error(err)
		}
		if err := r.store.Close(); err != nil {
			t.Error(err)
		}
		if err := r.dev.Close(); err != nil {
			t.Error(err)
		}
	}
}

func batchOf(b modeltest.Batch) *stream.Batch {
	out := &stream.Batch{Targets: b.TargetCount()}
	for _, m := range b {
		out.Micro = append(out.Micro, stream.MicroBatch{IDs: m.Tokens, Targets: m.Targets, Positions: m.Positions,
			DocStart: m.DocStart, DocEnd: m.DocEnd})
	}
	return out
}

func updateOf(g *modeltest.Golden, step int) stream.Update {
	a := g.AdamW
	return stream.Update{Step: step + 1, LR: g.Steps[step].LearningRate, MaxGradNorm: a.MaxGradNorm,
		AdamW: optim.AdamW{Beta1: a.Beta1, Beta2: a.Beta2, Eps: a.Eps, WeightDecay: a.WeightDecay}}
}

// streamed makes everything move: one or more slots, nothing kept, nothing resident but the norm.
func streamed(slots int) func(*plan.Placement) {
	return func(p *plan.Placement) {
		*p = plan.Placement{Slots: slots, GradSlots: 1, StageSlots: 1, Resident: make([]bool, len(p.Resident)),
			Keep: make([]nn.Keep, len(p.Keep)), SavedHere: make([]bool, len(p.SavedHere))}
	}
}
