package rehearse

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
)

// drawRequest picks a run: any family, shape, precision and machine, with budgets around what it needs.
func drawRequest(rt *rapid.T) plan.Request {
	draw := func(name string, lo, hi int) int { return rapid.IntRange(lo, hi).Draw(rt, name) }
	heads := draw("heads", 1, 4)
	kv := heads
	if heads%2 == 0 && rapid.Bool().Draw(rt, "grouped queries") {
		kv = heads / 2
	}
	headDim := 8 * draw("head dim / 8", 1, 3)
	config := fmt.Sprintf(`{"model_type": %q, "vocab_size": %d, "hidden_size": %d, "intermediate_size": %d, "num_hidden_layers": %d,
		"num_attention_heads": %d, "num_key_value_heads": %d, "head_dim": %d, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
		"rope_theta": 1e4, "tie_word_embeddings": %v, "hidden_act": "silu", "attention_bias": false}`,
		rapid.SampledFrom([]string{"llama", "qwen3", "qwen3_5_text"}).Draw(rt, "family"),
		draw("vocabulary", 3, 3000), heads*headDim, 8*draw("inner / 8", 1, 40),
		draw("layers", 1, 8), heads, kv, headDim, rapid.Bool().Draw(rt, "tied"))
	c, err := hf.ParseConfig("config.json", []byte(config))
	if err != nil {
		rt.Fatal(err)
	}
	m, err := model.New(c)
	if err != nil {
		rt.Fatal(err)
	}
	n := plan.Numerics{Compute: tensor.BF16, Master: optim.Split, SequenceLen: draw("sequence", 1, 300), MicroBatch: draw("micro-batch", 1, 3),
		MicroBatches: draw("micro-batches", 1, 40), HeadChunk: draw("head chunk", 1, 300), BlockChunk: plan.BlockChunkMultiple * draw("block chunk", 0, 20),
		PieceElems: rapid.Int64Range(1, 1<<14).Draw(rt, "piece")}
	if rapid.Bool().Draw(rt, "f32") {
		n.Compute, n.Master = tensor.F32, optim.F32
	} else {
		if rapid.Bool().Draw(rt, "moments in codes") {
			codes := []optim.Moments{optim.Dynamic8, optim.Dynamic8Root4, optim.Power4Root4}
			n.Moments = rapid.SampledFrom(codes).Draw(rt, "moments")
		}
		if rapid.Bool().Draw(rt, "master of 24 bits") {
			n.Master = optim.Split24
		}
	}
	n.HeadChunk = min(n.HeadChunk, n.Positions())
	rate := func(name string) float64 { return math.Pow(10, rapid.Float64Range(8, 12).Draw(rt, name)) }
	flops := rate("flops")
	r := plan.Request{Model: m, Numerics: n, ProgramBytes: 1 << 20,
		Device: device.Info{Name: "test", Unified: rapid.Bool().Draw(rt, "unified")},
		Machine: plan.Machine{F32FLOPsPerSec: flops, BF16FLOPsPerSec: 2 * flops, AttentionFLOPsPerSec: flops, DeviceBytesPerSec: flops,
			UploadBytesPerSec: rate("upload"), DownloadBytesPerSec: rate("download"), AdamWBytesPerSec: rate("adamw"),
			HostBytesPerSec: rate("host"), DiskReadBytesPerSec: rate("read"), DiskWriteBytesPerSec: rate("write")},
		RecomputeAll: rapid.Bool().Draw(rt, "recompute all"), Outputs: plan.Outputs{NoClip: rapid.Bool().Draw(rt,
			"no clipping")}}
	if r.Outputs.Objective = rapid.Bool().Draw(rt, "objective"); r.Outputs.Objective {
		r.Outputs.Entropies = rapid.Bool().Draw(rt, "entropies")
		r.Numerics.ForwardOnly = draw("forward only", 0, n.MicroBatches-1)
	}
	if rapid.Bool().Draw(rt, "samples") {
		texts := min(draw("texts", 1, 4), n.Positions())
		r.Outputs.Draws = rapid.Bool().Draw(rt, "draws")
		r.Outputs.LogitRows, r.Outputs.Caches = texts, nn.Caches{Sequences: texts, Positions: draw("of a text", 1, 400)}
	}
	r.DeviceBytes = 1 << 40
	whole, err := plan.Estimate(context.Background(), r)
	if err != nil {
		rt.Fatal(err)
	}
	share := func(name string, of int64, least, most float64) int64 {
		return max(int64(float64(of)*rapid.Float64Range(least, most).Draw(rt, name)), 1)
	}
	r.DeviceBytes = share("device", whole.DeviceBytes, 0.7, 3)
	if r.Device.Unified && rapid.Bool().Draw(rt, "no device budget") {
		r.DeviceBytes = 0
	}
	r.HostBytes = share("host", whole.ProcessBytes(), 0.5, 1.3)
	if rapid.IntRange(0, 3).Draw(rt, "disk") > 0 {
		r.DiskBytes = share("disk bytes", whole.ProcessBytes(), 0.7, 3)
	}
	return r
}

// A run that has a plan does not fail on the way, and takes what the plan says. One that has none is told so in a
// line. Many more are drawn with -rapid.checks=1000.
func TestPlannedRunsDoNotFail(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: TestRehearsedIsPlanned of the engine holds the same, and is quicker; make test runs both")
	}
	planned, spilled, inputs, here, kept, shared, refused := 0, 0, 0, 0, 0, 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		r := drawRequest(rt)
		p, err := plan.New(context.Background(), r)
		if err != nil {
			refused++
			if err = r.SuggestFixes(context.Background(), err); strings.Contains(err.Error(), "\n") ||
				!strings.Contains(err.Error(), "memory.") {
				rt.Errorf("%q does not say in one line which budget is too small", err)
			}
			return
		}
		planned++
		if p.DiskBytes > 0 {
			spilled++
		}
		if len(p.InputExtents()) > 0 {
			inputs++
		}
		if p.AnyStateResident() {
			here++
		}
		if slices.ContainsFunc(p.Placement.Where.Activations, func(a plan.Activations) bool { return a.Place == plan.Host }) {
			kept++
		}
		if p.Placement.Rings.Inputs > 0 {
			shared++
		}
		if r.DeviceBytes > 0 && p.DeviceBytes > r.DeviceBytes || p.ProcessBytes() > r.HostBytes || p.DiskBytes > r.DiskBytes {
			rt.Errorf("%d, %d and %d bytes of %d, %d and %d", p.DeviceBytes, p.ProcessBytes(), p.DiskBytes, r.DeviceBytes, r.HostBytes, r.DiskBytes)
		}
		if _, err := Steps(p, 3); err != nil {
			rt.Error(err)
		}
	})
	t.Logf("%d planned, %d of them with a disk, %d with layer inputs on it, %d with state on the device, %d with kept activations on the host, %d with shared buffers for layer inputs; %d refused",
		planned, spilled, inputs, here, kept, shared, refused)
	if planned+refused >= 100 && (planned < 10 || refused == 0 || spilled == 0 || here == 0 || shared == 0) {
		t.Error("the draws are too narrow")
	}
}
