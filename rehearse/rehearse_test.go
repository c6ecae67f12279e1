package rehearse

import (
	"context"
	"strings"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
)

// large is the shape of a model of 123B parameters.
const large = `{"model_type": "mistral", "hidden_size": 12288, "intermediate_size": 28672, "num_hidden_layers": 88,
	"num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32768, "max_position_embeddings": 131072,
	"rms_norm_eps": 1e-5, "rope_theta": 1e6, "tie_word_embeddings": false, "hidden_act": "silu", "sliding_window": null}`

func largePlan(t *testing.T, change func(*plan.Request)) *plan.Plan {
	t.Helper()
	c, err := hf.ParseConfig("config.json", []byte(large))
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(c)
	if err != nil {
		t.Fatal(err)
	}
	r := plan.Request{Model: m, Device: device.Info{Name: "a GPU of 80 GiB", MemoryBytes: 80 << 30}, DeviceBytes: 70 << 30,
		Numerics: plan.Numerics{Compute: tensor.BF16, Master: optim.Split, SequenceLen: 8192, MicroBatch: 1, MicroBatches: 4, HeadChunk: 512},
		Machine: plan.Machine{Name: "test", F32FLOPsPerSec: 5e13, BF16FLOPsPerSec: 6e14, AttentionFLOPsPerSec: 3e14, DeviceBytesPerSec: 2e12,
			UploadBytesPerSec: 5e10, DownloadBytesPerSec: 5e10, AdamWBytesPerSec: 2e11, HostBytesPerSec: 2e11}}
	if change != nil {
		change(&r)
	}
	p, err := plan.New(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// 1.6 TiB of state are rehearsed on any machine; what is reserved, moved and computed is what the plan says.
func TestRehearseALargeModel(t *testing.T) {
	if testing.Short() {
		t.Skip("rehearsals of a large model")
	}
	p := largePlan(t, nil)
	r, err := Steps(p, 2)
	if err != nil {
		t.Fatal(err)
	}
	params, _ := p.Model.Params()
	if params < 120e9 || r.HostBytes < 14*params || r.DeviceBytes > 70<<30 || r.MatMulFLOPs < 6*params*int64(p.Numerics.StepPositions())*9/10 {
		t.Errorf("a step of %s: %+v", plan.FormatCount(params), r)
	}
	t.Logf("%s, %s of host memory, %s on the device, issued in %.3f s", plan.FormatCount(params), plan.FormatBytes(r.HostBytes),
		plan.FormatBytes(r.DeviceBytes), r.StepSeconds)
}

// The same with a third of the state on disk, of which a rehearsal needs none: what is read and written is what the
// plan says.
func TestRehearseADisk(t *testing.T) {
	if testing.Short() {
		t.Skip("three rehearsals of a large model")
	}
	p := largePlan(t, func(r *plan.Request) {
		r.HostBytes, r.DiskBytes = 1<<40, 4<<40
		r.Machine.DiskReadBytesPerSec, r.Machine.DiskWriteBytesPerSec = 1e10, 5e9
	})
	r, err := Steps(p, 3)
	if err != nil {
		t.Fatal(err)
	}
	q := &p.Predicted
	if p.DiskBytes == 0 || r.HostBytes > 1<<40 || r.DiskWrittenBytes != q.DiskWrittenBytes || r.DiskReadBytes > q.DiskReadBytes ||
		r.DiskReadBytes < q.DiskReadBytes*99/100 {
		t.Errorf("%d bytes on disk, %d read and %d written by the plan: %+v", p.DiskBytes, q.DiskReadBytes, q.DiskWrittenBytes, r)
	}
	q.DiskWrittenBytes--
	if _, err := Steps(p, 3); err == nil || !strings.Contains(err.Error(), "written to disk") {
		t.Errorf("a wrong plan: %v", err)
	}
	q.DiskWrittenBytes++
	q.DiskReadBytes++
	if _, err := Steps(p, 3); err == nil || !strings.Contains(err.Error(), "read from disk") {
		t.Errorf("a wrong plan: %v", err)
	}
}

func TestRehearseRefuses(t *testing.T) {
	if testing.Short() {
		t.Skip("rehearsals of a large model")
	}
	p := largePlan(t, nil)
	if _, err := Steps(p, 1); err == nil || !strings.Contains(err.Error(), "2 or more") {
		t.Errorf("one step: %v", err)
	}
	// A plan that says something else than the engine does is found out.
	p.Predicted.UploadBytes++
	if _, err := Steps(p, 2); err == nil || !strings.Contains(err.Error(), "uploaded bytes") {
		t.Errorf("a wrong plan: %v", err)
	}
}

// A model with tied embeddings and a second table has sums of gradients in the store and outside of it, which are in
// one account.
func TestRehearseTwoTables(t *testing.T) {
	m, err := model.Read(modeltest.Load(t, "gemma4-shared").Dir)
	if err != nil {
		t.Fatal(err)
	}
	p := largePlan(t, func(r *plan.Request) { r.Model, r.Numerics.SequenceLen = m, 64 })
	if _, err := Steps(p, 2); err != nil {
		t.Error(err)
	}
}

// A plan with an objective is rehearsed as well, also of a host of several, and its products are known.
func TestRehearseAnObjective(t *testing.T) {
	const small = `{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
		"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 32768,
		"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "tie_word_embeddings": false,
		"hidden_act": "silu"}`
	c, err := hf.ParseConfig("config.json", []byte(small))
	if err != nil {
		t.Fatal(err)
	}
	for hosts := 1; hosts <= 2; hosts++ {
		for forward := range 3 {
			p := largePlan(t, func(r *plan.Request) {
				if r.Model, err = model.New(c); err != nil {
					t.Fatal(err)
				}
				r.Numerics.SequenceLen, r.Numerics.MicroBatches, r.Numerics.Cohorts = 256, 6, 2
				r.Numerics.ForwardOnly = forward
				r.Outputs.Objective, r.Cluster = true, plan.Cluster{Hosts: hosts}
			})
			if _, err := Hosts(t.Context(), p, 2); err != nil {
				t.Errorf("%d hosts, %d of a group not trained: %v", hosts, forward, err)
			}
			if all, err := Products(p); err != nil || len(all) != 1 || len(all[0]) == 0 {
				t.Errorf("%d hosts: products %v, %v", hosts, all, err)
			}
		}
	}
}
