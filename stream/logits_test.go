package stream_test

import (
	"context"
	"math"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
)

// logits returns the logits of rows [first, first+rows) of each micro-batch of the golden first batch, from a frozen
// model or from one that could be trained, bound (0 slots) or streamed.
func logits(t *testing.T, g *modeltest.Golden, frozen bool, slots, first, rows int) [][]float32 {
	t.Helper()
	return cappedLogits(t, g, 0, frozen, slots, first, rows)
}

// cappedLogits are logits of the same model with a soft cap. 0: none, as PyTorch has it.
func cappedLogits(t *testing.T, g *modeltest.Golden, softCap float32, frozen bool, slots, first, rows int) [][]float32 {
	t.Helper()
	ctx := context.Background()
	m, err := model.Read(g.Dir)
	if err != nil {
		t.Fatal(err)
	}
	m.Head.SoftCap = softCap
	if frozen {
		m = m.Frozen()
	}
	dev, err := cpu.New(cpu.Options{Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	var closers []func() error
	t.Cleanup(func() {
		for i := len(closers) - 1; i >= 0; i-- {
			if err := closers[i](); err != nil {
				t.Error(err)
			}
		}
	})
	closers = append(closers, dev.Close)
	p, err := plan.New(context.Background(), plan.Request{Model: m, Numerics: numerics(g, f32), Device: dev.Info(), Machine: machine,
		Outputs: plan.Outputs{LogitRows: rows}})
	if err != nil {
		t.Fatal(err)
	}
	if slots > 0 {
		place := p.Placement
		streamed(slots)(&place)
		p = p.With(place)
	}
	accounts := hostmem.New()
	s, err := store.NewRAM(accounts, p.Extents())
	if err != nil {
		t.Fatal(err)
	}
	closers = append(closers, s.Close)
	w, err := hf.OpenWeights(g.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	err = stream.Fill(ctx, p, s, func(part *model.Part, v model.Values) error { return m.ReadPart(w, part, v) })
	if err != nil {
		t.Fatal(err)
	}
	var computes device.Device = dev
	e, err := stream.New(stream.Config{Plan: p, Devices: []device.Device{computes}, Host: computes, Store: s, Accounts: accounts})
	if err != nil {
		t.Fatal(err)
	}
	closers = append(closers, e.Close)
	got, err := e.Logits(ctx, batchOf(g.First), first)
	if err != nil {
		t.Fatal(err)
	}
	if softCap > 0 {
		return got
	}
	loss, err := e.Eval(ctx, batchOf(g.First))
	loss /= float64(g.First.TargetCount())
	if d := math.Abs(loss - float64(g.Loss)); err != nil || !(d <= modeltest.WithinLogits) {
		t.Errorf("loss %v after logits (%v), PyTorch %v", loss, err, g.Loss)
	}
	return got
}

// Logits agree with PyTorch's by the largest, whatever chunk and tile they come in, and do not depend on
// placement.
func TestLogitsAgreeWithPyTorch(t *testing.T) {
	for _, variant := range []string{"qwen3", "llama", "qwen3-bias-untied"} {
		t.Run(variant, func(t *testing.T) {
			g := modeltest.Load(t, variant)
			rows := len(g.First[0].IDs)
			all := logits(t, g, true, 0, 0, rows)
			for m, want := range g.Logits {
				largest, diff := 0.0, 0.0
				for i, x := range want {
					largest = max(largest, math.Abs(float64(x)))
					diff = max(diff, math.Abs(float64(x-all[m][i])))
				}
				if !(diff <= modeltest.WithinLogits*largest) {
					t.Errorf("micro-batch %d: logits differ by %.2g, largest is %.2g", m, diff, largest)
				}
			}
			for _, c := range []struct {
				frozen      bool
				slots       int
				first, rows int
			}{{true, 1, 0, rows}, {false, 0, 0, rows}, {false, 2, 0, rows}, {true, 3, 5, 1}, {true, 0, rows - 1, 1}, {true, 2, 3, 17}} {
				some := logits(t, g, c.frozen, c.slots, c.first, c.rows)
				for m := range some {
					for i, x := range some[m] {
						if want := all[m][c.first*g.Vocab+i]; math.Float32bits(x) != math.Float32bits(want) {
							t.Fatalf("%+v: micro-batch %d: logit %d is %v, %v of all rows", c, m, i, x, want)
						}
					}
				}
			}
		})
	}
}

// Logits are read out with the model's soft cap, bound and streamed.
func TestLogitsAreCapped(t *testing.T) {
	const softCap = 0.25
	g := modeltest.Load(t, "llama")
	rows := len(g.First[0].IDs)
	all := logits(t, g, true, 0, 0, rows)
	for _, slots := range []int{0, 2} {
		for m, got := range cappedLogits(t, g, softCap, true, slots, 0, rows) {
			for i, x := range all[m] {
				if want := softCap * math.Tanh(float64(x)/softCap); math.Abs(float64(got[i])-want) > 1e-7 {
					t.Fatalf("%d slots, micro-batch %d: logit %d is %v, want %v", slots, m, i, got[i], want)
				}
			}
		}
	}
}
