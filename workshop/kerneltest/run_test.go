package kerneltest

import (
	"testing"

	"github.com/millrace/millrace/device/cuda/kernels"
)

// Every kernel runs in some test, on each target and so on a GPU as well. With -short the last target does.
func TestKernelsRun(t *testing.T) {
	targets := kernels.Targets
	if testing.Short() {
		targets = targets[len(targets)-1:]
	}
	for _, target := range targets {
		on, ran := &backend{target: target}, 0
		t.Run(target, func(t *testing.T) {
			for _, test := range runs {
				t.Run(test.name, func(t *testing.T) {
					ran++
					test.run(t, on)
				})
			}
			// In memory that no GPU has.
			t.Run("LongVectors", func(t *testing.T) { testLongVectors(t, &backend{target: target}) })
		})
		if ran < len(runs) {
			continue // -run has chosen some
		}
		set, err := sets[target]()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range set.Names() {
			if on.report.kernels[name] == nil {
				t.Errorf("%s: no test runs %s", target, name)
			}
		}
	}
}
