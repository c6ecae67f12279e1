package cublaslt

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/millrace/millrace/device/cuda/driver"
)

// The library offers several algorithms for a product, and orders them by a model of the GPU. The model is often some
// percent off, so Tune times them. Algorithms differ in the order of their sums, and so in the last bits of results.
// Two runs that time for themselves would choose differently, as times are noisy. For this reason a choice is written
// down: a run that keeps the lines of Algorithms and hands them to UseAlgorithms gets the same bits again.

const (
	// leastGain is the share by which an algorithm must be faster than the one before it in the library's order to be
	// preferred. A smaller gain is noise.
	leastGain = 0.02
	// hopeless ends the timing of an algorithm that takes this many times as long as the fastest one. The first time
	// is of one product, so it is noisy, but not by as much as this.
	hopeless = 1.2
	// tuneRounds counts the rounds in which the others are compared, and turnProducts the products of an algorithm's
	// turn, of which a round has two.
	tuneRounds   = 3
	turnProducts = 2
)

// A Timer times products on a device for [BLAS.Tune].
type Timer struct {
	// Seconds enqueues a product a number of times, with what it is given, and returns the seconds of one. What
	// enqueuing returns is no error of Tune: it drops the algorithm.
	Seconds func(times int, enqueue func() error) (float64, error)
	// Warm brings the device to the state in which a step computes, with what enqueues a product; nil: it is there.
	Warm func(enqueue func() error) error
	// Tell is told what was compared, in the library's order; nil: it is not asked for.
	Tell func([]Timed)
}

// Timed has what Tune found out about an algorithm that it compared.
type Timed struct {
	Algorithm     string  `json:"algorithm"`
	FirstSeconds  float64 `json:"first_sec"`  // of one product, when the candidates were looked through
	SteadySeconds float64 `json:"steady_sec"` // of one product of a round, the median of the rounds
	Chosen        bool    `json:"chosen"`
}

// candidate is an algorithm that Tune compares.
type candidate struct {
	*algorithm
	first   float64 // seconds of one product
	rounds  []float64
	refused bool
}

// Tune implements BLAS. A clock that falls while candidates are timed would make those that come later look slower, and
// on a card at its power limit it falls from product to product. So each round has the candidates in their order and
// then backwards, which cancels what changes steadily, and they are compared within rounds. The rounds come after
// [Timer.Warm], since at full clock another algorithm may win than at the limit.
func (h *handle) Tune(p *Product, w Workspace, s driver.Stream, timer Timer) error {
	if !p.Suits() {
		return nil
	}
	form := transposed(p)
	t, err := h.plan(form)
	if err != nil {
		return err
	}
	h.mu.Lock()
	_, done := h.chosen[form]
	offered := slices.Clone(t.algorithms)
	h.mu.Unlock()
	if done || len(offered) == 0 {
		return nil
	}
	var refused error // why the first one of those that the library refuses to start was refused
	time := func(c *candidate, times int) (took float64, err error) {
		var said error
		took, err = timer.Seconds(times, func() error {
			said = h.multiply(p, t, c.algorithm, w, s)
			return said
		})
		if said != nil {
			refused = cmp.Or(refused, said)
			h.drop(form, t, c.algorithm)
			c.refused = true
			return 0, nil
		}
		return took, err
	}
	var all []*candidate
	once := math.Inf(1) // the least
	for _, a := range offered {
		c := &candidate{algorithm: a}
		for range 2 { // the first time loads the kernel
			if !c.refused {
				if c.first, err = time(c, 1); err != nil {
					return err
				}
			}
		}
		if !c.refused {
			all = append(all, c)
			once = min(once, c.first)
		}
	}
	all = slices.DeleteFunc(all, func(c *candidate) bool { return c.first > once*hopeless })
	if len(all) > 1 {
		if timer.Warm != nil {
			var said error // the rounds find that out again
			err := timer.Warm(func() error {
				said = h.multiply(p, t, all[0].algorithm, w, s)
				return said
			})
			if err != nil && said == nil {
				return err
			}
		}
		for range tuneRounds {
			if err := timeRound(all, time); err != nil {
				return err
			}
		}
		all = slices.DeleteFunc(all, func(c *candidate) bool { return c.refused })
	}
	best := fastest(all)
	if best == nil {
		h.sayRefused(form, false, refused)
		return nil
	}
	if timer.Tell != nil {
		var told []Timed
		for _, c := range all {
			told = append(told, Timed{choiceLine(form, *c.algorithm), c.first, median(c.rounds), c == best})
		}
		timer.Tell(told)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	t.prefer(slices.Index(t.algorithms, best.algorithm))
	h.chosen[form] = *best.algorithm
	return nil
}

// timeRound has each candidate take a turn, and then a second one in the other order.
func timeRound(all []*candidate, time func(c *candidate, times int) (float64, error)) error {
	turn := func(c *candidate, add float64) error {
		if c.refused {
			return nil
		}
		took, err := time(c, turnProducts)
		c.rounds[len(c.rounds)-1] += add * took
		return err
	}
	for _, c := range all {
		c.rounds = append(c.rounds, 0)
		if err := turn(c, 0.5); err != nil {
			return err
		}
	}
	for _, c := range slices.Backward(all) {
		if err := turn(c, 0.5); err != nil {
			return err
		}
	}
	return nil
}

// fastest chooses among candidates in the library's order by their times relative to the first one's of the same
// round; nil if the list is empty.
func fastest(all []*candidate) (best *candidate) {
	least := 0.0
	for _, c := range all {
		ratios := make([]float64, len(c.rounds))
		for i, took := range c.rounds {
			ratios[i] = took / all[0].rounds[i]
		}
		if ratio := median(ratios); best == nil || ratio < least*(1-leastGain) {
			best, least = c, ratio
		}
	}
	return best
}

// median returns the median of an odd number of values; 0 of none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(values))[len(values)/2]
}

// Algorithms implements BLAS.
func (h *handle) Algorithms() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var lines []string
	for s, a := range h.chosen {
		lines = append(lines, choiceLine(s, a))
	}
	slices.Sort(lines)
	return lines
}

// UseAlgorithms implements BLAS.
func (h *handle) UseAlgorithms(lines []string) error {
	recorded := map[shape]algorithm{}
	for _, line := range lines {
		s, a, err := parseChoice(line)
		if err != nil {
			return err
		}
		recorded[s] = a
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.Copy(h.recorded, recorded)
	return nil
}
