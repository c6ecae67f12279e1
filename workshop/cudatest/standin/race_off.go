//go:build !race

package standin

const raceEnabled = false

// unordered runs f, whose synchronization is no promise about order.
func unordered(f func()) { f() }
