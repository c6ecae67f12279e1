package stream_test

import (
	"bytes"
	"testing"

	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
)

// A tensor of a group is updated as in a run that has the group's learning rate and decay for all tensors. The gradients
// of the first step are those of the same weights, so the runs agree after it to the bit.
func TestGroupsHaveTheirRates(t *testing.T) {
	for _, eight := range []bool{false, true} {
		s := tiny
		s.BF16, s.Moments8, s.Grouped = true, eight, true
		with := s.subject(t, 1)
		after := func(update stream.Update) map[store.ID][]byte {
			own := *with
			own.updates = []stream.Update{update}
			r := start(t, &own, setup{change: streamed(2)})
			defer r.close(t)
			return train(t, r, &own, 1).state
		}
		u := with.updates[0]
		groups := after(u)
		var alone []map[store.ID][]byte
		for _, rates := range append([]optim.Rates{{LR: u.LR, WeightDecay: u.AdamW.WeightDecay}}, u.Groups...) {
			uniform := u
			uniform.Groups, uniform.LR, uniform.AdamW.WeightDecay = nil, rates.LR, rates.WeightDecay
			alone = append(alone, after(uniform))
		}
		seen := map[int]bool{}
		for part := range with.model.Parts {
			for _, f := range with.model.Parts[part].Layout.Fields {
				of := func(all map[store.ID][]byte) []byte { // both halves of the weights
					high := all[store.ID{Part: part, Kind: store.Weights}][2*f.First:][:2*f.Elems]
					return append(high[:len(high):len(high)], all[store.ID{Part: part, Kind: store.Low}][2*f.State:][:2*f.Elems]...)
				}
				seen[f.ParamGroup] = true
				for group := range alone {
					if same := bytes.Equal(of(groups), of(alone[group])); same != (group == f.ParamGroup) {
						t.Errorf("8-bit moments %v: %s of %s, in group %d, is as with the rates of group %d: %v", eight, f.Name,
							with.model.Parts[part].Name, f.ParamGroup, group, same)
					}
				}
			}
		}
		if len(seen) != 3 {
			t.Errorf("tensors are in %d groups", len(seen))
		}
	}
}
