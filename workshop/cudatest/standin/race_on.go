//go:build race

package standin

import "runtime"

const raceEnabled = true

// unordered runs f, whose synchronization is no promise about order.
func unordered(f func()) {
	runtime.RaceDisable()
	defer runtime.RaceEnable()
	f()
}
