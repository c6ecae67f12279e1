package session

import (
	"cmp"
	"context"
	"errors"
	"log/slog"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/rehearse"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/vfs"
)

// Session is a planned model with its state in a store and an engine to run it: what training, evaluation, gradients
// and the benchmark share.
type Session struct {
	Env    *Env
	Plan   *plan.Plan
	Store  store.Store
	Disk   *store.Disk // the part of it that is on disk; nil without one
	Engine *stream.Engine

	// Texts is the session that continues texts between steps: with a plan and an engine of its own, over the store of
	// this one, if the plan has a sampler; else it is this one.
	Texts *Session

	Objective objective.Objective // nil: the next token

	stateDirs []string       // of what the plan keeps on disk
	cooling   []*cooling     // of its drives that have a thermometer
	Peers     *hosts.Awaited // the other hosts of the run, as the engine reaches them; nil: it is alone

	// tuners are the devices that compute, if they have algorithms of products to choose from and the plan trains; else
	// nil.
	tuners   []device.ProductTuner
	recalled *chosen // by the run that this one continues; nil: a new run
	// kept and continued are the choices of algorithms that devices were asked to make: those of runs before on this
	// machine, and those of the run that this one continues.
	kept, continued []string

	Rows   []data.MicroBatch // the micro-batches that a loader fills for a step
	region *hostmem.Region   // of rows
}

// SessionOptions say where a session keeps the state of a plan.
type SessionOptions struct {
	StateDirs []string    // of extents that the plan keeps on disk, one for each drive
	Store     store.Store // instead of the one that the plan asks for, closed with the session; nil: that one
	// Objective is that of the steps, if the plan has one.
	Objective objective.Objective
	// Fill brings the weights into the store. Of several hosts one may fail, and then the context of the others' ends.
	Fill func(ctx context.Context, s *Session) error
}

// OpenSession reserves everything that the steps of a plan take, and has the weights filled.
func (e *Env) OpenSession(ctx context.Context, p *plan.Plan, dev *Devices, o SessionOptions) (s *Session, err error) {
	s = &Session{Env: e, Plan: p, stateDirs: o.StateDirs}
	s.Texts = s
	defer func() {
		if err != nil {
			_ = s.Close() // err is the one to report
		}
	}()
	if err := e.Together(ctx, func(ctx context.Context) error { return s.openStore(ctx, o) }); err != nil {
		return s, err
	}
	if e.Cluster != nil { // which nothing but Train has: to end one host here would end the others in disorder
		e.WillFinish("ending the pass that all hosts are at")
	}
	s.Objective = o.Objective
	if err := s.startEngine(dev); err != nil {
		return s, e.Cluster.Alone(err) // engines tell each other which algorithms they use
	}
	s.limitHeap()
	return s, nil
}

// openStore opens the store and has the weights filled.
func (s *Session) openStore(ctx context.Context, o SessionOptions) error {
	if s.Store = o.Store; s.Store == nil {
		options := stream.StoreOptions{Accounts: s.Env.Accounts, FS: s.Env.Files(), Drives: s.coolDrives(),
			Log: slog.New(slog.NewTextHandler(s.Env.Progress, nil))}
		tiers, disk, err := stream.OpenStore(s.Plan, options)
		if errors.Is(err, vfs.ErrLocked) {
			err = blame.BadRequest(err) // as an output_dir in use is
		}
		if err != nil {
			return err
		}
		s.Store, s.Disk = tiers, disk
	}
	if err := s.reserveRows(); err != nil {
		return err
	}
	return blame.OfStart(ctx, o.Fill(ctx, s)) // the model's weights, or a checkpoint, are not what the request needs
}

// startEngine makes the engine. The store is filled.
func (s *Session) startEngine(dev *Devices) error {
	config := stream.Config{Plan: s.Plan, Devices: dev.Computes, Host: dev.Host, Objective: s.Objective,
		Store: s.Store, Accounts: s.Env.Accounts, Trace: trace.NewRecorder(s.Plan.Crew(), 0)}
	for _, d := range dev.Computes[:min(s.Plan.Ranks(), len(dev.Computes))] {
		if tuner, ok := d.(device.ProductTuner); ok && d.Info().TunesProducts && s.Plan.Trains() {
			s.tuners = append(s.tuners, tuner)
		}
	}
	if s.tuners != nil {
		var err error
		if config.Products, err = rehearse.Products(s.Plan); err != nil {
			return err
		}
		s.recallAlgorithms()
	}
	if cluster := s.Env.Cluster; cluster != nil {
		s.Peers = &hosts.Awaited{Peers: cluster.Peers}
		config.Peers = s.Peers
	}
	var err error
	if s.Engine, err = stream.New(config); err != nil {
		return err
	}
	s.rememberAlgorithms()
	if q := s.Plan.Sampler; q != nil {
		config := stream.Config{Plan: q, Devices: config.Devices, Host: config.Host, Store: s.Store,
			Accounts: config.Accounts, Trace: trace.NewRecorder(q.Crew(), 0), Over: s.Engine}
		s.Texts = &Session{Env: s.Env, Plan: q, Store: s.Store, Disk: s.Disk}
		if s.Texts.Engine, err = stream.New(config); err != nil {
			return err
		}
	}
	if cluster := s.Env.Cluster; cluster != nil && cluster.TellBy != nil {
		cluster.TellBy(s.Engine.Standing)
	}
	return nil
}

// reserveRows takes the memory that a loader fills for a step.
func (s *Session) reserveRows() (err error) {
	n := s.Plan.Whole
	if s.region, err = s.Env.Accounts.Reserve(plan.RowsPurpose, batch.Bytes(n.StepPositions())); err != nil {
		return err
	}
	if err := s.region.Populate(); err != nil {
		return err
	}
	s.Rows = data.NewBatches(s.region.Bytes(), n.MicroBatches, n.MicroBatch, n.SequenceLen)
	return nil
}

// LeaveOut has what the engine has done since the latest step count in no step.
func (s *Session) LeaveOut() {
	s.Engine.Trace.TakeBusy()
	s.Peers.Take()
	s.Texts.Engine.Trace.TakeBusy()
}

// StopEngine gives back what only steps need, so that what follows them, an export, stays within the plan.
func (s *Session) StopEngine() (err error) {
	if t := s.Texts; t != s && t.Engine != nil {
		err = t.Engine.Close()
		t.Engine = nil
	}
	if s.Engine != nil {
		err = cmp.Or(s.Engine.Close(), err)
		s.Engine = nil
	}
	return err
}

// Close gives everything back, the engine before the store.
func (s *Session) Close() error {
	err := s.StopEngine()
	if s.Store != nil {
		err = cmp.Or(err, s.Store.Close())
	}
	if s.region != nil {
		err = cmp.Or(err, s.region.Close())
	}
	heap.release(s)
	s.Store, s.Disk, s.Rows, s.region = nil, nil, nil, nil
	return err
}

// BatchOf is a step of a loader's micro-batches.
func BatchOf(micro []data.MicroBatch) *stream.Batch {
	b := &stream.Batch{}
	for _, m := range micro {
		b.Targets += m.TargetTokens
		b.Micro = append(b.Micro, m.Micro)
	}
	return b
}

// Unpacked is a batch of one row per sequence.
func Unpacked(examples []data.Example, n plan.Numerics) (*stream.Batch, error) {
	var micro []data.MicroBatch
	for m := range n.MicroBatches {
		b, err := data.NewBatch(examples[m*n.MicroBatch:(m+1)*n.MicroBatch], n.SequenceLen)
		if err != nil {
			return nil, err
		}
		micro = append(micro, b)
	}
	return BatchOf(micro), nil
}
