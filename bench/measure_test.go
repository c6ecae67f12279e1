package bench

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/probe"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/verbs"
)

func TestMeasure(t *testing.T) {
	o := Options{Model: writeConfig(t, nil), SequenceLen: 32, Tokens: 128, Steps: 3, Warmup: 1}
	for _, m := range []runfile.Memory{{}, budget(t, "4MiB")} {
		o.Memory = m
		r, err := Measure(context.Background(), newEnv(t), o)
		if err != nil {
			t.Fatal(err)
		}
		if !(r.StepMinSec > 0 && r.StepMinSec <= r.StepSec && r.StepSec <= r.StepMaxSec) || r.TokensPerSec <= 0 || r.ModelTFLOPS <= 0 ||
			r.ExecutedTFLOPS < r.ModelTFLOPS || r.Lanes[trace.Compute] <= 0 || r.Lanes[trace.Update] <= 0 ||
			r.MicroBatch*r.MicroBatches != 4 || r.PlannedBytes <= 0 || r.PredictedStepSec <= 0 ||
			r.PredictedLanes[trace.Compute] <= 0 || r.Lanes[trace.Disk] != 0 {
			t.Errorf("%+v", r)
		}
	}
	for want, bad := range map[string]Options{
		"multiple":        {SequenceLen: 32, Tokens: 100, Steps: 1},
		"moments":         {SequenceLen: 32, Tokens: 128, Steps: 1, Moments: "5bit"},
		"master":          {SequenceLen: 32, Tokens: 128, Steps: 1, Master: "half"},
		"--master":        {SequenceLen: 32, Tokens: 128, Steps: 1, Master: "split24", Compute: "f32"},
		"--max-grad-norm": {SequenceLen: 32, Tokens: 128, Steps: 1, MaxGradNorm: -1},
	} {
		bad.Model = o.Model
		_, err := Measure(context.Background(), newEnv(t), bad)
		refused(t, err, want)
	}

	// With less host memory state goes to disk, and what the disk does is counted.
	o.Master, o.Moments = "split24", "8bit"
	o.Memory = runfile.Memory{Path: runfile.Paths{t.TempDir()}, Disk: budget(t, "auto").Device,
		Host: runfile.Bytes{N: 1 << 30}}
	o.Model, o.Steps = writeConfig(t, map[string]any{"num_hidden_layers": 9}), 1
	o.program = 1
	r := &Result{}
	for ; r.DiskBytes == 0; o.Memory.Host.N = min(o.Memory.Host.N, r.PlannedBytes) - 256<<10 {
		var err error
		if r, err = Measure(context.Background(), newEnv(t), o); err != nil {
			t.Fatal(err)
		}
	}
	if r.Lanes[trace.Disk] <= 0 || r.PredictedLanes[trace.Disk] <= 0 {
		t.Errorf("on disk: %+v", r)
	}
}

// reporting is a device that says how much of its memory is free, each time something else.
type reporting struct {
	device.Device
	free []int64
	err  error
}

func (r *reporting) FreeBytes() (int64, error) {
	n := r.free[0]
	r.free = r.free[1:]
	return n, r.err
}

// The figure of free memory is the least of the time after tuning and of each step, those before the measured ones too.
func TestMeasureFreeMemory(t *testing.T) {
	o := Options{Model: writeConfig(t, nil), SequenceLen: 32, Tokens: 128, Steps: 2, Warmup: 1}
	for _, c := range []struct {
		free []int64
		err  error
		want int64
	}{
		{free: []int64{5, 3, 4, 6}, want: 3},
		{free: []int64{2, 3, 4, 6}, want: 2},
		{free: []int64{5, 5, 5, 4}, want: 4},
		{free: []int64{5}, err: errors.New("the card is lost")},
	} {
		env := newEnv(t)
		open := env.Open
		env.Open = func(name string, a *hostmem.Accounts) ([]device.Device, device.Device, error) {
			all, host, err := open(name, a)
			return []device.Device{&reporting{all[0], c.free, c.err}}, host, err
		}
		r, err := Measure(context.Background(), env, o)
		if !errors.Is(err, c.err) {
			t.Fatal(err)
		}
		if err == nil && r.DeviceFreeMinBytes != c.want {
			t.Errorf("of %v it says %d bytes, want %d", c.free, r.DeviceFreeMinBytes, c.want)
		}
	}
}

// Blocks that share memory take that of a few, and move as many bytes as blocks that do not.
func TestMeasureAliased(t *testing.T) {
	if testing.Short() {
		t.Skip("a plan for each of several budgets")
	}
	o := Options{Model: writeConfig(t, map[string]any{"num_hidden_layers": 9}), SequenceLen: 32, Tokens: 64, Steps: 1, Warmup: 1,
		MicroBatch: 1, HeadChunk: 32, MaxGradNorm: 1, Memory: budget(t, "4MiB"), Stream: "always", TracePath: filepath.Join(t.TempDir(), "trace.json")}
	env := newEnv(t)
	env.CacheDir = machineOf(t, fastHost) // blocks that share memory are updated by the host; so are these
	whole, err := Measure(context.Background(), env, o)
	if err != nil {
		t.Fatal(err)
	}
	if whole.ResidentBlocks != 0 || whole.Alias != nil || len(whole.Timeline) != 4 || len(whole.PredictedTimeline) != 4 {
		t.Errorf("%+v", whole)
	}
	if text, err := os.ReadFile(o.TracePath); err != nil || !strings.Contains(string(text), `"backward`) {
		t.Errorf("trace: %v, %d bytes", err, len(text))
	}

	o.DryRun, o.TracePath = true, ""
	env = newEnv(t)
	env.CacheDir = machineOf(t, fastHost)
	planned, err := Measure(context.Background(), env, o)
	if err != nil {
		t.Fatal(err)
	}
	if _, peak := env.Accounts.Total(); planned.Steps != 0 || planned.StepSec != 0 || peak >= whole.ReservedPeakBytes/4 {
		t.Errorf("a dry run reserves %d bytes at the peak: %+v", peak, planned)
	}
	if planned.DeviceBytes != whole.DeviceBytes || planned.UploadBytes != whole.UploadBytes || planned.PredictedStepSec <= 0 {
		t.Errorf("a dry run plans %+v, and a run %+v", planned, whole)
	}

	o.DryRun, o.AliasLayers = false, true
	env = newEnv(t)
	env.CacheDir = machineOf(t, fastHost)
	shared, err := Measure(context.Background(), env, o)
	if err != nil {
		t.Fatal(err)
	}
	a := shared.Alias
	if a == nil || a.Blocks != 9 || a.Copies != mostCopies || !strings.Contains(a.Warning, "mean nothing") {
		t.Fatalf("%+v", a)
	}
	if got := whole.ReservedPeakBytes - shared.ReservedPeakBytes; got != a.SharedBytes || got <= 0 {
		t.Errorf("sharing spares %d bytes, and says %d", got, a.SharedBytes)
	}
	if shared.UploadBytes != whole.UploadBytes || shared.DownloadBytes != whole.DownloadBytes || shared.ModelFLOPs != whole.ModelFLOPs {
		t.Errorf("%+v, want the traffic of %+v", shared, whole)
	}

	// So do blocks of which the device has room for some, on a machine whose host is slow with updates: they stay alike
	// in host memory.
	o.Stream = "auto"
	for _, size := range []string{"1MiB", "1500KiB", "2MiB", "3MiB"} {
		env = newEnv(t)
		env.CacheDir = machineOf(t, slowHost)
		o.Memory = budget(t, size)
		kept, err := Measure(context.Background(), env, o)
		if err != nil {
			t.Fatal(err)
		}
		if kept.Alias == nil || kept.Alias.SharedBytes != a.SharedBytes {
			t.Errorf("%s: %+v, want what is shared where all is streamed: %+v", size, kept.Alias, a)
		}
	}
	o.Stream, o.Memory = "always", budget(t, "4MiB")

	// Less memory has fewer copies, down to the fewest with which lanes do not wait for each other in a circle.
	env = newEnv(t)
	o.program = 1
	copies, steps := mostCopies, 0
	for o.Warmup = 0; ; steps++ {
		r, err := Measure(context.Background(), env, o)
		if err != nil {
			refused(t, err, "share memory")
			break
		}
		if n := o.Memory.Host.N; n > 0 && r.PlannedBytes > n || r.Alias.Copies > copies {
			t.Fatalf("%d bytes planned and %d copies, the budget is %d, before there were %d copies", r.PlannedBytes, r.Alias.Copies, n, copies)
		}
		copies, o.Memory.Host.N = r.Alias.Copies, r.PlannedBytes-1
	}
	if copies != 3 || steps < 4 {
		t.Errorf("the tightest of %d budgets has %d copies", steps, copies)
	}
}

func TestMeasureRefuses(t *testing.T) {
	model := writeConfig(t, nil)
	good := Options{Model: model, SequenceLen: 32, Tokens: 64, Steps: 1}
	for want, change := range map[string]func(*Options){
		"--shape NAME":    func(o *Options) { o.Model = "" },
		"one of them":     func(o *Options) { o.Shape = "qwen2.5-7b" },
		"known are":       func(o *Options) { o.Model, o.Shape = "", "qwen-7b" },
		"auto or always":  func(o *Options) { o.Stream = "never" },
		"--memory-device": func(o *Options) { o.Stream = "always" },
		"set --memory-de": func(o *Options) { o.AliasLayers = true },
		"--memory-disk": func(o *Options) {
			o.AliasLayers, o.Memory = true, budget(t, "4MiB")
			o.Memory.Path, o.Memory.Disk = runfile.Paths{t.TempDir()}, budget(t, "auto").Device
		},
	} {
		o := good
		change(&o)
		_, err := Measure(context.Background(), newEnv(t), o)
		refused(t, err, want)
	}
}

// Blocks that are in turn on the first ones are never on the bytes of their neighbours.
func TestAliasing(t *testing.T) {
	a := &aliasing{copies: 2, shapes: [][]int{{1, 2, 4, 5, 6}, {3}}, bytes: []int64{100, 1000}}
	if diff := cmp.Diff([]int{0, 1, 2, 3, 1, 2, 1, 7}, a.copyOf(8)); diff != "" {
		t.Error(diff)
	}
	if n := a.sharedBytes(); n != 300 {
		t.Errorf("%d bytes shared", n)
	}
	a.grow(199)
	if a.copies != 3 {
		t.Errorf("%d copies with 199 bytes more", a.copies)
	}
	if r := a.report(); r.Blocks != 6 || r.Copies != 4 || r.SharedBytes != 200 {
		t.Errorf("%+v", r)
	}
}

// Cores that share a part draw what one draws: in either form of weights, in pieces that end within rows.
func TestInitShared(t *testing.T) {
	env := newEnv(t)
	m, _, err := verbs.ModelToPlan(context.Background(), env, writeConfig(t, nil), "")
	if err != nil {
		t.Fatal(err)
	}
	for i := range m.Parts {
		p := &m.Parts[i]
		n, state := p.Layout.WeightElems, p.Layout.StateElems
		for _, piece := range []int64{100, 1024, n, n + 1} {
			for _, blank := range []func() model.Values{
				func() model.Values { return model.Values{F32: make([]float32, n)} },
				func() model.Values { return model.Values{High: make([]uint16, n), Low: make([]int16, state)} },
				func() model.Values { return model.Values{High: make([]uint16, n), Low8: make([]int8, state)} },
			} {
				want, got := blank(), blank()
				m.InitPart(1, p, want)
				if err := initShared(context.Background(), m, p, got, piece); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(want.F32, got.F32) || !slices.Equal(want.High, got.High) || !slices.Equal(want.Low, got.Low) ||
					!slices.Equal(want.Low8, got.Low8) {
					t.Errorf("%s in pieces of %d differs", p.Name, piece)
				}
			}
		}
	}
}

// A benchmark says whether it planned by a probe or by a guess, why, and the loss.
func TestMeasureSaysWhatItPlannedBy(t *testing.T) {
	o := Options{Model: writeConfig(t, nil), SequenceLen: 32, Tokens: 64, Steps: 2, Device: "cpu"}
	env := newEnv(t)
	dev, err := env.OpenDevices("cpu")
	if err != nil {
		t.Fatal(err)
	}
	info := dev.Info()
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	other := `"another device", and this device is "` + info.Name + `"`
	for want, name := range map[string]string{"": info.Name, "not measured": "", other: "another device"} {
		env := newEnv(t)
		env.CacheDir = t.TempDir()
		var said strings.Builder
		env.Progress = &said
		if name != "" {
			m := probe.Guess(info)
			m.Name = name
			if err := plan.WriteMachine(filepath.Join(env.CacheDir, probe.MachineFile), m); err != nil {
				t.Fatal(err)
			}
		}
		r, err := Measure(context.Background(), env, o)
		if err != nil {
			t.Fatal(err)
		}
		by := "guess"
		if want == "" {
			by = "probe"
		}
		if r.PlannedBy != by || !strings.Contains(r.GuessReason, want) || (r.GuessReason == "") != (by == "probe") ||
			strings.Contains(said.String(), "millrace probe --device cpu") != (by == "guess") {
			t.Errorf("%q: planned by a %s: %q\n%s", name, r.PlannedBy, r.GuessReason, said.String())
		}
		if math.Abs(r.Loss-r.LossUniform) > 0.2 || math.Abs(r.LossFirst-r.LossUniform) > 0.2 || r.Loss == r.LossFirst || r.LossUniform < 1 {
			t.Errorf("losses %v, then %v; %v where all tokens are alike", r.LossFirst, r.Loss, r.LossUniform)
		}
	}
}

// One draw serves all parts of a kind and a layout.
func TestFillAlike(t *testing.T) {
	o := Options{Model: writeConfig(t, nil), SequenceLen: 32, Tokens: 64, Steps: 1, Stream: "auto", Moments: "f32"}
	env := newEnv(t)
	n, err := runfile.NumericsOf("bf16", "")
	if err != nil {
		t.Fatal(err)
	}
	n.SequenceLen = 32
	m, _, err := verbs.ModelToPlan(context.Background(), env, o.Model, "")
	if err != nil {
		t.Fatal(err)
	}
	dev, err := env.OpenDevices("cpu")
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	b := &benchmark{Options: o, env: env, dev: dev, info: dev.Info(), model: m}
	b.machine = probe.Rates(env.CacheDir, b.info, nil)
	if err := b.makePlan(context.Background(), n); err != nil {
		t.Fatal(err)
	}
	s, err := b.open(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	read := func(part int) []byte {
		for _, spec := range b.plan.Extents() {
			if spec.ID == (store.ID{Part: part, Kind: store.Weights}) {
				l, err := s.Store.Borrow(context.Background(), trace.Update.Of(0), spec.ID, 0, spec.Bytes,
					store.Read, 1)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Release()
				return append([]byte(nil), l.Bytes()...)
			}
		}
		t.Fatalf("part %d has no weights", part)
		return nil
	}
	blocks := m.BlockParts
	first, second := read(blocks[0]), read(blocks[1])
	if !cmp.Equal(first, second) {
		t.Error("blocks of one layout differ")
	}
	zeros := 0
	for _, x := range first {
		if x == 0 {
			zeros++
		}
	}
	if zeros > len(first)/2 {
		t.Errorf("%d of %d bytes are zero", zeros, len(first))
	}
}

// A benchmark that is told to end while it plans ends with that, and does not say that the plan does not fit.
func TestMeasurePassesItsContextToThePlan(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	env := newEnv(t)
	open := env.Open
	env.Open = func(name string, a *hostmem.Accounts) ([]device.Device, device.Device, error) {
		cancel() // devices are opened before the plan is made
		return open(name, a)
	}
	o := Options{Model: writeConfig(t, nil), SequenceLen: 32, Tokens: 32, Steps: 1, Memory: budget(t, "1kB")}
	if _, err := Measure(ctx, env, o); !errors.Is(err, context.Canceled) {
		t.Errorf("%v; want %v", err, context.Canceled)
	}
}
