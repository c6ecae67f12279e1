package train

import (
	"context"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/probe"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
)

func modelOf(t testing.TB, config string) *model.Model {
	t.Helper()
	c, err := hf.ParseConfig("config.json", []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Where large operations leave no room for a second weight slot and smaller ones do, weights travel during the work.
func TestSmallerOperationsThatOverlap(t *testing.T) {
	m := modelOf(t, `{"model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
		"num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 1e5,
		"tie_word_embeddings": true, "hidden_act": "silu"}`)
	info := device.Info{Name: "a CPU", Unified: true, Workers: 2}
	r := plan.Request{Model: m, Device: info, Machine: probe.Guess(info), DeviceBytes: 60 << 20, HostBytes: 8 << 30,
		Numerics: plan.Numerics{Compute: tensor.BF16, Master: optim.Split, SequenceLen: 512}}
	p, err := fitRequest(context.Background(), r, 4, runfile.Sizes{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p.Placement.Rings.Weights < 2 {
		t.Errorf("%d weight slots with %d micro-batches and chunks of %d", p.Placement.Rings.Weights, p.Numerics.MicroBatches, p.Numerics.HeadChunk)
	}
	// Sizes that are not auto stay.
	p, err = fitRequest(context.Background(), r, 4, runfile.Sizes{MicroBatch: 2, HeadChunk: 64}, nil)
	if err != nil || p.Numerics.MicroBatch != 2 || p.Numerics.HeadChunk != 64 {
		t.Errorf("%v, %+v", err, p)
	}
}

// A plan of a deep model with most of its state on disk is found while one waits.
func BenchmarkPlanDeepModel(b *testing.B) {
	text, err := plan.Shape("dense-180-layers")
	if err != nil {
		b.Fatal(err)
	}
	on, err := plan.FindMachine("rtx4090-pc-256gb")
	if err != nil {
		b.Fatal(err)
	}
	r := plan.Request{Model: modelOf(b, string(text)), Device: on.Device, Machine: on.Machine, DeviceBytes: on.DeviceBytes,
		HostBytes: on.HostBytes, DiskBytes: on.DiskBytes, Numerics: plan.Numerics{Compute: tensor.BF16, Master: optim.Split, SequenceLen: 2048}}
	for b.Loop() {
		if _, err := fitRequest(context.Background(), r, 32, runfile.Sizes{}, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// A GPU takes large chunks of the head where it has room for them; a CPU's sizes are its own, and what is asked for
// comes first.
func TestHeadChunks(t *testing.T) {
	if testing.Short() {
		t.Skip("plans alone")
	}
	text, err := plan.Shape("qwen2.5-1.5b")
	if err != nil {
		t.Fatal(err)
	}
	on, err := plan.FindMachine("rtx3090-pc-24gb-128gb")
	if err != nil {
		t.Fatal(err)
	}
	ask := func(dev device.Info, deviceBytes int64, sizes runfile.Sizes) *plan.Plan {
		t.Helper()
		p, err := fitRequest(context.Background(), plan.Request{Model: modelOf(t, string(text)), Device: dev, Machine: on.Machine, DeviceBytes: deviceBytes,
			HostBytes: on.HostBytes, Numerics: plan.Numerics{Compute: tensor.BF16, Master: optim.Split, SequenceLen: 2048}}, 16, sizes, nil)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	room := ask(on.Device, on.DeviceBytes, runfile.Sizes{})
	if n := room.Numerics; n.HeadChunk != 4096 || n.Positions() != 16384 {
		t.Errorf("with room: a chunk of %d and %d positions", n.HeadChunk, n.Positions())
	}
	// A chunk that large in a single visit has logits of 2.3 GiB.
	if small := ask(on.Device, 2<<30, runfile.Sizes{}); small.DeviceBytes > 2<<30 || small.Placement.HeadAtOnce && small.Numerics.HeadChunk == 4096 {
		t.Errorf("without: a chunk of %d in %d bytes", small.Numerics.HeadChunk, small.DeviceBytes)
	}
	if n := ask(device.Info{Unified: true}, 0, runfile.Sizes{}).Numerics; n.HeadChunk > 512 || n.Positions() != 2048 {
		t.Errorf("on a CPU: a chunk of %d and %d positions", n.HeadChunk, n.Positions())
	}
	if n := ask(on.Device, on.DeviceBytes, runfile.Sizes{HeadChunk: 300, MicroBatch: 2}).Numerics; n.HeadChunk != 300 || n.MicroBatch != 2 {
		t.Errorf("what is asked for is not what is planned: %+v", n)
	}
}
