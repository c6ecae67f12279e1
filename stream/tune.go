package stream

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/device"
)

// tune has a rank's device choose its algorithms for the products, in its arena, after those of the ranks before it.
func (e *Engine) tune(rank int, arena device.Mem) error {
	tuner, ok := e.Devices[rank].(device.ProductTuner)
	if !ok || len(e.Products) == 0 {
		return nil
	}
	for _, d := range e.Devices[:rank] {
		if before, ok := d.(device.ProductTuner); ok {
			if err := tuner.UseAlgorithms(before.Algorithms()); err != nil {
				return err
			}
		}
	}
	products := slices.Clone(e.Products[rank])
	for i := range products {
		p := &products[i]
		for _, m := range []*device.Mat{&p.C, &p.A, &p.B, &p.Onto} {
			if !m.IsZero() {
				m.Mem = arena.Slice(m.Off, m.Len)
			}
		}
	}
	return tuner.TuneProducts(products, arena)
}

// takeAlgorithms waits for what the devices of host 0 have chosen, and has this host's devices take it over. On host 0
// it does nothing: its devices choose first, and giveAlgorithms follows.
func (e *Engine) takeAlgorithms() error {
	if e.Plan.Cluster.Host == 0 {
		return nil
	}
	all, err := e.Peers.Exchange(nil)
	if err != nil {
		return fmt.Errorf("receive the algorithms of host 0: %w", err)
	}
	if len(all[0]) == 0 {
		return nil // its devices have nothing to choose from
	}
	for _, d := range e.Devices[:e.Plan.Ranks()] {
		if tuner, ok := d.(device.ProductTuner); ok {
			if err := tuner.UseAlgorithms(strings.Split(string(all[0]), "\n")); err != nil {
				return fmt.Errorf("the algorithms of host 0: %w", err)
			}
		}
	}
	return nil
}

// giveAlgorithms hands what the devices of host 0 have chosen to the other hosts, which wait for it in takeAlgorithms.
func (e *Engine) giveAlgorithms() error {
	if e.Plan.Cluster.Host != 0 {
		return nil
	}
	var lines []string
	for _, d := range e.Devices[:e.Plan.Ranks()] {
		if tuner, ok := d.(device.ProductTuner); ok {
			lines = append(lines, tuner.Algorithms()...)
		}
	}
	slices.Sort(lines)
	if _, err := e.Peers.Exchange([]byte(strings.Join(slices.Compact(lines), "\n"))); err != nil {
		return fmt.Errorf("send algorithms to the other hosts: %w", err)
	}
	return nil
}
