package stream_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
)

// errorer has the methods that rigs need of a test, rapid's included.
type errorer interface {
	Helper()
	Errorf(string, ...any)
	Fatal(...any)
	Cleanup(func())
}

// rig is a model with a store and an engine.
type rig struct {
	plan     *plan.Plan
	store    store.Store
	disk     *store.Disk // nil if nothing is on disk
	engine   *stream.Engine
	sampler  *stream.Engine // that takes turns with it; nil: nothing does
	accounts *hostmem.Accounts
	devices  []device.Device // closed with the rig, unless they are shared
	trace    *trace.Recorder // nil if the rig is not traced
}

var f32 = plan.Numerics{Compute: tensor.F32, Master: optim.F32}
var bf16 = plan.Numerics{Compute: tensor.BF16, Master: optim.Split}

// numerics returns the numerics of a golden batch, micro-batches kept apart.
func numerics(g *modeltest.Golden, n plan.Numerics) plan.Numerics {
	n.SequenceLen, n.MicroBatch, n.MicroBatches, n.HeadChunk = len(g.First[0].IDs), 1, len(g.First), 16
	return n
}

// chunked makes blocks take that number of rows at once.
func chunked(n plan.Numerics, rows int) plan.Numerics {
	n.BlockChunk = rows
	return n
}

// machine has some rates; they choose nothing.
var machine = plan.Machine{Name: "test", F32FLOPsPerSec: 1e11, BF16FLOPsPerSec: 2e11, AttentionFLOPsPerSec: 1e10,
	DeviceBytesPerSec: 1e10, UploadBytesPerSec: 1e10, DownloadBytesPerSec: 1e10, AdamWBytesPerSec: 1e10, HostBytesPerSec: 1e10}

func newCPU(t errorer) device.Device {
	t.Helper()
	dev, err := cpu.New(cpu.Options{Workers: 2, Accounts: hostmem.New()})
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// planned is a subject's plan with everything bound, which its rigs share, and what it was made for.
type planned struct {
	plan     *plan.Plan
	model    *model.Model
	numerics plan.Numerics
	outputs  plan.Outputs
	cluster  plan.Cluster
	on       device.Info
}

// newPlan plans with everything bound; change may then choose another placement.
func newPlan(t errorer, s *subject, dev device.Info, change func(*plan.Placement)) *plan.Plan {
	t.Helper()
	if s.planned != (planned{s.planned.plan, s.model, s.numerics, s.outputs, s.cluster, dev}) {
		p, err := plan.New(context.Background(), plan.Request{Model: s.model, Numerics: s.numerics, Device: dev,
			Machine: machine, Outputs: s.outputs, Cluster: s.cluster})
		if err != nil {
			t.Fatal(err)
		}
		s.planned = planned{p, s.model, s.numerics, s.outputs, s.cluster, dev}
	}
	p := s.planned.plan
	if change != nil {
		place := p.Placement.Clone()
		change(&place)
		p = p.With(place)
	}
	return p
}

// setup says how a rig differs from the plain one.
type setup struct {
	change  func(*plan.Placement)
	serial  bool
	allRows bool                              // computes padding, too
	device  device.Device                     // shared, not closed with the rig
	wrap    func(device.Device) device.Device // between engine and device
	lend    func(store.Store) store.Store     // between engine and store
	files   func() vfs.FS                     // of a store; nil: the system's
	peers   stream.Peers                      // of a host of several
	traced  bool

	objective objective.Objective
	sampler   func(*plan.Plan) *plan.Plan // plans over the rig's plan; nil: the rig has no sampler
}

// start builds an engine for a subject.
func start(t errorer, s *subject, o setup) *rig {
	t.Helper()
	r := &rig{accounts: hostmem.New()}
	computes := []device.Device{o.device}
	if o.device == nil {
		computes[0] = newCPU(t)
		r.devices = append(r.devices, computes[0])
	}
	r.plan = newPlan(t, s, computes[0].Info(), o.change)
	if o.sampler != nil {
		r.plan = r.plan.WithSampler(o.sampler(r.plan), computes[0].Info())
	}
	for range r.plan.Ranks() - 1 {
		d := newCPU(t)
		computes, r.devices = append(computes, d), append(r.devices, d)
	}
	dir, err := os.MkdirTemp("", "millrace-store-") // a rapid.T has no TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // also of a rig that is never closed
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("store's directory: %v", err)
		}
	})
	var files vfs.FS
	if o.files != nil {
		files = o.files()
	}
	var drives []store.Drive
	for i := range max(len(r.plan.Placement.Drives), 1) {
		drives = append(drives, store.Drive{Dir: filepath.Join(dir, fmt.Sprint(i))})
	}
	tiers, disk, err := stream.OpenStore(r.plan, stream.StoreOptions{Accounts: r.accounts, Drives: drives, FS: files})
	if err != nil {
		t.Fatal(err)
	}
	r.store, r.disk = tiers, disk
	if err := stream.Fill(context.Background(), r.plan, r.store, s.fill); err != nil {
		t.Fatal(err)
	}
	if o.wrap != nil {
		for i := range computes {
			computes[i] = o.wrap(computes[i])
		}
	}
	lends := r.store
	if o.lend != nil {
		lends = o.lend(lends)
	}
	if o.traced {
		r.trace = trace.NewRecorder(r.plan.Crew(), 0)
	}
	r.engine, err = stream.New(stream.Config{Plan: r.plan, Devices: computes, Host: computes[0], Store: lends,
		Accounts: r.accounts, Serial: o.serial, AllRows: o.allRows, Peers: o.peers, Trace: r.trace,
		Objective: o.objective})
	if err != nil {
		t.Fatal(err)
	}
	if q := r.plan.Sampler; q != nil {
		r.sampler, err = stream.New(stream.Config{Plan: q, Devices: computes, Host: computes[0], Store: lends,
			Accounts: r.accounts, Serial: o.serial, Over: r.engine})
		if err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// newRig starts an engine on golden weights and closes it with the test.
func newRig(t testing.TB, g *modeltest.Golden, n plan.Numerics, change func(*plan.Placement)) *rig {
	t.Helper()
	r := start(t, golden(t, g, n), setup{change: change})
	t.Cleanup(func() { r.close(t) })
	return r
}

// close gives everything back and finds what was not. A store that still lends something panics.
func (r *rig) close(t errorer) {
	t.Helper()
	if r.sampler != nil {
		if err := r.sampler.Close(); err != nil {
			t.Errorf("sampler: %v", err)
		}
	}
	if err := r.engine.Close(); err != nil {
		t.Errorf("engine: %v", err)
	}
	if err := r.store.Close(); err != nil {
		t.Errorf("store: %v", err)
	}
	for _, d := range r.devices {
		if err := d.Close(); err != nil {
			t.Errorf("device: %v", err)
		}
	}
	if bytes, _ := r.accounts.Total(); bytes != 0 {
		t.Errorf("%d bytes of host memory are still reserved", bytes)
	}
}

// capture is a save into memory: what is on disk comes from its files, the rest from the store at the version that it
// is told.
func (r *rig) capture(into map[store.ID][]byte) stream.SaveFunc {
	return func(ctx context.Context, id store.ID, version uint64) error {
		var all []byte
		if r.plan.OnDisk(id) {
			err := r.disk.Files(ctx, id, nil, func(f store.PieceFile) error {
				piece := make([]byte, f.Bytes)
				if f.Path != "" {
					doc, err := os.ReadFile(f.Path)
					if err != nil {
						return err
					}
					copy(piece, doc)
				}
				all = append(all, piece...)
				return nil
			})
			into[id] = all
			return err
		}
		for _, spec := range r.plan.Extents() {
			if spec.ID != id {
				continue
			}
			for off, n := range spec.Pieces() {
				l, err := r.store.Borrow(ctx, trace.Disk.Of(0), id, off, n, store.Read, version)
				if err != nil {
					return err
				}
				all = append(all, l.Bytes()...)
				l.Release()
			}
		}
		into[id] = all
		return nil
	}
}

// golden is a golden variant as a subject. Its weights are read from the directory each time.
func golden(t errorer, g *modeltest.Golden, n plan.Numerics) *subject {
	t.Helper()
	m, err := model.Read(g.Dir)
	if err != nil {
		t.Fatal(err)
	}
	weights, err := hf.OpenWeights(g.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer weights.Close()
	if err := m.ReadConstants(weights); err != nil {
		t.Fatal(err)
	}
	s := &subject{model: m, numerics: numerics(g, n), eval: batchOf(g.First)}
	s.fill = func(part *model.Part, v model.Values) error {
		w, err := hf.OpenWeights(g.Dir)
		if err != nil {
			return err
		}
		defer w.Close()
		return m.ReadPart(w, part, v)
	}
	for i := range g.Steps {
		s.batches = append(s.batches, batchOf(g.Steps[i].Batch))
		s.updates = append(s.updates, updateOf(g, i))
	}
	return s
}

func batchOf(b modeltest.Batch) *stream.Batch {
	return &stream.Batch{Micro: b, Targets: b.TargetCount()}
}

func updateOf(g *modeltest.Golden, step int) stream.Update {
	a := g.AdamW
	return stream.Update{Step: step + 1, LR: g.Steps[step].LearningRate, MaxGradNorm: a.MaxGradNorm,
		AdamW: optim.AdamW{Beta1: a.Beta1, Beta2: a.Beta2, Eps: a.Eps, WeightDecay: a.WeightDecay}}
}

// streamed makes everything move: one or more slots, nothing kept, nothing resident but the norm.
func streamed(slots int) func(*plan.Placement) {
	return func(p *plan.Placement) {
		*p = plan.Smallest(len(p.Where.Weights), len(p.Where.Inputs), false)
		p.Rings.Weights = slots
	}
}
