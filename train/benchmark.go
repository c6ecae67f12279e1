package train

import (
	"context"
	"errors"

	"github.com/millrace/millrace/trace"
)

// BenchOptions say which step is measured.
type BenchOptions struct {
	Model       string // a directory with config.json; weights are random
	SequenceLen int
	BatchTokens int
	Steps       int // measured
	Warmup      int // before them, not measured
	MicroBatch  Auto
	HeadChunk   Auto
	Compute     string // bf16 or f32
	Memory      Memory
	Device      string
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
	PlannedBytes     int64       `json:"planned_bytes"`
	PeakBytes        int64       `json:"peak_rss_bytes"`
}

// Benchmark measures training steps on random weights and random tokens.
func Benchmark(ctx context.Context, env *Env, o BenchOptions) (*BenchResult, error) {
	return nil, errors.New("benchmark: being written")
}
