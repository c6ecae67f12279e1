package stream_test

import (
	"bytes"
	"testing"

	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
)

// Rows of the embedding that are looked up ahead have the bits that the table gets later, also with moments in codes,
// which are rounded at random, and with masters of 24 bits, which are rounded at random themselves. Rows are whole
// blocks of moments here, without which none are looked up ahead.
func TestRowsAheadOfRoundedState(t *testing.T) {
	for name, change := range map[string]func(*shape){
		"8-bit moments":       func(s *shape) { s.Moments8 = true },
		"8+4-bit moments":     func(s *shape) { s.Moments8, s.Codes = true, optim.Dynamic8Root4 },
		"master of 24 bits":   func(s *shape) { s.Split24 = true },
		"both, tiles of rows": func(s *shape) { s.Moments8, s.Split24, s.PieceElems = true, true, 512 },
		"both, 4-bit moments": func(s *shape) {
			s.Moments8, s.Split24, s.PieceElems, s.Codes = true, true, 512, optim.Power4Root4
		},
	} {
		t.Run(name, func(t *testing.T) { testRowsAhead(t, change) })
	}
}

func testRowsAhead(t *testing.T, change func(*shape)) {
	const steps = 3
	dev := newCPU(t)
	defer dev.Close()
	s := tiny
	s.Vocab, s.Hidden, s.Inner, s.Layers, s.HeadDim, s.PieceElems, s.BF16 = 150, 256, 8, 1, 4, 1024, true
	change(&s)
	sub := s.subject(t, steps)
	ref := start(t, sub, setup{device: dev, change: streamed(1), serial: true})
	want := train(t, ref, sub, steps)
	if n := len(ref.plan.Model.EmbedTiles); n < 2 || has(ref.plan, plan.DoLookupAhead) {
		t.Errorf("%d tiles, looked up ahead %v", n, has(ref.plan, plan.DoLookupAhead))
	}
	ref.close(t)

	ahead := func(p *plan.Placement) {
		streamed(2)(p)
		p.LookAhead = true
	}
	r := start(t, sub, setup{device: dev, change: ahead})
	defer r.close(t)
	if !has(r.plan, plan.DoLookupAhead) {
		t.Fatal("no rows are looked up ahead")
	}
	sameBits(t, train(t, r, sub, steps), want, r.plan)

	// With another seed, the state is another.
	for i := range sub.updates {
		sub.updates[i].Seed = 1
	}
	other := start(t, sub, setup{device: dev, change: streamed(1), serial: true})
	defer other.close(t)
	same := true
	for id, state := range train(t, other, sub, steps).state {
		same = same && bytes.Equal(state, want.state[id])
	}
	if same {
		t.Error("the seed changes nothing")
	}
}
