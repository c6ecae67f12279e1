package train

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/hostmem"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/trace"
)

// BenchOptions say which step is measured.
type BenchOptions struct {
	Model       string // a directory with config.json, or a hub id; weights are random
	SequenceLen int    // positions of a row, which is one document
	BatchTokens int    // positions of a step
	Steps       int    // measured
	Warmup      int    // before them, not measured
	MicroBatch  Auto
	HeadChunk   Auto
	Compute     string  // bf16 (default) or f32
	Moments     string  // f32 (default) or 8bit
	MaxGradNorm float64 // 0: no clipping
	Memory      Memory
	Device      string // auto (default), or cpu
}

// BenchResult is what was measured and what was planned.
type BenchResult struct {
	Device           string      `json:"device"`
	Parameters       int64       `json:"parameters"`
	SequenceLen      int         `json:"sequence_len"`
	MicroBatch       int         `json:"micro_batch"`   // sequences
	MicroBatches     int         `json:"micro_batches"` // of a step
	Steps            int         `json:"steps"`
	StepSec          float64     `json:"step_sec"` // median
	StepMinSec       float64     `json:"step_min_sec"`
	StepMaxSec       float64     `json:"step_max_sec"`
	TokensPerSec     float64     `json:"tokens_per_sec"`
	ModelTFLOPS      float64     `json:"model_tflops"`    // by the usual account: no recomputation
	ExecutedTFLOPS   float64     `json:"executed_tflops"` // recomputation included
	Lanes            trace.Lanes `json:"lanes"`           // busy seconds of a step, mean
	PredictedStepSec float64     `json:"predicted_step_sec"`
	PredictedLanes   trace.Lanes `json:"predicted_lanes"`
	PredictedLimit   string      `json:"predicted_limit"` // the lane that should be busiest
	Machine          string      `json:"machine"`         // whose rates that is predicted from
	DiskBytes        int64       `json:"disk_bytes"`      // that the plan keeps on disk
	PlannedBytes     int64       `json:"planned_bytes"`   // of resident memory
	PeakBytes        int64       `json:"peak_rss_bytes"`
}

// Benchmark measures training steps on random weights and random tokens: AdamW and clipping included, as in training. A step is
// timed from norm to norm, so the update that belongs to it runs below the forward pass of the next.
func Benchmark(ctx context.Context, env *Env, o BenchOptions) (*BenchResult, error) {
	switch {
	case o.SequenceLen < 2:
		return nil, Request(fmt.Errorf("sequence length is %d: it must be at least 2", o.SequenceLen))
	case o.BatchTokens < o.SequenceLen || o.BatchTokens%o.SequenceLen != 0:
		return nil, Request(fmt.Errorf("batch tokens are %d: they must be a multiple of the sequence length (%d)", o.BatchTokens, o.SequenceLen))
	case o.Steps < 1 || o.Warmup < 0:
		return nil, Request(fmt.Errorf("steps are %d after %d to warm up: at least one must be measured", o.Steps, o.Warmup))
	}
	n, err := numericsOf(o.Compute, "bf16")
	if err != nil {
		return nil, err
	}
	if o.Moments == "" {
		o.Moments = "f32"
	}
	if n.Moments, err = optim.ParseMoments(o.Moments); err != nil {
		return nil, Request(err)
	}
	if !(o.MaxGradNorm >= 0) || math.IsInf(o.MaxGradNorm, 0) {
		return nil, Request(fmt.Errorf("max grad norm is %v: it must not be negative; 0 turns clipping off", o.MaxGradNorm))
	}
	n.SequenceLen = o.SequenceLen
	src, err := openModel(ctx, env, o.Model)
	if err != nil {
		return nil, err
	}
	dev, err := env.open(o.Device)
	if err != nil {
		return nil, Request(err)
	}
	defer dev.Close()
	info := dev.computes.Info()
	p, err := env.fitPlan(src.model, n, o.BatchTokens/o.SequenceLen, Sizes{MicroBatch: o.MicroBatch, HeadChunk: o.HeadChunk}, info, o.Memory, nil)
	if err != nil {
		return nil, err
	}
	s, err := env.openSession(ctx, p, dev, o.Memory.Path, func(s *session) error { return s.fill(ctx, src, "random", 1) })
	if err != nil {
		return nil, err
	}
	defer s.Close()

	var times []float64
	r := &BenchResult{Device: info.Name, SequenceLen: n.SequenceLen, MicroBatch: p.Numerics.MicroBatch, MicroBatches: p.Numerics.MicroBatches,
		Steps: o.Steps, PredictedStepSec: p.Predicted.StepSeconds, PredictedLanes: lanesOf(p.Predicted.LaneSeconds),
		PredictedLimit: p.Predicted.Limit, Machine: env.machine(info, o.Memory.Path).Name, DiskBytes: p.DiskBytes, PlannedBytes: p.ProcessBytes()}
	r.Parameters, _ = src.model.Params()
	bar := env.bar("measuring steps")
	defer bar.end()
	var busy time.Duration // of the disk, before what is measured
	for step := 1; step <= o.Warmup+o.Steps; step++ {
		if env.stopped() {
			return nil, ErrInterrupted
		}
		if step == o.Warmup+1 {
			s.engine.Trace.TakeBusy()
			if s.disk != nil {
				busy = s.disk.Traffic().Busy
			}
		}
		batch := randomBatch(p, uint64(step))
		begin := time.Now()
		_, err := s.engine.Step(ctx, batch, stream.Update{Step: step, LR: 1e-5, MaxGradNorm: o.MaxGradNorm,
			AdamW: optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01}})
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", step, err)
		}
		if step > o.Warmup {
			times = append(times, time.Since(begin).Seconds())
		}
		bar.set(int64(step), int64(o.Warmup+o.Steps))
	}
	r.Lanes = s.engine.Trace.TakeBusy()
	if s.disk != nil {
		r.Lanes.Disk += (s.disk.Traffic().Busy - busy).Seconds()
	}
	r.Lanes = r.Lanes.Times(1 / float64(o.Steps))
	slices.Sort(times)
	r.StepSec, r.StepMinSec, r.StepMaxSec = median(times), times[0], times[len(times)-1]
	r.TokensPerSec = float64(o.BatchTokens) / r.StepSec
	docs := make([]int, o.BatchTokens/o.SequenceLen)
	for i := range docs {
		docs[i] = o.SequenceLen
	}
	r.ModelTFLOPS = float64(src.model.TrainFLOPs(docs)) / r.StepSec / 1e12
	r.ExecutedTFLOPS = float64(p.Predicted.FLOPs) / r.StepSec / 1e12
	r.PeakBytes, _ = hostmem.PeakRSS()
	return r, nil
}

// lanesOf has the lanes of a plan under their names in metrics.
func lanesOf(sec [plan.Lanes]float64) trace.Lanes {
	return trace.Lanes{Fetch: sec[plan.LaneFetch], Compute: sec[plan.LaneCompute], Drain: sec[plan.LaneDrain],
		Update: sec[plan.LaneUpdate], Disk: sec[plan.LaneDisk]}
}

// median is the middle of sorted numbers.
func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// randomBatch is a step of rows full of random tokens.
func randomBatch(p *plan.Plan, step uint64) *stream.Batch {
	n, t := p.Numerics, p.Numerics.Positions()
	b := &stream.Batch{}
	for m := range n.MicroBatches {
		draw := rng.New(0, "benchmark", step, uint64(m))
		all := make([]int32, 5*t)
		micro := stream.MicroBatch{IDs: all[:t], Targets: all[t : 2*t], Positions: all[2*t : 3*t], DocStart: all[3*t : 4*t], DocEnd: all[4*t:]}
		for i := range t {
			row := i / n.SequenceLen * n.SequenceLen
			micro.IDs[i] = int32(draw.Uint64N(uint64(p.Model.Vocab)))
			micro.Positions[i], micro.DocStart[i], micro.DocEnd[i] = int32(i-row), int32(row), int32(row+n.SequenceLen)
		}
		for i := range t {
			micro.Targets[i] = -1
			if i+1 < int(micro.DocEnd[i]) {
				micro.Targets[i] = micro.IDs[i+1]
				b.Targets++
			}
		}
		b.Micro = append(b.Micro, micro)
	}
	return b
}
