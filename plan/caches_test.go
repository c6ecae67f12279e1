package plan_test

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
)

// Caches in blocks take the rows of the blocks, whatever the sequences may come to; and a table, which comes with the
// tokens of a pass. Those that have no room for one sequence are refused.
func TestCachesInBlocks(t *testing.T) {
	m := tiny.model(t).Frozen()
	of := func(c nn.Caches) *plan.Plan { return planFor(t, m, plan.Outputs{LogitRows: 2, Caches: c}) }
	rows := of(nn.Caches{Sequences: 4, Positions: 32})
	blocks := of(nn.Caches{Sequences: 9, Positions: 31, BlockRows: 8, Blocks: 16})
	if a, b := rows.CacheBytes(0), blocks.CacheBytes(0); a != b {
		t.Errorf("128 rows take %d bytes, and in blocks %d", a, b)
	}
	r := plan.Request{Model: m, Numerics: numerics(1, false), Machine: machine, Outputs: plan.Outputs{LogitRows: 1}}
	r.Device.Unified = true
	for want, c := range map[string]nn.Caches{
		"a sequence of 31 positions takes 4": {Sequences: 9, Positions: 31, BlockRows: 8, Blocks: 3},
		"they may have 16777216 rows":        {Sequences: 9, Positions: 31, BlockRows: 8, Blocks: 1 << 22},
		"each is positive":                   {Sequences: 9, Positions: 31, BlockRows: -8, Blocks: 16},
		"these have no numbers of 32 bits":   {Sequences: 1 << 25, Positions: 31, BlockRows: 32, Blocks: 16},
		"16777216 rows together":             {Sequences: 1 << 20, Positions: 31},
	} {
		r.Outputs.Caches = c
		if err := r.Fits(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A plan with caches loads weights once where the device has room for them and the caches, and else for each token.
func TestCachesLeaveWeightsOnDevice(t *testing.T) {
	r, _ := onMachine(t, "llama-3.2-1b", "h100-pcie5") // 2.5 GB in bf16
	r.Model = r.Model.Frozen()
	r.Numerics.SequenceLen, r.Numerics.MicroBatches = 64, 1
	f := plan.Fitting{Request: r, Rows: 1, Cuts: plan.Cuts{MicroBatch: 1, HeadChunk: 16}}
	// 16 texts of 1,024 positions of 32 KiB: half a gigabyte.
	f.Outputs.LogitRows = 16
	f.Outputs.Caches = nn.Caches{Sequences: 16, Positions: 1024, BlockRows: 128, Blocks: 128}
	for _, c := range []struct {
		bytes int64
		moves bool
	}{{5 << 30, false}, {2 << 30, true}} {
		f.DeviceBytes = c.bytes
		p, err := f.Fit(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		moved := weightsMoved(p, plan.Mode{Pass: plan.Continue, Loaded: true})
		seconds := p.PassSeconds(r.Machine, r.Device)
		if link := float64(moved) / r.Machine.UploadBytesPerSec; c.moves != (moved > 0) || seconds < link ||
			!c.moves && seconds > 5e-3 {
			t.Errorf("on %d bytes %d of weights come for a token, which takes %v s", c.bytes, moved, seconds)
		}
	}
}

// A run that trains brings weights that have a place on the device once for all passes between two updates.
func TestPassesAgainFindWeights(t *testing.T) {
	m := tiny.model(t)
	p := planFor(t, m, plan.Outputs{LogitRows: 2, Caches: nn.Caches{Sequences: 2, Positions: 32}})
	place := moving(m, 2)
	place.Where.Caches = []plan.Place{plan.Device}
	streamed := p.With(place.Clone())
	place.Where.Weights[1], place.Where.Weights[2] = plan.Device, plan.Device
	held := p.With(place)
	first := plan.Mode{Pass: plan.Continue, Loaded: true}
	again := first
	again.Again = true
	for _, p := range []*plan.Plan{streamed, held} {
		there := int64(0)
		for i := range m.Parts {
			if p.Placement.Where.Weights[i] == plan.Device && !m.Parts[i].Kind.LookedUp() {
				there += p.Numerics.Compute.Bytes() * m.Parts[i].Layout.WeightElems
			}
		}
		if all, rest := weightsMoved(p, first), weightsMoved(p, again); rest != all-there || p == held && there == 0 {
			t.Errorf("of weights %d bytes have a place on the device, and %d come for a pass, and then %d", there, all, rest)
		}
	}
	if mode := held.ModeOf(plan.Mode{Pass: plan.Steady, Again: true}); mode.Again {
		t.Error("a step takes weights for those of the step before")
	}
}

// weightsMoved counts the bytes of weights that a schedule brings to the device.
func weightsMoved(p *plan.Plan, mode plan.Mode) (bytes int64) {
	for _, op := range p.ScheduleOf(mode).Ops {
		if op.Do == plan.DoMove && len(op.Writes) > 0 && op.Writes[0].What == plan.Weights {
			bytes += p.Numerics.Compute.Bytes() * p.Model.Parts[op.Part].Layout.WeightElems
		}
	}
	return bytes
}
