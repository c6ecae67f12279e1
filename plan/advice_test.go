package plan_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
)

// follow makes the change to a request that a refusal advises, such as memory.host=95MiB.
func follow(f plan.Fitting, advice string) (plan.Fitting, error) {
	key, value, _ := strings.Cut(advice, "=")
	bytes := func() (n int64) {
		for _, unit := range []struct {
			name  string
			bytes float64
		}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}} {
			if number, ok := strings.CutSuffix(value, unit.name); ok {
				x, _ := strconv.ParseFloat(number, 64)
				return int64(x * unit.bytes)
			}
		}
		return 0
	}
	n, _ := strconv.Atoi(value)
	switch key {
	case "memory.device":
		f.DeviceBytes = bytes()
	case "memory.host":
		f.HostBytes = bytes()
	case "memory.disk":
		f.DiskBytes = bytes()
	case "precision.master":
		f.Numerics.Master = optim.Split24
	case "precision.moments":
		moments, err := optim.ParseMoments(value)
		if err != nil {
			return f, err
		}
		f.Numerics.Moments = moments
	case "batch_tokens":
		if n == 0 || n%f.Numerics.SequenceLen != 0 {
			return f, fmt.Errorf("steps of %d tokens are not whole rows", n)
		}
		f.Rows = n / f.Numerics.SequenceLen
	case "sequence_len":
		batch := f.Rows * f.Numerics.SequenceLen
		if n == 0 || batch%n != 0 {
			return f, fmt.Errorf("%d tokens are not whole rows of %d", batch, n)
		}
		f.Numerics.SequenceLen, f.Rows = n, batch/n
	case "numerics.block_chunk":
		f.Cuts.BlockChunk = n
	default:
		return f, fmt.Errorf("%s is no key", key)
	}
	return f, nil
}

// needed is the host memory that a refusal says a run needs, in bytes; 0 if it is about something else.
func needed(err error) (bytes float64) {
	for i, unit := range []string{"B", "KiB", "MiB", "GiB"} {
		var number float64
		if n, _ := fmt.Sscanf(err.Error(), "memory.host: the run needs %f "+unit+" of", &number); n == 1 &&
			strings.Contains(err.Error(), fmt.Sprintf(" %s of host memory", unit)) {
			bytes = number * float64(int64(1)<<(10*i))
		}
	}
	return bytes
}

// TestAdviceIsRight: each change that a refusal says makes a request fit does so, and no refusal says that the run
// needs more host memory than that.
func TestAdviceIsRight(t *testing.T) {
	followed := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		s := shape{Vocab: rapid.IntRange(50, 3000).Draw(rt, "vocab"), Hidden: 64,
			Inner:  rapid.SampledFrom([]int{64, 192, 640}).Draw(rt, "inner"),
			Layers: rapid.IntRange(1, 3).Draw(rt, "layers"), Heads: 4, KVHeads: 2, HeadDim: 16,
			Tied: rapid.Bool().Draw(rt, "tied")}
		f := plan.Fitting{Rows: rapid.IntRange(1, 12).Draw(rt, "rows"),
			Request: plan.Request{Model: s.model(rt), Device: gpu, Machine: machine, Numerics: plan.Numerics{
				Compute: tensor.BF16, Master: optim.Split, PieceElems: 1 << 13,
				SequenceLen: rapid.IntRange(16, s.model(rt).MaxPositions).Draw(rt, "sequence_len")}}}
		if rapid.Bool().Draw(rt, "unified") {
			f.Device = device.Info{Name: "test", Unified: true, OverheadBytes: 1 << 16}
		}
		f.DeviceBytes, f.HostBytes = 1<<40, 1<<40
		if which := rapid.IntRange(0, 3).Draw(rt, "small budgets"); which > 0 {
			if which&1 != 0 {
				f.DeviceBytes = rapid.Int64Range(1<<17, 1<<22).Draw(rt, "device")
			}
			if which&2 != 0 {
				f.HostBytes = rapid.Int64Range(1<<19, 1<<24).Draw(rt, "host")
			}
		}
		f.ProgramBytes = rapid.Int64Range(0, 1<<22).Draw(rt, "program")
		f.DataBytes = rapid.Int64Range(0, 1<<20).Draw(rt, "data")
		if rapid.Bool().Draw(rt, "on disk") {
			f.DiskBytes = rapid.Int64Range(1<<14, 1<<23).Draw(rt, "disk")
		}
		_, err := f.Fit(context.Background())
		if err == nil {
			return
		}
		_, list, advised := strings.Cut(err.Error(), "makes it fit: ")
		if !advised {
			return
		}
		for advice := range strings.SplitSeq(list, ", or ") {
			g, errFollow := follow(f, advice)
			if errFollow == nil {
				_, errFollow = g.Fit(context.Background())
			}
			if errFollow != nil {
				rt.Fatalf("%v; with %s: %v", err, advice, errFollow)
			}
			if strings.HasPrefix(advice, "memory.host=") && needed(err) > 1.01*float64(g.HostBytes) {
				rt.Fatalf("%v: it does with %s", err, advice)
			}
			key, _, _ := strings.Cut(advice, "=")
			followed[key]++
		}
	})
	t.Log(followed)
	// 20 requests may be too few
	if !testing.Short() && (followed["memory.host"] == 0 || followed["memory.device"] == 0) {
		t.Errorf("too few requests are refused: %v", followed)
	}
}

// TestNeedsAreNoMoreThanAdvice: with a larger budget of the host less is on disk, and less is staged on its way there.
func TestNeedsAreNoMoreThanAdvice(t *testing.T) {
	s := shape{Vocab: 320, Hidden: 192, Inner: 512, Layers: 5, Heads: 6, KVHeads: 2, HeadDim: 32, Tied: true}
	f := plan.Fitting{Rows: 4, Cuts: plan.Cuts{MicroBatch: 1}, Request: plan.Request{Model: s.model(t),
		Device: device.Info{Name: "test", Unified: true}, Machine: machine, DeviceBytes: 60 << 20, DiskBytes: 1 << 30,
		Numerics: plan.Numerics{Compute: tensor.BF16, Master: optim.Split, SequenceLen: 128}}}
	refusals := 0
	for f.HostBytes = 4 << 20; f.HostBytes < 64<<20; f.HostBytes += 2 << 20 {
		err := f.Check(t.Context())
		if err == nil {
			break
		}
		refusals++
		_, advice, _ := strings.Cut(err.Error(), "makes it fit: ")
		advice, _, _ = strings.Cut(advice, ",")
		g, errFollow := follow(f, advice)
		if needs := needed(err); errFollow != nil || needs == 0 || needs > 1.001*float64(g.HostBytes) {
			t.Errorf("%v: it needs %.0f bytes, and %s is advised (%v)", err, needs, advice, errFollow)
		}
	}
	if refusals < 2 {
		t.Errorf("%d refusals", refusals)
	}
}

// TestMoreDeviceMemoryFits: a request that fits with a budget of the device fits with a larger one. The placement that
// more of it allows may take more host memory than there is.
func TestMoreDeviceMemoryFits(t *testing.T) {
	s := shape{Vocab: 320, Hidden: 192, Inner: 512, Layers: 5, Heads: 6, KVHeads: 2, HeadDim: 32, Tied: true}
	for budget := int64(8 << 20); budget <= 24<<20; budget += 1 << 20 {
		f := plan.Fitting{Rows: 46, Cuts: plan.Cuts{MicroBatch: 1, HeadChunk: 64}, Request: plan.Request{Model: s.model(t),
			Device: device.Info{Name: "test", Unified: true}, Machine: machine, DeviceBytes: budget, HostBytes: 40 << 20,
			DiskBytes: 1 << 30,
			Numerics:  plan.Numerics{Compute: tensor.BF16, Master: optim.Split, SequenceLen: 128}}}
		if err := f.Check(context.Background()); err != nil {
			t.Errorf("%d MiB of the device: %v", budget>>20, err)
		}
	}
	both := 0
	rapid.Check(t, func(rt *rapid.T) {
		f := plan.Fitting{Rows: rapid.IntRange(4, 64).Draw(rt, "rows"), Cuts: plan.Cuts{MicroBatch: 1, HeadChunk: 64},
			Request: plan.Request{Model: s.model(rt), Device: gpu, Machine: machine,
				DeviceBytes: rapid.Int64Range(8<<20, 32<<20).Draw(rt, "device"),
				HostBytes:   rapid.Int64Range(40<<20, 120<<20).Draw(rt, "host"),
				Numerics:    plan.Numerics{Compute: tensor.BF16, Master: optim.Split, SequenceLen: 128}}}
		if rapid.Bool().Draw(rt, "unified") {
			f.Device = device.Info{Name: "test", Unified: true}
		}
		if rapid.Bool().Draw(rt, "on disk") {
			f.DiskBytes = 1 << 30
		}
		if f.Check(context.Background()) != nil {
			return
		}
		both++
		f.DeviceBytes += rapid.Int64Range(0, 64<<20).Draw(rt, "more")
		if err := f.Check(context.Background()); err != nil {
			rt.Fatalf("with more of the device: %v", err)
		}
	})
	if both < 10 {
		t.Errorf("%d requests fit", both)
	}
}

// TestAdvisedLengthsDivideTheBatch: 1041 tokens are not whole rows of 130.
func TestAdvisedLengthsDivideTheBatch(t *testing.T) {
	for length, want := range map[int]bool{1041: false, 1040: true} {
		s := shape{Vocab: 50, Hidden: 64, Inner: 64, Layers: 1, Heads: 4, KVHeads: 2, HeadDim: 16}
		f := plan.Fitting{Rows: 1, Request: plan.Request{Model: s.model(t), Device: gpu, Machine: machine,
			DeviceBytes: 555 << 10, Numerics: plan.Numerics{Compute: tensor.BF16, Master: optim.Split, SequenceLen: length,
				PieceElems: 1 << 13}}}
		_, err := f.Fit(context.Background())
		oneLine(t, err, "makes it fit: memory.device=")
		if err != nil && strings.Contains(err.Error(), "sequence_len=130") != want {
			t.Errorf("rows of %d: %v", length, err)
		}
	}
}
