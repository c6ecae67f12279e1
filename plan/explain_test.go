package plan_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/trace"
)

// onMachine asks for a named shape on a named machine, in steps of 64 Ki positions.
func onMachine(t *testing.T, shape, name string) (plan.Request, plan.NamedMachine) {
	t.Helper()
	text, err := plan.Shape(shape)
	if err != nil {
		t.Fatal(err)
	}
	c, err := hf.ParseConfig(shape, text)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(c)
	if err != nil {
		t.Fatal(err)
	}
	on, err := plan.FindMachine(name)
	if err != nil {
		t.Fatal(err)
	}
	n := numerics(4, true)
	n.SequenceLen, n.MicroBatch, n.HeadChunk = 2048, 8, 512
	return plan.Request{Model: m, Numerics: n, Device: on.Device, Machine: on.Machine, DeviceBytes: on.DeviceBytes, HostBytes: on.HostBytes,
		DiskBytes: on.DiskBytes, ProgramBytes: plan.ProgramBytes(on.Device, 1)}, on
}

func TestExplain(t *testing.T) {
	r, on := onMachine(t, "qwen2.5-14b", "rtx3090-pc-24gb-64gb")
	p, err := plan.New(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	p.Wear = p.WearOf(1000, 125, nil, trace.RatingOf(on.RatedWriteBytes))
	got := p.Explain(r.Device, r.Machine, p.Forecast(r.Machine, r.Device, 1000))
	isGolden(t, "explain.golden", got)
	r.Device.Warning = "it could be faster: install it"
	if p, err = plan.New(context.Background(), r); err != nil {
		t.Fatal(err)
	}
	if got := p.Explain(r.Device, r.Machine, plan.Forecast{}); !strings.Contains(got,
		"\nwarning  it could be faster: install it\n") {
		t.Errorf("no warning:\n%s", got)
	}
}

func TestOutlook(t *testing.T) {
	r, _ := onMachine(t, "qwen2.5-14b", "rtx3090-pc-24gb-64gb")
	p, err := plan.Estimate(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	o := p.Forecast(r.Machine, r.Device, 10)
	q := p.Predicted
	if o.RunSeconds != 10*q.StepSeconds || o.TokensPerSec != 65536/q.StepSeconds {
		t.Errorf("%+v", o)
	}
	// Where all state is in RAM, it is copied, and a slow drive makes steps wait.
	r.HostBytes, r.DiskBytes = 0, 0
	if p, err = plan.Estimate(context.Background(), r); err != nil {
		t.Fatal(err)
	}
	r.Machine.DiskWriteBytesPerSec = 1e6
	o = p.Forecast(r.Machine, r.Device, 0)
	params, _ := p.Model.Params()
	if o.CheckpointBytes < 12*params || o.CheckpointBytes > 12*params*101/100 { // all but the 2 bytes of the gradient
		t.Errorf("a checkpoint copies %d bytes of %d parameters", o.CheckpointBytes, params)
	}
	copying := float64(o.CheckpointBytes) / 1e6
	if want := copying - p.Predicted.StepSeconds; o.CheckpointStallSeconds == nil || *o.CheckpointStallSeconds != want {
		t.Errorf("%+v, want a stall of %v", o, want)
	}
	unified := r.Device
	unified.Unified = true
	if o = p.Forecast(r.Machine, unified, 0); o.CheckpointStallSeconds == nil || *o.CheckpointStallSeconds != copying {
		t.Errorf("%+v on a unified device, want a stall of %v", o, copying)
	}
	// A measured rate of saves has precedence over the drive's rate for the disk tier.
	r.Machine.SaveBytesPerSec, r.Machine.SaveLinkSeconds = 5e5, 1
	if o = p.Forecast(r.Machine, unified, 0); *o.CheckpointStallSeconds != 2*copying {
		t.Errorf("steps wait %v s, want %v", *o.CheckpointStallSeconds, 2*copying)
	}
	r.HostBytes, r.DiskBytes = 60<<30, 1<<40
	q2, err := plan.Estimate(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	links := int64(0)
	for _, spec := range q2.Extents() {
		if q2.OnDisk(spec.ID) && !spec.Kind.Transient() {
			for range spec.Pieces() {
				links++
			}
		}
	}
	o = q2.Forecast(r.Machine, unified, 0)
	if want := float64(o.CheckpointBytes)/5e5 + float64(links); links == 0 || o.CheckpointLinks != links || *o.CheckpointStallSeconds != want {
		t.Errorf("%d files are linked in %v s, want %d in %v", o.CheckpointLinks, *o.CheckpointStallSeconds, links, want)
	}
	r.Machine.DiskWriteBytesPerSec, r.Machine.SaveBytesPerSec, r.Machine.SaveLinkSeconds = 0, 0, 0
	if o = p.Forecast(r.Machine, r.Device, 0); o.CheckpointStallSeconds != nil {
		t.Errorf("a stall of %v s on a disk that was not measured", *o.CheckpointStallSeconds)
	}
}

// A timeline has a row for each lane that works, all as long, with something in it.
func TestTimeline(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := drawRequest(rt)
		p, err := plan.Estimate(context.Background(), r)
		if err != nil {
			rt.Fatal(err)
		}
		lines := p.Timeline(r.Machine, r.Device)
		lanes := 0
		for lane := range plan.Lanes {
			if p.Predicted.LaneSeconds[lane] > 0 {
				lanes++
			}
		}
		if len(lines) != lanes {
			rt.Errorf("%d lines for %d lanes", len(lines), lanes)
		}
		for _, line := range lines {
			if len(line) != len(lines[0]) {
				rt.Errorf("lines of %d and %d characters", len(line), len(lines[0]))
			}
		}
	})
}

// A column shows what took most of it, if it was busy for half of it, and the legend has the marks that occur.
func TestChart(t *testing.T) {
	c := plan.NewChart(70)
	c.Add(plan.Worker{Lane: plan.LaneCompute}, 'F', 0, 1.3)
	c.Add(plan.Worker{Lane: plan.LaneCompute}, 'B', 1.3, 1.7)
	c.Add(plan.Worker{Lane: plan.LaneCompute}, 'F', 2.1, 2.3)
	c.Add(plan.Worker{Lane: plan.LaneCompute}, 'F', 3.1, 3.11)
	c.Add(plan.Worker{Lane: plan.LaneCompute}, 'U', 69.5, 80)
	c.Add(plan.Worker{Lane: plan.LaneDrain}, 'G', 5, 5)
	want := []string{"compute FB:" + strings.Repeat(".", 66) + "U"}
	if got := c.Lines(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := plan.Legend(want), "F forward, B backward with recompute, U update, : busy for less than half,\n. idle"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := plan.NewChart(0).Lines(); got != nil {
		t.Errorf("%q of no time", got)
	}
}

// A suggested change makes the request fit, and a slightly smaller one does not.
func TestMend(t *testing.T) {
	r, _ := onMachine(t, "qwen2.5-14b", "rtx3090-pc-24gb-64gb")
	r.DiskBytes = 0
	_, err := plan.Estimate(context.Background(), r)
	oneLine(t, r.SuggestFixes(context.Background(), err), "memory.host: ", "memory.host=181GiB", "or memory.disk=")
	if strings.Contains(r.SuggestFixes(context.Background(), err).Error(), "8bit") {
		t.Error("118 GiB are said to fit 57")
	}

	r.HostBytes = 150 << 30
	_, err = plan.Estimate(context.Background(), r)
	oneLine(t, r.SuggestFixes(context.Background(), err), "precision.moments=8bit", "memory.disk=")
	r.Numerics.Moments = optim.Dynamic8
	if _, err := plan.Estimate(context.Background(), r); err != nil {
		t.Errorf("as suggested: %v", err)
	}

	tiny := request(t, medium, numerics(8, true))
	tiny.DeviceBytes = smallest(t, tiny) - 1
	_, err = plan.Estimate(context.Background(), tiny)
	// fewer micro-batches take less
	oneLine(t, tiny.SuggestFixes(context.Background(), err), "memory.device=", "batch_tokens=168")
	tiny.Numerics.MicroBatches--
	if _, err := plan.Estimate(context.Background(), tiny); err != nil {
		t.Errorf("as suggested: %v", err)
	}
	tiny.Numerics.MicroBatches, tiny.Numerics.Cohorts = 8, 2
	tiny.DeviceBytes = smallest(t, tiny) - 1
	_, err = plan.Estimate(context.Background(), tiny)
	// cohorts stay as large as each other
	oneLine(t, tiny.SuggestFixes(context.Background(), err), "memory.device=", "batch_tokens=144")
}

// A plan as JSON has names for what it chooses, and is read back as it was.
func TestPlanAsJSON(t *testing.T) {
	r, _ := onMachine(t, "qwen2.5-14b", "rtx3090-pc-24gb-64gb")
	p, err := plan.Estimate(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	p.Placement.Where.Activations[1].Level = nn.KeepGateUp
	doc, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"compute":"bf16"`, `"master":"split"`, `"moments":"f32"`, `"sequence_len":`, `{"level":"gate-up","place":"device"}`, `"weight slots"`} {
		if !strings.Contains(string(doc), want) {
			t.Errorf("%s is not in %.600s", want, doc)
		}
	}
	var back plan.Plan
	if err := json.Unmarshal(doc, &back); err != nil {
		t.Fatal(err)
	}
	back.Model = p.Model
	if d := cmp.Diff(p, &back, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(plan.Plan{}), cmp.Comparer(func(a, b *model.Model) bool { return a == b })); d != "" {
		t.Error(d)
	}
}

// Where the device computes on the host's memory, the text has one sum, and does not count blocks as parts.
func TestMemoryOfBothIsASum(t *testing.T) {
	r, _ := onMachine(t, "qwen2.5-1.5b", "rtx3090-pc-24gb-64gb")
	r.Device.Unified, r.DeviceBytes = true, 0
	p, err := plan.New(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	sum := plan.FormatBytes(p.ProcessBytes())
	if line := p.Headline(r.Device, ""); !strings.Contains(line, ", "+sum+" of memory, about") ||
		strings.Contains(line, "host memory") {
		t.Error(line)
	}
	text := p.Explain(r.Device, r.Machine, p.Forecast(r.Machine, r.Device, 0))
	if !strings.Contains(text, "\nmemory of both, since this device computes on the host's: "+sum+"\n") ||
		strings.Contains(text, " parts\n") {
		t.Error(text)
	}
}
