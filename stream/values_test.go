package stream_test

import (
	"context"
	"slices"
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
)

// A store that was filled from a model's files shows the exact numbers of each tensor, in fp32 and split into halves,
// also where some parts are larger than the one before them, and after one part was filled again.
func TestViewerShowsWhatFillWrote(t *testing.T) {
	g := modeltest.Load(t, "qwen3-bias-untied")
	for what, n := range map[string]plan.Numerics{"fp32": f32, "split": bf16} {
		t.Run(what, func(t *testing.T) {
			m, err := model.Read(g.Dir)
			if err != nil {
				t.Fatal(err)
			}
			dev := newCPU(t)
			defer dev.Close()
			p, err := plan.New(t.Context(), plan.Request{Model: m, Numerics: numerics(g, n), Device: dev.Info(), Machine: machine})
			if err != nil {
				t.Fatal(err)
			}
			s, err := store.NewRAM(hostmem.New(), p.Extents())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			w, err := hf.OpenWeights(g.Dir)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			from := func(part *model.Part, v model.Values) error { return m.ReadPart(w, part, v) }
			if err := stream.Fill(t.Context(), p, s, from); err != nil {
				t.Fatal(err)
			}
			if err := stream.FillPart(t.Context(), p, s, len(m.Parts)-1, from); err != nil {
				t.Fatal(err)
			}
			view := stream.Viewer(p, s)
			for i := range m.Tensors() {
				want := make([]float32, m.Tensors()[i].Shape.Elems())
				name := m.Tensors()[i].Name
				if err := w.ReadF32(name, want, 0); err != nil {
					t.Fatal(err)
				}
				got, err := m.ReadTensor(name, func(part int) (model.Values, error) { return view(t.Context(), part) })
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("%s is not what the file has, error %v", name, err)
				}
			}
		})
	}
}

// A host's store has the weights of all parts as they are computed with, and the low halves of those that it owns.
func TestFillOnHosts(t *testing.T) {
	for name, is24 := range map[string]bool{"16-bit rest": false, "24 bits": true} {
		t.Run(name, func(t *testing.T) { testFillOnHosts(t, is24) })
	}
}

func testFillOnHosts(t *testing.T, is24 bool) {
	shape := tiny
	shape.Split24 = is24
	shape.BF16, shape.Micro, shape.Cohorts, shape.FrozenBlocks = true, 2, 2, 1
	sub := shape.subject(t, 0)
	dev := newCPU(t)
	defer dev.Close()
	var of [3]func(context.Context, int) (model.Values, error) // of one process, and of each of two hosts
	plans := []*plan.Plan{newPlan(t, sub, dev.Info(), nil)}
	for host := range 2 {
		plans = append(plans, newPlan(t, sub.onHost(host, 2), dev.Info(), nil))
	}
	for i, p := range plans {
		s, err := store.NewRAM(hostmem.New(), p.Extents())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if err := stream.Fill(t.Context(), p, s, sub.fill); err != nil {
			t.Fatal(err)
		}
		of[i] = stream.Viewer(p, s)
	}
	for part := range sub.model.Parts {
		want, err := of[0](t.Context(), part)
		if err != nil {
			t.Fatal(err)
		}
		for host := range 2 {
			got, err := of[1+host](t.Context(), part)
			if err != nil {
				t.Fatal(err)
			}
			low, low8 := want.Low, want.Low8
			if !plans[1+host].Owns(part) {
				low, low8 = nil, nil
			}
			if !slices.Equal(got.High, want.High) || !slices.Equal(got.Low, low) || !slices.Equal(got.Low8, low8) {
				t.Errorf("%s on host %d of two is not what one process has", sub.model.Parts[part].Name, host)
			}
		}
	}
}
