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
	// timedProducts counts the products that are timed of an algorithm that is not hopeless.
	timedProducts = 3
)

// Tune implements BLAS.
func (h *handle) Tune(p *Product, w Workspace, s driver.Stream,
	seconds func(times int, enqueue func() error) (float64, error)) error {
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
	time := func(a *algorithm, times int) (took float64, ok bool, err error) {
		var said error
		took, err = seconds(times, func() error {
			said = h.multiply(p, t, a, w, s)
			return said
		})
		if said != nil {
			refused = cmp.Or(refused, said)
			h.drop(form, t, a)
			return 0, false, nil
		}
		return took, true, err
	}
	type candidate struct {
		*algorithm
		seconds float64
	}
	var starts []candidate
	once := math.Inf(1) // the least
	for _, a := range offered {
		var took float64
		ok := true
		for range 2 { // the first time loads the kernel
			if ok {
				if took, ok, err = time(a, 1); err != nil {
					return err
				}
			}
		}
		if ok {
			starts = append(starts, candidate{a, took})
			once = min(once, took)
		}
	}
	var best *candidate
	for i := range starts {
		c := &starts[i]
		if c.seconds > once*hopeless {
			continue
		}
		took, ok, err := time(c.algorithm, timedProducts)
		if err != nil {
			return err
		}
		if c.seconds = took; ok && (best == nil || took < best.seconds*(1-leastGain)) {
			best = c
		}
	}
	if best == nil {
		h.sayRefused(form, false, refused)
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	t.prefer(slices.Index(t.algorithms, best.algorithm))
	h.chosen[form] = *best.algorithm
	return nil
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
