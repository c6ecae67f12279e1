package axis

import "testing"

func TestStep(t *testing.T) {
	for _, c := range []struct{ length, n, want float64 }{{9, 9, 1}, {10, 9, 2}, {100, 5, 20}, {0.03, 5, 0.01}, {1, 1, 1},
		{5.2, 1, 10}, {8e-300, 2, 5e-300}} {
		if got := Step(c.length, c.n); got < c.want*(1-1e-12) || got > c.want*(1+1e-12) {
			t.Errorf("%g in %g parts: %g, want %g", c.length, c.n, got, c.want)
		}
	}
}

// An axis has few ticks, and not too few.
func TestTicks(t *testing.T) {
	for _, length := range []float64{0.9, 1, 9, 9.1, 10, 3000, 8999, 1e6, 1.7e9} {
		if n := length / Step(length, 9); n < 3 || n > 9 {
			t.Errorf("%g ticks for %g", n, length)
		}
	}
}
