package plan_test

import (
	"strings"
	"testing"
)

// TestChoicesOfTheHead: a plan says how often logits are computed: twice where an objective stops between losses and
// gradients, and of a reward model nothing, since it has none.
func TestChoicesOfTheHead(t *testing.T) {
	for want, c := range map[string]struct{ stops, scores bool }{
		"; logits are computed once": {},
		"; logits are computed twice, since the objective compares all losses before there are gradients": {stops: true},
		"": {stops: true, scores: true},
	} {
		m := tiny.model(t)
		place := moving(m, 2)
		place.HeadAtOnce = true
		p := newPlan(t, m, numerics(4, true))
		p.Outputs.Objective, m.Head.Scores = c.stops, c.scores
		got := p.With(place).Choices()
		if _, about, _ := strings.Cut(got[0], "; logits"); "; logits"+about != want && (want != "" || about != "") {
			t.Errorf("%+v: %q, want %q", c, got[0], want)
		}
	}
}
