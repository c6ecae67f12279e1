package cpu

import (
	"testing"

	"github.com/millrace/millrace/device/cpu/isa"
)

// A device computes by tiles only if they pass their check, and says when they do not.
func TestChosenLevel(t *testing.T) {
	for _, c := range []struct {
		best   isa.Level
		agrees bool
		level  isa.Level
		note   string
	}{
		{isa.AMX, true, isa.AMX, ""},
		{isa.AMX, false, isa.BestWithoutTiles(), " as AMX computes wrong bits"},
		{isa.AVX512, false, isa.AVX512, ""},
	} {
		if level, note := chosen(c.best, func() bool { return c.agrees }); level != c.level || note != c.note {
			t.Errorf("best %v, agrees %v: %v%s, want %v%s", c.best, c.agrees, level, note, c.level, c.note)
		}
	}
}
