package train

import (
	"slices"

	"github.com/millrace/millrace/trace"
)

// A slowdown is judged by medians of this number of steps: a step that waited for a save, or for another program, is no
// slowdown.
const slowWindow = 10

// leastWindows is the least number of earlier windows that a speed is compared with, and mostWindows bounds those that
// are kept.
const (
	leastWindows = 2
	mostWindows  = 512
)

// A run is slow from the first of these on, as a multiple of the seconds of a step before: a third of its speed is
// gone. It has recovered below the second one.
const (
	slowFrom     = 1.5
	slowNoLonger = 1.25
)

// slowdown finds steps that take much longer than those before. The seconds of a step have no evaluation and no pause
// for memory.max_write_per_day in them.
type slowdown struct {
	latest  []float64 // seconds of the latest steps, at most slowWindow
	window  []float64 // of steps before those, until they are slowWindow
	medians []float64 // of windows before that; none of a time in which the run was slow
	isSlow  bool
}

// note takes a step. became reports whether the run has become slow with it; before and now are medians of seconds.
func (s *slowdown) note(sec float64) (before, now float64, became bool) {
	if s.latest = append(s.latest, sec); len(s.latest) > slowWindow {
		if !s.isSlow {
			s.window = append(s.window, s.latest[0])
		}
		s.latest = slices.Delete(s.latest, 0, 1)
	}
	if len(s.window) == slowWindow {
		if s.medians = append(s.medians, medianOf(s.window)); len(s.medians) == mostWindows {
			for i := range mostWindows / 2 {
				s.medians[i] = s.medians[2*i]
			}
			s.medians = s.medians[:mostWindows/2]
		}
		s.window = s.window[:0]
	}
	if len(s.medians) < leastWindows {
		return 0, 0, false
	}
	before, now = medianOf(s.medians), medianOf(s.latest)
	switch {
	case !s.isSlow && now >= slowFrom*before:
		s.isSlow = true
		return before, now, true
	case s.isSlow && now < slowNoLonger*before:
		s.isSlow = false
	}
	return before, now, false
}

// slowdowns finds a slowdown that is one for each token as well. A step with more tokens takes longer, as answers of a
// loop become longer; one with fewer tokens may take as long as before, where weights are what it waits for.
type slowdowns struct{ step, token slowdown }

// note takes a step with that number of tokens. The rest is as for slowdown.
func (p *slowdowns) note(sec float64, tokens int) (before, now float64, became bool) {
	isSlow := func() bool { return p.step.isSlow && p.token.isSlow }
	was := isSlow()
	before, now, _ = p.step.note(sec)
	p.token.note(sec / float64(max(tokens, 1)))
	return before, now, isSlow() && !was
}

func medianOf(values []float64) float64 { return trace.Median(slices.Sorted(slices.Values(values))) }
