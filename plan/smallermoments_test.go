package plan

import (
	"slices"
	"testing"

	"github.com/millrace/millrace/optim"
)

// Of moments, the next smaller forms are asked for: experiments only of a run that has moments in 8 bits or fewer.
func TestSmallerMoments(t *testing.T) {
	for now, want := range map[optim.Moments][]string{
		optim.MomentsF32:    {"precision.moments=8bit"},
		optim.Dynamic8:      {"precision.moments=8+4", "precision.moments=4bit"},
		optim.Dynamic8Root4: {"precision.moments=4bit"},
		optim.Power4Root4:   nil,
	} {
		n := Numerics{Moments: now}
		var got []string
		for change, r := range smallerMoments(&Plan{Numerics: n, asked: &Request{Numerics: n}}) {
			if got = append(got, change); change != "precision.moments="+r.Numerics.Moments.String() {
				t.Errorf("%s asks for %v", change, r.Numerics.Moments)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v: %q, want %q", now, got, want)
		}
	}
}
