package cuda_test

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

// sampling draws texts on a device, a token of each in a pass, and has the same device compute the log-probabilities of
// their tokens as a step does, from whole rows. The difference is that of rounding: products of few rows have other
// kernels than those of many. It returns the largest difference and the mean one, in nats.
func sampling(t *testing.T, variant string, compute tensor.DType, d device.Device) (most, mean float64) {
	t.Helper()
	const length, prompt, each = 16, 4, 2
	g := modeltest.Load(t, variant)
	m, fill := golden(t, g)
	n := numerics(g, compute)
	n.SequenceLen, n.MicroBatches = 2*prompt, 1
	stay := func(*plan.Placement) {}
	e, _, done := engine(t, plan.Request{Model: m.Frozen(), Numerics: n, Outputs: plan.Outputs{LogitRows: 2 * prompt,
		Draws: true, Caches: nn.Caches{Sequences: each, Positions: length}}}, nil, fill, []device.Device{d}, stay)
	texts, said := make([][]int32, each), make([][]float32, each)
	for s := range texts {
		texts[s] = slices.Clone(g.First[s%len(g.First)].IDs[s/len(g.First)*prompt:][:prompt])
	}
	for at := 0; len(texts[0]) < length; at = len(texts[0]) - 1 {
		var rows []stream.Position
		var draws []device.TokenDraw
		for s, text := range texts {
			for i := at; i < len(text); i++ {
				rows = append(rows, stream.Position{Token: text[i], Sequence: s, At: i, Length: length})
				draws = append(draws, device.TokenDraw{Key: [2]uint32{3, 5}, Text: uint64(s), At: uint32(i), Inverse: 1})
			}
		}
		drawn, err := e.Draw(context.Background(), rows, draws, m.Vocab)
		if err != nil {
			t.Fatal(err)
		}
		for i, row := range rows {
			if i+1 == len(rows) || rows[i+1].Sequence != row.Sequence {
				texts[row.Sequence] = append(texts[row.Sequence], drawn[i].ID)
				said[row.Sequence] = append(said[row.Sequence], drawn[i].LogProb)
			}
		}
	}
	done()

	n.SequenceLen, n.MicroBatches = length, each
	e, _, done = engine(t, plan.Request{Model: m.Frozen(), Numerics: n, Outputs: plan.Outputs{LogProbs: true}}, nil, fill,
		[]device.Device{d}, stay)
	defer done()
	rows := &stream.Batch{Targets: 1}
	for _, text := range texts {
		micro := batch.New(length)
		micro.SetDocument(0, text)
		copy(micro.Targets, text[1:])
		rows.Micro = append(rows.Micro, micro)
	}
	trained, err := e.LogProbs(context.Background(), rows)
	if err != nil {
		t.Fatal(err)
	}
	count := 0.0
	for s := range texts {
		for i, lp := range said[s] {
			apart := math.Abs(float64(lp - trained[s][prompt+i-1]))
			most, mean, count = max(most, apart), mean+apart, count+1
		}
	}
	return most, mean / count
}

// samplesAsItTrains bounds the differences of sampling, in nats.
func samplesAsItTrains(t *testing.T, variant string, compute tensor.DType, limit float64, d device.Device) {
	t.Helper()
	most, mean := sampling(t, variant, compute, d)
	t.Logf("%s in %v: sampler and trainer differ by %.2g nats at most, %.2g on average", variant, compute, most, mean)
	if !(most <= limit) {
		t.Errorf("%s in %v: log-probabilities differ by %v, want at most %v", variant, compute, most, limit)
	}
}

// Log-probabilities of a GPU's sampler are nearly those of its trainer. A GPU whose tensor cores truncate sums is
// allowed more than the stand-in, whose sums are of float32: see TestGPUContinues.
func TestStandInSamplesAsItTrains(t *testing.T) {
	t.Parallel()
	d := open(t, standin.Options{}, ownProducts)
	defer mustClose(t, d)
	variants := []string{"qwen3"}
	if !testing.Short() {
		variants = append(variants, "gemma2", "gpt_oss", "deepseek_v3", "qwen3_5")
	}
	for _, variant := range variants {
		samplesAsItTrains(t, variant, tensor.F32, 5e-6, d)
		samplesAsItTrains(t, variant, tensor.BF16, 0.02, d)
	}
}
