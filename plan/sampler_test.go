package plan_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// over asks for texts that grow together between the steps of a plan.
func over(r plan.Request, steps *plan.Plan, texts int) plan.Request {
	r.Model, r.Over = r.Model.Frozen(), steps
	r.Numerics = steps.Whole
	r.Numerics.SequenceLen, r.Numerics.MicroBatch, r.Numerics.MicroBatches, r.Numerics.HeadChunk = texts, 1, 1, texts
	r.Numerics.BlockChunk = 0
	r.Outputs = plan.Outputs{LogitRows: texts, Draws: true,
		Caches: nn.Caches{Sequences: texts, Positions: 1024, BlockRows: 128, Blocks: 8 * texts}}
	return r
}

// A sampler has all weights and caches on a device that the steps have filled, and a round with it is much faster than
// one whose passes follow the steps. The plan of both takes what the larger one takes of the device, and of host memory
// what the sampler adds.
func TestSamplerHasTheDevice(t *testing.T) {
	r, _ := onMachine(t, "llama-3.2-1b", "h100-pcie5")
	r.DeviceBytes = 6 << 30
	steps, err := plan.New(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	q, err := plan.New(t.Context(), over(r, steps, 8))
	if err != nil {
		t.Fatal(err)
	}
	both := steps.WithSampler(q, r.Device)
	if both.DeviceTotalBytes() > r.DeviceBytes || both.DeviceBytes != max(steps.DeviceBytes, q.DeviceBytes) {
		t.Errorf("%d bytes on the device, of steps %d, of the sampler %d", both.DeviceBytes, steps.DeviceBytes, q.DeviceBytes)
	}
	var own int64
	for _, b := range q.EngineHost() {
		own += store.AlignUp(b.Bytes)
	}
	if n := both.SamplerBytes(); n < own || n > own+1<<20 || both.ProcessBytes() != steps.ProcessBytes()+n {
		t.Errorf("the sampler takes %d bytes of host memory, %d of them its own", n, own)
	}
	if n := both.Asked().SamplerBytes; n != both.SamplerBytes() || steps.Asked().SamplerBytes != 0 {
		t.Errorf("advice for other steps leaves %d bytes to the sampler, which takes %d", n, both.SamplerBytes())
	}
	round := plan.Round{Prompts: 4, Samples: 4, PromptPositions: 64, AnswerTokens: 512, Steps: 2}
	fast := both.ForecastRound(r.Machine, r.Device, round)
	follows := r
	follows.Outputs = q.Outputs
	slow, err := plan.New(t.Context(), follows)
	if err != nil {
		t.Fatal(err)
	}
	if s := fast.Sampling; s.MovedWeightBytes != 0 || s.MovedCacheBytes != 0 || s.BringSec <= 0 {
		t.Errorf("%d bytes of weights and %d of caches move for each token; %v s to bring what stays", s.MovedWeightBytes,
			s.MovedCacheBytes, s.BringSec)
	}
	if a, b := *fast.SampleSeconds, *slow.ForecastRound(r.Machine, r.Device, round).SampleSeconds; a > b/2 {
		t.Errorf("a sampler of its own takes %v s, and one that follows the steps %v s", a, b)
	}
	if both.Texts() != q || steps.Texts() != nil || slow.Texts() != slow {
		t.Error("the plan that texts follow is another one")
	}
}

// A sampler reads weights where the steps have them, on disk or in host memory, and in the latter where the steps keep
// them on the device; in the same pieces.
func TestSamplerReadsWhereStepsKeep(t *testing.T) {
	r, _ := onMachine(t, "llama-3.2-1b", "h100-pcie5")
	r.DeviceBytes, r.HostBytes, r.DiskBytes = 8<<30, 7<<30, 1<<40
	steps, err := plan.New(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	place := steps.Placement.Clone()
	place.Where.SetState(steps.Model.BlockParts[0], plan.Device)
	place.Where.SetState(steps.Model.BlockParts[1], plan.Disk)
	steps = steps.With(place)
	r.DeviceBytes, r.HostBytes = 0, 0
	q, err := plan.New(t.Context(), over(r, steps, 8))
	if err != nil {
		t.Fatal(err)
	}
	steps = steps.WithSampler(q, r.Device)
	of := map[store.ID]store.Spec{}
	for _, spec := range steps.Extents() {
		of[spec.ID] = spec
	}
	for _, spec := range q.Extents() {
		if spec.Kind != store.Weights || of[spec.ID] != spec || q.OnDisk(spec.ID) != steps.OnDisk(spec.ID) {
			t.Errorf("%v is %+v on disk %v, and the steps have %+v, %v", spec.ID, spec, q.OnDisk(spec.ID), of[spec.ID],
				steps.OnDisk(spec.ID))
		}
	}
	if !q.OnDisk(store.ID{Part: q.Model.BlockParts[1], Kind: store.Weights}) {
		t.Error("nothing is on disk")
	}
}

// Caches that host memory has no room for are on the device, and a refusal counts what steps and texts take together.
func TestSamplerInWhatStepsLeave(t *testing.T) {
	r, _ := onMachine(t, "llama-3.2-1b", "h100-pcie5")
	r.DeviceBytes = 6 << 30
	steps, err := plan.New(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	ask := over(r, steps, 8)
	ask.HostBytes = steps.ProcessBytes() + 1<<20
	q, err := plan.New(t.Context(), ask)
	if err != nil {
		t.Fatal(err)
	}
	if at := q.Placement.Where.Caches; slices.Contains(at, plan.Host) {
		t.Errorf("caches are at %v", at)
	}
	ask.HostBytes = steps.ProcessBytes() - 1
	if _, err := plan.New(t.Context(), ask); err == nil || !strings.HasPrefix(err.Error(), "memory.host: the run needs ") {
		t.Errorf("no room for more than the steps: %v", err)
	}
	if got := steps.Whole.Compute; got != tensor.BF16 {
		t.Errorf("computed in %v", got)
	}
}
