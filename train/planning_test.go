package train

import (
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
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

// Where large operations leave no room for a second weight slot and smaller ones do, weights travel behind the work.
func TestSmallerOperationsThatOverlap(t *testing.T) {
	m := modelOf(t, `{"model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
		"num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 1e5,
		"tie_word_embeddings": true, "hidden_act": "silu"}`)
	info := device.Info{Name: "a CPU", Unified: true, Workers: 2}
	r := plan.Request{Model: m, Device: info, Machine: guess(info), DeviceBytes: 60 << 20, HostBytes: 8 << 30,
		Numerics: plan.Numerics{Compute: tensor.BF16, Master: optim.Split, SequenceLen: 512}}
	p, err := fitRequest(r, 4, Sizes{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p.Placement.Slots < 2 {
		t.Errorf("%d weight slots with %d micro-batches and chunks of %d", p.Placement.Slots, p.Numerics.MicroBatches, p.Numerics.HeadChunk)
	}
	// What is not auto stays.
	p, err = fitRequest(r, 4, Sizes{MicroBatch: 2, HeadChunk: 64}, nil)
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
		if _, err := fitRequest(r, 32, Sizes{}, nil); err != nil {
			b.Fatal(err)
		}
	}
}
