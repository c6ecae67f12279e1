package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A card that is lent by the minute gets calls instead of all rows: each call has its own rows, in the order of what
// they decide, with the seconds that each is planned to take. Rows that an H100 has passed and that did not change
// since are in no call; a card of another kind runs all rows.

// call is a budget, and what it is for.
type call struct {
	budget time.Duration
	rows   []callRow
}

// callRow has a row of a call. A row that takes half as long again as planned, or 15 s more, ends: what comes after it
// is worth more.
type callRow struct {
	name    string
	planned time.Duration
}

func (r callRow) most() time.Duration {
	if r.name == "peers" {
		return r.planned // it has rows of its own, and keeps what it is given
	}
	return max(r.planned*3/2, r.planned+sec(15))
}

// calls are the next fifteen minutes on a card: a, is it right and how fast is what was never timed; b, the programs
// to compare with. Their seconds are those of an H100's rows where it ran them, and guesses elsewhere.
var calls = map[string]call{
	"a": {sec(310), []callRow{
		{"machine", sec(1)}, {"open", sec(4)},
		{"kernels", sec(12)},      // those of later commits
		{"laws-library", sec(23)}, // the fix of the one fault that the first card found
		{"speeds", sec(14)},       // delta nets, wide heads, caps
		{"variants", sec(22)},
		{"sustained", sec(10)},
		{"probe", sec(44)}, // rates that a plan lacks; the benchmarks plan by it
		{"bench", sec(30)}, // with memory.device: auto, as users have it
		{"bench-always", sec(27)},
		{"bench-qwen3.5", sec(30)}, // the first step of a hybrid on a GPU
		{"bench-8k", sec(28)},
		{"bench-14b", sec(55)}, // planned with the true rate of 8-bit updates
	}},
	"b": {sec(510), []callRow{
		{"machine", sec(1)}, {"open", sec(4)},
		{"probe", sec(44)}, // ours plans by it
		{"peers", sec(425)},
		{"memcheck", sec(30)},
	}},
}

// callNames lists the calls for people.
func callNames() string {
	return strings.Join(slices.Sorted(maps.Keys(calls)), ", ")
}

// ofCall has the rows of --call, and takes its budget where none is given.
func (o *config) ofCall(all []row) (chosen []row, err error) {
	c, ok := calls[o.call]
	if !ok {
		return nil, fmt.Errorf("--call is %q, and the calls are %s", o.call, callNames())
	}
	if o.budget == 0 {
		o.budget = c.budget
	}
	for _, want := range c.rows {
		i := slices.IndexFunc(all, func(r row) bool { return r.name == want.name })
		if i < 0 {
			return nil, fmt.Errorf("--call %s: there is no row %s", o.call, want.name)
		}
		r := all[i]
		r.planned = want.planned
		if !o.tiny { // a rehearsal has no card whose seconds these are
			r.most = want.most()
			r.least = max(want.planned*3/4, min(r.least, want.planned)) // what would be cut off is not begun
		}
		chosen = append(chosen, r)
	}
	return chosen, nil
}
