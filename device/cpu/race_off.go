//go:build !race

package cpu

import (
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/pool"
)

// raceEnabled reports whether the program runs under the race detector.
const raceEnabled = false

// unordered runs f, whose synchronization is no promise about order.
func unordered(f func()) { f() }

// report tells the race detector what the calling goroutine reads and writes.
func report([]device.Operand) {}

func newRunner(workers int, begin func(worker int)) runner { return pool.New(workers, begin) }
