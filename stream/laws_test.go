package stream_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/plan/plantest"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
	"pgregory.net/rapid"
)

// outcome is all that a few steps leave: results, state, and what was saved on the way, by bits.
type outcome struct {
	scalars []uint64
	passes  string // logits of passes between steps; empty: the plan has no caches
	state   map[store.ID][]byte
	saved   []map[store.ID][]byte
}

// train runs some steps, with a save below each but the first one and, after the second one, an evaluation and passes
// that continue sequences, if the plan has them; these come again after the last step, with weights that have changed
// since. It collects what came out.
func train(t errorer, r *rig, s *subject, steps int) outcome {
	t.Helper()
	var o outcome
	var own float64 // the longest move of the step's own update
	for i := range steps {
		if i > 0 {
			o.saved = append(o.saved, map[store.ID][]byte{})
			r.engine.Save(r.capture(o.saved[i-1]))
		}
		res, err := r.engine.Step(context.Background(), s.batches[i], s.updates[i])
		if err != nil {
			t.Fatal(err)
		}
		moved := res.LongestMove // in the update of the step before
		if r.plan.UpdatesInBackward() {
			moved, own = own, moved
		}
		if i > 0 && !(moved > 0.1 && moved < 100) {
			t.Errorf("the longest move in the update of step %d is %v", i, moved)
		}
		o.scalars = append(o.scalars, math.Float64bits(res.LossSum), math.Float64bits(res.GradNorm), math.Float64bits(moved),
			math.Float64bits(res.EntropySum), math.Float64bits(res.Hits))
		for _, n := range slices.Concat(res.Loads...) {
			o.scalars = append(o.scalars, uint64(n))
		}
		if i == 1 && r.plan.Outputs.Continues() {
			o.passes = passes(t, r)
		}
		if i == 1 {
			res, err := r.engine.Measure(context.Background(), s.eval)
			if err != nil {
				t.Fatal(err)
			}
			o.scalars = append(o.scalars, math.Float64bits(res.LossSum), math.Float64bits(res.EntropySum),
				math.Float64bits(res.Hits))
		}
		if i == 1 && r.plan.Outputs.Continues() && passes(t, r) != o.passes {
			t.Errorf("passes before and after an evaluation have other logits")
		}
	}
	if steps > 2 && r.plan.Outputs.Continues() {
		o.passes += passes(t, r)
	}
	if _, err := r.engine.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	o.state = stateOf(t, r).state
	return o
}

// passes are the logits of a few passes over sequences from their start: all that the plan has, of all its positions.
func passes(t errorer, r *rig) string {
	t.Helper()
	n, caches := r.plan.Numerics.Positions(), r.plan.Outputs.Caches
	var all []stream.Position
	for at := range caches.Positions {
		for seq := range caches.Sequences {
			all = append(all, stream.Position{Token: int32((7*at + 5*seq) % r.plan.Model.Vocab), Sequence: seq, At: at,
				Length: caches.Positions})
		}
	}
	var text strings.Builder
	for pass := range slices.Chunk(all, max(n-1, 1)) {
		wanted := min(r.plan.Outputs.LogitRows, len(pass))
		var what any
		var err error
		if r.plan.Outputs.Draws {
			draws := make([]device.TokenDraw, wanted)
			for i := range draws {
				draws[i] = device.TokenDraw{Key: [2]uint32{3, 4}, Text: uint64(i), Inverse: float32(i % 2)}
			}
			what, err = r.engine.Draw(context.Background(), pass, draws, r.plan.Model.Vocab-1)
		} else {
			what, err = r.engine.Continue(context.Background(), pass, wanted)
		}
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&text, what)
	}
	return text.String()
}

// withPasses is a subject that continues sequences between steps, two of them unless a micro-batch has one position,
// for logits or for tokens that rows draw.
func (s *subject) withPasses(draws bool) *subject {
	c := *s
	c.outputs.Draws = draws
	n := min(s.numerics.Positions(), 2)
	c.outputs.LogitRows, c.outputs.Caches = n, nn.Caches{Sequences: n, Positions: s.numerics.SequenceLen/2 + 3}
	return &c
}

// stateOf reads the state that a store keeps.
func stateOf(t errorer, r *rig) outcome {
	t.Helper()
	o := outcome{state: map[store.ID][]byte{}}
	for _, spec := range r.plan.Extents() {
		if spec.Kind == store.GradSum || spec.Share > 0 {
			continue // nothing between steps
		}
		o.state[spec.ID] = make([]byte, spec.Bytes)
		if err := stream.ReadExtent(context.Background(), r.store, spec, o.state[spec.ID]); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func sameBits(t errorer, got, want outcome, p *plan.Plan) {
	t.Helper()
	for i := range want.scalars {
		if got.scalars[i] != want.scalars[i] {
			t.Errorf("scalar %d: %v, reference %v", i, math.Float64frombits(got.scalars[i]), math.Float64frombits(want.scalars[i]))
			break
		}
	}
	if got.passes != want.passes && got.passes != "" && want.passes != "" {
		t.Errorf("passes between steps have other logits than the reference")
	}
	for id, bits := range want.state {
		if got.state[id] == nil && id.Kind == store.Grad && (p.StateResident(id.Part) || p.UpdatesInBackward()) {
			continue // it does not leave the device, or is gone
		}
		if !bytes.Equal(got.state[id], bits) {
			t.Errorf("%v of %s differ from the reference", id.Kind, p.Model.Parts[id.Part].Name)
		}
	}
	for i, all := range want.saved {
		for id, bits := range all {
			if !bytes.Equal(got.saved[i][id], bits) {
				t.Errorf("save %d: %v of %s differ from the reference", i+1, id.Kind, p.Model.Parts[id.Part].Name)
			}
		}
		if len(got.saved[i]) != len(all) {
			t.Errorf("save %d has %d extents, the reference %d", i+1, len(got.saved[i]), len(all))
		}
	}
}

// placements draws any placement that the planner could make, and more.
func placements(rt *rapid.T, m *model.Model, p *plan.Placement, mayBind bool) {
	*p = plantest.Draw(rt, m, mayBind && rapid.Bool().Draw(rt, "bound"))
}

// The law: a placement, a ring depth, overlap or a second run change no bit of results and state. For a long run give
// -rapid.checks.
func TestPlacementChangesNoBit(t *testing.T) {
	const steps = 3
	dev := newCPU(t)
	defer dev.Close()
	type law struct {
		name    string
		subject *subject
		want    outcome
	}
	var laws []law
	add := func(name string, s *subject) {
		ref := start(t, s, setup{change: streamed(1), serial: true, device: dev})
		defer ref.close(t)
		laws = append(laws, law{name, s, train(t, ref, s, steps)})
	}
	// Updates in the backward pass do the same as updates after it.
	addUnclipped := func(name string, s *subject) {
		late := s.unclipped(false)
		ref := start(t, late, setup{change: streamed(1), serial: true, device: dev})
		defer ref.close(t)
		laws = append(laws, law{name + ", not clipped", s.unclipped(true), train(t, ref, late, steps)})
	}
	for _, variant := range []string{"qwen3", "llama-bias", "mistral-window", "llama-linear-tied", "gemma2",
		"gpt_neox", "gpt2"} {
		g := modeltest.Load(t, variant)
		add(variant+" f32", golden(t, g, f32))
		add(variant+" bf16, in chunks", golden(t, g, chunked(bf16, 8)))
		addUnclipped(variant+" bf16", golden(t, g, bf16))
	}
	for _, tied := range []bool{false, true} {
		for _, split := range []bool{false, true} {
			for _, eight := range []bool{false, true} {
				s := tiny
				s.Layers, s.Tied, s.BF16, s.Moments8 = 5, tied, split, eight
				s.BlockChunk, s.Unclipped, s.Split24 = plan.BlockChunkMultiple, eight, tied == eight
				if s.Codes = optim.Dynamic8; split {
					s.Codes = optim.Dynamic8Root4
				}
				add(fmt.Sprintf("tiles in chunks, tied %v, bf16 %v, 8-bit moments, not clipped %v", tied, split, eight), s.subject(t, steps))
				addUnclipped(fmt.Sprintf("tiles in chunks, tied %v, bf16 %v, 8-bit moments %v", tied, split, eight), s.subject(t, steps))
			}
		}
	}
	for _, tied := range []bool{false, true} {
		s := tiny
		s.Tied, s.BF16, s.Moments8, s.Grouped, s.Codes = tied, tied, !tied, true, optim.Power4Root4
		add(fmt.Sprintf("groups, tied %v", tied), s.subject(t, steps))
	}
	for _, groups := range []int{0, 2, 3} {
		for _, split := range []bool{false, true} {
			s := tiny
			s.Type, s.Layers, s.BF16, s.BlockChunk = modeltest.Patchwork.ModelType, 5, split, plan.BlockChunkMultiple
			s.Groups = groups
			add(fmt.Sprintf("blocks of two kinds, groups %d, bf16 %v", groups, split), s.subject(t, steps))
			addUnclipped(fmt.Sprintf("blocks of two kinds, groups %d, bf16 %v", groups, split), s.subject(t, steps))
		}
	}
	for _, tied := range []bool{false, true} {
		for _, split := range []bool{false, true} {
			s := tiny
			s.Micro, s.Cohorts, s.Tied, s.BF16, s.Moments8, s.FrozenBlocks, s.Split24 = 4, 2, tied, split, tied, 1, !tied
			add(fmt.Sprintf("cohorts, tied %v, bf16 %v", tied, split), s.subject(t, steps))
			addUnclipped(fmt.Sprintf("cohorts, tied %v, bf16 %v", tied, split), s.subject(t, steps))
		}
	}
	runs, inputs, here, passing, kept, ahead, inBackward, dealtDisk, dealtInputs := 0, 0, 0, 0, 0, 0, 0, 0, 0
	twice, inPart := 0, 0
	heads := 0                       // runs with tiles of the head on several devices
	peers, apart := map[int]int{}, 0 // runs with peer copies, by the number of devices up to 4; and those without
	round := 0
	check := func(rt *rapid.T) {
		for range round { // the same seed gives other draws
			rapid.Uint64().Draw(rt, "round")
		}
		l := laws[rapid.IntRange(0, len(laws)-1).Draw(rt, "subject")]
		r := start(rt, l.subject, setup{device: dev, serial: rapid.Bool().Draw(rt, "serial"),
			change: func(p *plan.Placement) { placements(rt, l.subject.model, p, true) }})
		defer r.close(rt)
		rt.Log(l.name)
		runs++
		if len(r.plan.InputExtents()) > 0 {
			inputs++
		}
		if r.plan.AnyStateResident() {
			here++
		}
		if slices.ContainsFunc(r.plan.Model.BlockParts, r.plan.StatePasses) {
			passing++
		}
		for block := range r.plan.Model.Blocks {
			if r.plan.ActivationsPass(block) {
				kept++
				break
			}
		}
		if has(r.plan, plan.DoLookupAhead) {
			ahead++
		}
		if r.plan.UpdatesInBackward() {
			inBackward++
		}
		if r.plan.Placement.Twice {
			twice++
		}
		if r.plan.Placement.TwiceFrom > 0 {
			inPart++
		}
		if r.plan.Ranks() > 1 && r.plan.DiskBytes > 0 {
			dealtDisk++
			if len(r.plan.InputExtents()) > 0 {
				dealtInputs++
			}
		}
		if r.plan.Placement.HeadDeal != nil {
			heads++
		}
		switch n := r.plan.Ranks(); {
		case r.plan.Placement.PeerCopies:
			peers[min(n, 4)]++
		case n > 1:
			apart++
		}
		sameBits(rt, train(rt, r, l.subject, steps), l.want, r.plan)
	}
	narrow := func() bool {
		return runs >= 100 && (inputs == 0 || here == 0 || passing == 0 || kept == 0 || ahead == 0 || inBackward == 0 ||
			dealtDisk == 0 || dealtInputs == 0 || len(peers) < 3 || apart == 0 || heads == 0 || twice == 0 || inPart == 0)
	}
	rapid.Check(t, check)
	for round = 1; round <= 3 && narrow(); round++ { // what is drawn in some runs of a hundred may be drawn in none
		rapid.Check(t, check)
	}
	t.Logf("%d runs, %d of them with saved inputs on disk, %d with updates on the device, "+
		"%d with state that passes, %d with kept activations on the host, %d with rows looked up ahead, "+
		"%d with updates in the backward pass, %d with gradients that are computed twice, "+
		"%d of them in part, %d on several devices with state on disk, %d of them with inputs, "+
		"%d with a dealt head, %d on several without peer copies, and with them on two, three and more %v",
		runs, inputs, here, passing,
		kept, ahead, inBackward, twice, inPart, dealtDisk, dealtInputs, heads, apart, peers)
	if narrow() {
		t.Error("the draws are too narrow")
	}
}

// has reports whether a steady step has an operation that does something.
func has(p *plan.Plan, do plan.Do) bool {
	return slices.ContainsFunc(p.Schedule(plan.Steady).Ops, func(op plan.Op) bool { return op.Do == do })
}

// The same law for any shape of model and batch, with anything frozen, with or without passes that continue sequences
// between steps, on one host or on several with a placement each.
func TestShapesAndPlacementsChangeNoBit(t *testing.T) {
	const steps = 3
	dev := newCPU(t)
	defer dev.Close()
	rapid.Check(t, func(rt *rapid.T) {
		s := draw(rt)
		if rapid.Bool().Draw(rt, "freeze") {
			s.FrozenBlocks = rapid.IntRange(0, s.Layers).Draw(rt, "frozen blocks")
			s.FrozenFFN = rapid.Bool().Draw(rt, "frozen ffn")
			s.FrozenEmbed = rapid.Bool().Draw(rt, "frozen embedding")
			s.FrozenHead = rapid.Bool().Draw(rt, "frozen head")
		}
		sub := s.subject(rt, steps)
		late := sub
		if rapid.Bool().Draw(rt, "not clipped") {
			sub, late = sub.unclipped(true), sub.unclipped(false)
		}
		if passes := rapid.IntRange(0, 2).Draw(rt, "passes between steps"); passes > 0 {
			draws := rapid.Bool().Draw(rt, "of drawn tokens")
			if sub = sub.withPasses(draws); passes > 1 {
				late = late.withPasses(draws)
			}
		}
		ref := start(rt, late, setup{device: dev, change: streamed(1), serial: true})
		want := train(rt, ref, late, steps)
		ref.close(rt)
		drawn := func() setup {
			place := plantest.Draw(rt, sub.model, rapid.Bool().Draw(rt, "bound"))
			return setup{device: dev, change: func(p *plan.Placement) { *p = place.Clone() }}
		}
		if n := sub.numerics.CohortCount(); n > 1 && rapid.Bool().Draw(rt, "several hosts") {
			var setups []setup // each host has its own placement
			for range n {
				setups = append(setups, drawn())
			}
			c := startHosts(rt, sub, setups...)
			defer c.close(rt)
			sameOnHosts(rt, c, c.train(rt, sub, steps), want)
			return
		}
		r := start(rt, sub, drawn())
		defer r.close(rt)
		sameBits(rt, train(rt, r, sub, steps), want, r.plan)
	})
}

// Chunks of blocks' rows are numerics, not placement, but they touch only sums over positions: losses, which belong
// to single positions, have the same bits; norms of gradients differ in their rounding.
func TestBlockChunksOnlyRound(t *testing.T) {
	dev := newCPU(t)
	defer dev.Close()
	rapid.Check(t, func(rt *rapid.T) {
		shape := draw(rt)
		step := func(rows int) stream.Result {
			shape.BlockChunk = rows
			s := shape.subject(rt, 1)
			r := start(rt, s, setup{device: dev, change: streamed(2)})
			defer r.close(rt)
			res, err := r.engine.Step(context.Background(), s.batches[0], s.updates[0])
			if err != nil {
				rt.Fatal(err)
			}
			return res
		}
		whole := step(0)
		for _, rows := range []int{8, 16} {
			got := step(rows)
			if math.Float64bits(got.LossSum) != math.Float64bits(whole.LossSum) {
				rt.Errorf("chunks of %d rows: loss %v, without chunks %v", rows, got.LossSum, whole.LossSum)
			}
			tolerance := 1e-5
			if shape.BF16 {
				tolerance = 1e-2 // gradients are rounded once more, to bf16
			}
			if d := math.Abs(got.GradNorm - whole.GradNorm); !(d <= tolerance*whole.GradNorm) {
				rt.Errorf("chunks of %d rows: norm %v, without chunks %v", rows, got.GradNorm, whole.GradNorm)
			}
		}
	})
}
