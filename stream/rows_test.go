package stream_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/null"
	"github.com/millrace/millrace/hostmem"

	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/plan/plantest"
	"github.com/millrace/millrace/stream"
)

// allRows is a device whose sums have other bits with fewer rows, as products of GPUs may.
type allRows struct{ device.Device }

func (d allRows) Info() device.Info {
	info := d.Device.Info()
	info.CutsRows = false
	return info
}

// CopiesFrom implements device.PeerCopier.
func (d allRows) CopiesFrom(other device.Device) bool {
	return d.Device.(device.PeerCopier).CopiesFrom(other.(allRows).Device)
}

// endsEarly is a batch whose micro-batches have the documents of another one that end within their first rows, as many
// as are left of each, and then padding.
func endsEarly(b *stream.Batch, left []int) *stream.Batch {
	short := &stream.Batch{}
	for m, of := range b.Micro {
		mb := batch.New(len(of.IDs))
		for first := 0; first < len(of.IDs) && int(of.DocEnd[first]) <= left[m]; first = int(of.DocEnd[first]) {
			mb.SetDocument(first, of.IDs[first:of.DocEnd[first]])
			copy(mb.Targets[first:of.DocEnd[first]], of.Targets[first:])
		}
		short.Micro, short.Targets = append(short.Micro, mb), short.Targets+mb.Count()
	}
	return short
}

// padded is a subject whose batches have micro-batches that are full, that end early, and that have no document, in
// turn.
func (s *subject) padded() *subject {
	c, rnd := *s, rand.New(rand.NewPCG(5, 6))
	short := func(i int, b *stream.Batch) *stream.Batch {
		var left []int
		for m := range b.Micro {
			t := len(b.Micro[m].IDs)
			left = append(left, []int{0, t, max(t*5/8, 1), 1 + rnd.IntN(t)}[(i+m)%4])
		}
		return endsEarly(b, left)
	}
	c.batches = nil
	for i, b := range s.batches {
		c.batches = append(c.batches, short(i, b))
	}
	c.eval = short(2, s.eval)
	return &c
}

// paddedSubjects are models of all kinds with such batches, and the objectives of their steps.
func paddedSubjects(t *testing.T) (all []named, objectives []objective.Objective) {
	add := func(name string, s *subject, o objective.Objective) {
		all, objectives = append(all, named{name, s.padded()}), append(objectives, o)
	}
	for _, variant := range []string{"llama-bias", "gemma2", "gpt_neox", "gpt2"} {
		g := modeltest.Load(t, variant)
		add(variant, golden(t, g, chunked(bf16, 8)), nil)
	}
	for _, s := range objectiveSubjects(t, lawSteps, 2) {
		add(s.name, s.subject, nil)
		stops := *s.subject
		stops.outputs.Objective = true
		add(s.name+", with a stop", &stops, rivals{})
	}
	for _, typ := range []string{hybrid, latent, modeltest.Patchwork.ModelType} {
		s := tiny
		s.Type, s.Micro, s.MicroBatch, s.BlockChunk, s.Tied, s.Gradients = typ, 4, 2, 8, true, true
		add(typ, s.subject(t, lawSteps), nil)
	}
	s := tiny
	s.Micro, s.BF16 = 4, true
	add("a critic", s.withCritic(t, lawSteps), critics{})
	// Sums over rows are in several blocks.
	long := tiny
	long.Layers, long.Vocab, long.SequenceLen, long.HeadChunk, long.Micro, long.MicroBatch = 1, 40, 60, 1000, 3, 25
	add("long", long.subject(t, lawSteps), nil)
	long.BF16 = true
	add("long, bf16", long.subject(t, lawSteps), nil)
	return all, objectives
}

// The law: rows of padding that are left out change no bit, wherever things are placed, on any number of devices and
// hosts, and whether devices leave out single rows or whole micro-batches alone.
func TestPaddingChangesNoBit(t *testing.T) {
	dev := newCPU(t)
	defer dev.Close()
	subjects, objectives := paddedSubjects(t)
	wants := make([]outcome, len(subjects))
	for i, s := range subjects {
		r := start(t, s.subject, setup{device: dev, change: streamed(1), serial: true, allRows: true,
			objective: objectives[i]})
		wants[i] = train(t, r, s.subject, lawSteps)
		r.close(t)
	}
	wraps := []func(device.Device) device.Device{nil, func(d device.Device) device.Device { return allRows{d} }}
	for i, s := range subjects { // each at least once
		t.Run(s.name, func(t *testing.T) {
			r := start(t, s.subject, setup{device: dev, objective: objectives[i], change: streamed(2)})
			defer r.close(t)
			sameBits(t, train(t, r, s.subject, lawSteps), wants[i], r.plan)
		})
	}
	rapid.Check(t, func(rt *rapid.T) {
		i := rapid.IntRange(0, len(subjects)-1).Draw(rt, "subject")
		s, wrap := subjects[i].subject, wraps[rapid.IntRange(0, 1).Draw(rt, "whole micro-batches")]
		rt.Log(subjects[i].name)
		drawn := func() setup {
			place := plantest.Draw(rt, s.model, rapid.Bool().Draw(rt, "bound"))
			return setup{device: dev, wrap: wrap, objective: objectives[i],
				change: func(p *plan.Placement) { *p = place.Clone() }}
		}
		if n := s.numerics.CohortCount(); n > 1 && rapid.Bool().Draw(rt, "several hosts") {
			var setups []setup
			for range n {
				setups = append(setups, drawn())
			}
			c := startHosts(rt, s, setups...)
			defer c.close(rt)
			sameOnHosts(rt, c, c.train(rt, s, lawSteps), wants[i])
			return
		}
		r := start(rt, s, drawn())
		defer r.close(rt)
		sameBits(rt, train(rt, r, s, lawSteps), wants[i], r.plan)
	})
}

// counted are the floating-point operations of products in a step of a batch, on devices that only count.
func counted(t *testing.T, s *subject, p *plan.Plan, b *stream.Batch,
	wrap func(device.Device) device.Device) (flops int64) {
	t.Helper()
	accounts, d := hostmem.New(), null.New(null.Options{Unified: true})
	state, _, err := stream.OpenStore(p, stream.StoreOptions{Accounts: accounts, AddressOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	e, err := stream.New(stream.Config{Plan: p, Devices: []device.Device{wrap(d)}, Host: d, Store: state,
		Accounts: accounts, AddressOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if _, err := e.Step(context.Background(), b, s.updates[0]); err != nil {
		t.Fatal(err)
	}
	return d.Counts().Ops["MatMul"].FLOPs
}

// A step takes the products of its rows: of those before the padding at the ends of micro-batches, or on a device that
// leaves out whole micro-batches of those that have a document. A mixture of experts takes all.
func TestPaddingIsNotComputed(t *testing.T) {
	shape := tiny
	shape.Micro, shape.SequenceLen, shape.MicroBatch, shape.HeadChunk, shape.BlockChunk = 4, 10, 2, 16, 8
	s := shape.subject(t, 1)
	full := s.batches[0]
	for i := range full.Micro { // documents of one position, so that any number of rows is left
		for at, id := range slices.Clone(full.Micro[i].IDs) {
			full.Micro[i].SetDocument(at, []int32{max(id, 1)})
		}
	}
	ofZeros := endsEarly(full, make([]int, 4)) // a document that looks like padding, except for its length
	ofZeros.Micro[1].SetDocument(4, []int32{1, 0, 0})
	mixture := tiny
	ofExperts(&mixture)
	mixture.Micro = 4
	for _, c := range []struct {
		subject *subject
		wrap    func(device.Device) device.Device
		left    [4]int // of 20 rows, or of 11 of the mixture
		of, n   int64  // n of these shares of the products of a full step
	}{
		{s, func(d device.Device) device.Device { return d }, [4]int{20, 20, 20, 20}, 80, 80},
		{s, func(d device.Device) device.Device { return d }, [4]int{20, 13, 0, 1}, 80, 34},
		{s, func(d device.Device) device.Device { return d }, [4]int{0, 0, 3, 0}, 80, 3},
		{s, func(d device.Device) device.Device { return d }, [4]int{}, 80, 0},
		{s, func(d device.Device) device.Device { return allRows{d} }, [4]int{0, 13, 0, 1}, 80, 40},
		{mixture.subject(t, 1), func(d device.Device) device.Device { return d }, [4]int{11, 0, 0, 2}, 1, 1},
	} {
		t.Run(fmt.Sprint(c.left), func(t *testing.T) {
			p := newPlan(t, c.subject, null.New(null.Options{Unified: true}).Info(), nil)
			whole := c.subject.batches[0]
			all, some := counted(t, c.subject, p, whole, c.wrap), counted(t, c.subject, p, endsEarly(whole, c.left[:]), c.wrap)
			if c.left == [4]int{} {
				if of := counted(t, c.subject, p, ofZeros, c.wrap); of*80 != all*7 {
					t.Errorf("a document that ends before row 7 takes %d FLOPs of %d", of, all)
				}
			}
			if all == 0 || some*c.of != all*c.n {
				t.Errorf("%v rows take %d FLOPs of %d; want %d of %d shares", c.left, some, all, c.n, c.of)
			}
		})
	}
}

// The figures of padding are zeros, those of a critic's values too, whatever was computed there before.
func TestFiguresOfPadding(t *testing.T) {
	shape := tiny
	shape.Micro = 2
	s := shape.withCritic(t, 1)
	s.outputs.LogProbs = true
	r := start(t, s, setup{change: streamed(1), objective: critics{}})
	defer r.close(t)
	for _, left := range [][]int{{11, 11}, {9, 0}, {0, 9}} {
		b := endsEarly(s.eval, left)
		figures, err := r.engine.Figures(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		for m, of := range figures {
			end := 0
			for at, target := range b.Micro[m].Targets {
				if int(b.Micro[m].DocEnd[at])-at > 1 || target >= 0 || b.Micro[m].IDs[at] != 0 {
					end = int(b.Micro[m].DocEnd[at])
				}
			}
			for at := range of.Values {
				if figures := of.LogProbs[at] != 0 || of.Entropies[at] != 0 || of.Values[at] != 0; figures && at >= end {
					t.Errorf("%v: micro-batch %d has figures at position %d, after its documents", left, m, at)
				} else if at < end && of.Values[at] == 0 {
					t.Errorf("%v: micro-batch %d has no value at position %d", left, m, at)
				}
			}
		}
	}
}
