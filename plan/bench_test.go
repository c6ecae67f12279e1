package plan_test

import (
	"context"
	"testing"

	"github.com/millrace/millrace/plan"
)

// A plan for a model of 70B parameters: 80 blocks, 8 micro-batches.
func BenchmarkNew(b *testing.B) {
	s := shape{Vocab: 128256, Hidden: 8192, Inner: 28672, Layers: 80, Heads: 64, KVHeads: 8, HeadDim: 128}
	n := numerics(8, true)
	n.SequenceLen, n.HeadChunk, n.MicroBatch = 4096, 512, 4
	r := request(b, s, n)
	r.DeviceBytes = 70 << 30
	r.Machine = plan.Machine{F32FLOPsPerSec: 5e13, BF16FLOPsPerSec: 6e14, AttentionFLOPsPerSec: 3e14, DeviceBytesPerSec: 2e12,
		UploadBytesPerSec: 5e10, DownloadBytesPerSec: 5e10, AdamWBytesPerSec: 2e11, HostBytesPerSec: 2e11}
	for b.Loop() {
		p, err := plan.New(context.Background(), r)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(p.Predicted.StepSeconds, "predicted-sec")
	}
}
