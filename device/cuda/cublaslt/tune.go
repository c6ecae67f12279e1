package cublaslt

import (
	"slices"

	"github.com/millrace/millrace/device/cuda/driver"
)

// The library offers several algorithms for a product, and orders them by a model of the GPU. The model is often some
// percent off, so Tune times them. Algorithms differ in the order of their sums, and so in the last bits of results.
// Two runs that time for themselves would choose differently, as times are noisy. For this reason a choice is written
// down: a run that keeps the lines of Algorithms and hands them to UseAlgorithms gets the same bits again.

// leastGain is the share by which an algorithm must be faster than the one before it in the library's order to be
// preferred. A smaller gain is noise.
const leastGain = 0.02

// Tune implements BLAS.
func (h *handle) Tune(p *Product, w Workspace, s driver.Stream, seconds func(enqueue func() error) (float64, error)) error {
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
	h.mu.Unlock()
	if done || len(t.algorithms) == 0 {
		return nil
	}
	best, least := 0, 0.0
	for i := range t.algorithms {
		took, err := seconds(func() error { return h.multiply(p, t, &t.algorithms[i], w, s) })
		if err != nil {
			return err
		}
		if i == 0 || took < least*(1-leastGain) {
			best, least = i, took
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	t.algorithms = t.algorithms[best : best+1]
	h.chosen[form] = t.algorithms[0]
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
	chosen := map[shape]algorithm{}
	for _, line := range lines {
		s, a, err := parseChoice(line)
		if err != nil {
			return err
		}
		chosen[s] = a
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for s, a := range chosen {
		h.chosen[s] = a
	}
	return nil
}
