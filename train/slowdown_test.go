package train

import "testing"

// A run whose steps take half as long again is slow once, until it has recovered; a few slow steps are no slowdown, nor
// is a slowdown of less.
func TestSlowdown(t *testing.T) {
	var s slowdown
	step := 0
	take := func(sec float64, steps int) (slowAt []int) {
		for range steps {
			step++
			if before, now, became := s.note(sec); became {
				slowAt = append(slowAt, step)
				if before != 1 || now < 1.5 {
					t.Errorf("step %d: %v seconds after %v", step, now, before)
				}
			}
		}
		return slowAt
	}
	for _, of := range []struct {
		sec   float64
		steps int
		want  int // the step at which it becomes slow; 0: it does not
	}{
		{1, 40, 0},
		{100, 4, 0},
		{1, 20, 0},
		{1.4, 100, 0},
		{1, 500, 0},
		{1.5, 30, 670},
		{1.4, 30, 0}, // still slow
		{2, 30, 0},
		{1, 30, 0},
		{2, 30, 789},
		{2, 1000, 0},
		{1, 6000, 0},
	} {
		got := take(of.sec, of.steps)
		if of.want == 0 && got != nil || of.want > 0 && (len(got) != 1 || got[0] != of.want) {
			t.Errorf("%d steps of %v s up to step %d: slow at %v, want %d", of.steps, of.sec, step, got, of.want)
		}
	}
	var young slowdown
	for i := range 29 {
		if _, _, became := young.note(float64(i * i)); became {
			t.Errorf("slow at step %d, with nothing to compare", i+1)
		}
	}
	if len(s.medians) >= mostWindows || len(s.latest) > slowWindow {
		t.Errorf("it keeps %d medians", len(s.medians))
	}
}

// Steps that take longer since they have more tokens are no slowdown, nor are those with fewer that take as long.
func TestSlowdownByToken(t *testing.T) {
	var p slowdowns
	for i, of := range []struct {
		sec    float64
		tokens int
		slow   bool
	}{{1, 100, false}, {2, 200, false}, {1, 100, false}, {1, 40, false}, {1, 100, false}, {2, 120, true},
		{1, 100, false}} {
		slow := false
		for range 60 {
			before, now, became := p.note(of.sec, of.tokens)
			if slow = slow || became; became && !(now >= slowFrom*before) {
				t.Errorf("%d: %v seconds after %v", i, now, before)
			}
		}
		if slow != of.slow {
			t.Errorf("%d: steps of %d tokens in %v s are slow: %v", i, of.tokens, of.sec, slow)
		}
	}
}
