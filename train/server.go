package train

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/rl/sampler"
	"github.com/millrace/millrace/train/rl/server"
)

// OpenServer connects to the server that the key rl.sampler names, and opens the directories by which [Run.HandOver]
// gives it weights. It fails where these have no room. With [OpenOptions.LogProbs] each hand-over compares the
// log-probabilities of the server with the run's, on a few tokens after probe, the tokens of a short prompt. loaded is
// told of each hand-over; it may be nil.
func (r *Run) OpenServer(ctx context.Context, probe []int32, loaded func(server.Handover)) (sampler.Server,
	*server.Exports, error) {
	c := r.config.RL.Sampler
	if c.IsOwn() {
		return nil, nil, errors.New("rl.sampler is own: name a server")
	}
	o := server.Options{Engine: c.Engine, URL: c.URL, TokenEnv: c.TokenEnv, Sleeps: c.Sleeps, Vocab: r.Model().Vocab,
		ModelType: r.src.Config.Reader().StringOr("model_type", ""), ProbeIDs: probe, ProbeOnce: r.rounds != nil,
		Warn: r.env.Warn, Loaded: loaded}
	if r.plan.Outputs.LogProbs {
		o.LogProbs = func(ctx context.Context, ids []int32, from int) ([]float32, error) {
			return r.logProbsOf(context.WithoutCancel(ctx), ids, from) // a pass that is ended would break the engine
		}
	}
	params, _ := r.Model().Params()
	if dev := r.dev.Info(); c.Sleeps && !dev.Unified {
		if err := checkSleeps(dev.TotalBytes, r.plan.DeviceTotalBytes(), params); err != nil {
			return nil, nil, fmt.Errorf("rl.sampler: %w", err)
		}
	}
	e, err := server.OpenExports(r.env.Files(), c.Dir)
	if err == nil {
		err = r.env.HasRoom(c.Dir, e.Needs(tensor.BF16.Bytes()*params))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("rl.sampler: %w", err)
	}
	s, err := server.Open(ctx, o)
	if err != nil {
		return nil, nil, fmt.Errorf("rl.sampler: %w", err)
	}
	return s, e, nil
}

// checkSleeps refuses a server on the run's own device that cannot have its weights there, even in 4 bits, while the
// run keeps what it has planned: only the server sleeps. total is of the device, and taken the run's.
func checkSleeps(total, taken, params int64) error {
	least := params / 2
	if total == 0 || total-taken >= least { // 0: not known
		return nil
	}
	return fmt.Errorf("sleeps: the run keeps %s of the device's %s while the server samples, and the server's weights "+
		"alone take %s in bf16 and %s in 4 bits: lower memory.device", plan.FormatBytes(taken), plan.FormatBytes(total),
		plan.FormatBytes(2*params), plan.FormatBytes(least))
}

// logProbsOf returns the log-probabilities of ids[from:], each after all ids before it, in nats. from is at least 1.
func (r *Run) logProbsOf(ctx context.Context, ids []int32, from int) ([]float32, error) {
	labels := slices.Clone(ids)
	for i := range from {
		labels[i] = data.Ignore
	}
	b, err := r.Batch(data.Example{InputIDs: ids, Labels: labels})
	if err != nil {
		return nil, err
	}
	all, err := r.LogProbs(ctx, b)
	if err != nil {
		return nil, err
	}
	return slices.Clone(all[0][from-1 : len(ids)-1]), nil
}

// HandOver has a server sample with the weights after the latest step. It writes them in bf16 to one of two
// directories, compares the files with what memory has, has the server load them, and then removes the directory that
// it had before. Their version is [Run.Steps]. Weights that are not finite are an error.
func (r *Run) HandOver(ctx context.Context, e *server.Exports, to sampler.Server) error {
	if err := r.flushFinite(ctx); err != nil {
		return err
	}
	version := int64(r.steps)
	dir, err := e.Write(ctx, version, func(dir string, o hf.WriteOptions) error {
		return export.Write(ctx, r.env, r.src, dir, export.Format{DType: tensor.BF16}, nil, o,
			stream.Viewer(r.plan, r.session.Store))
	})
	if err != nil {
		return err
	}
	waiting, end := r.env.UntilStopped(ctx)
	defer end()
	if err := to.Load(waiting, dir, version); err != nil {
		return err
	}
	return e.Taken()
}

// Served samples with a server that has the run's weights: before it asks for answers it wakes the server and hands
// over weights that this does not have, and afterwards the server sleeps again, where the two share a device. When the
// run is asked to stop, waits for the server end with ErrInterrupted.
type Served struct {
	run     *Run
	to      sampler.Server
	exports *server.Exports
	version int64 // that the server has; -1: none
}

// ServerSampler opens the server of rl.sampler as what samples for the run. See [Run.OpenServer].
func (r *Run) ServerSampler(ctx context.Context, probe []int32, loaded func(server.Handover)) (*Served, error) {
	to, e, err := r.OpenServer(ctx, probe, loaded)
	if err != nil {
		return nil, err
	}
	return &Served{r, to, e, -1}, nil
}

// Name is the server's.
func (s *Served) Name() string { return s.to.Name() }

// Sample hands the run's weights over, unless the server has them, and asks it.
func (s *Served) Sample(ctx context.Context, prompts []sampler.Prompt, p sampler.Params,
	done func(sampler.Completion) error) error {
	waiting, end := s.run.env.UntilStopped(ctx)
	defer end()
	if err := s.to.Wake(waiting); err != nil {
		return err
	}
	if s.version != int64(s.run.steps) {
		s.version = -1
		if err := s.run.HandOver(ctx, s.exports, s.to); err != nil {
			return err
		}
		s.version = int64(s.run.steps)
	}
	if err := s.to.Sample(waiting, prompts, p, done); err != nil {
		return err
	}
	if s.run.config.RL.Sampler.Sleeps {
		s.version = -1 // it forgets them
	}
	return s.to.Sleep(waiting)
}

// Close ends the connections to the server.
func (s *Served) Close() error { return s.to.Close() }
