//go:build race

package cpu

import (
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/internal/fault"
)

// raceEnabled reports whether the program runs under the race detector.
const raceEnabled = true

// unordered runs f, whose synchronization is no promise about order.
func unordered(f func()) {
	runtime.RaceDisable()
	defer runtime.RaceEnable()
	f()
}

// report tells the race detector what the calling goroutine reads and writes: it sees neither assembly nor what an
// operation leaves out by chance, such as the rows of a table that no token asks for.
func report(operands []device.Operand) {
	for _, o := range operands {
		if o.Rows == 0 || o.Cols == 0 {
			continue
		}
		size := int(o.DType.Bytes())
		first := start(o.Mem)
		for r := range o.Rows {
			row := unsafe.Add(first, r*o.Stride*size)
			if o.Write {
				runtime.RaceWriteRange(row, o.Cols*size)
			} else {
				runtime.RaceReadRange(row, o.Cols*size)
			}
		}
	}
}

// goroutines is a runner without a past: a pool's workers would carry the order of one stream's operations to another.
type goroutines int

func newRunner(workers int, _ func(worker int)) runner { return goroutines(workers) }

func (n goroutines) Workers() int { return int(n) }
func (n goroutines) Close()       {}

func (n goroutines) Run(tasks int, f func(worker, task int)) {
	var next atomic.Int64
	var group fault.Group
	for w := range min(int(n), tasks) {
		group.Go(func() {
			for t := int(next.Add(1)) - 1; t < tasks; t = int(next.Add(1)) - 1 {
				f(w, t)
			}
		})
	}
	group.Wait()
}
