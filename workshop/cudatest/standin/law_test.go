package standin_test

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

// A program that orders its conflicts with events has the result of its serial execution, whatever the delays. Under
// the race detector it also proves that the stand-in reports no race in a program without races.
func TestOrderedProgramsAreSerial(t *testing.T) {
	const cells, cellBytes, streams = 6, 16, 3
	r := open(t, standin.Options{MaxDelay: 50 * time.Microsecond, Seed: 1})
	a, host := r.device(cells*cellBytes), r.pinned(cells*cellBytes)
	var queues [streams]driver.Stream
	for i := range queues {
		queues[i] = r.stream()
	}
	f := r.function("go", "add")
	cell := func(i int) driver.DevicePtr { return a + driver.DevicePtr(i*cellBytes) }

	type access struct {
		cell, stream int
		write        bool
		done         driver.Event
	}
	rapid.Check(t, func(t *rapid.T) {
		model := make([]byte, cells*cellBytes)
		for i := range model {
			model[i] = byte(i)
		}
		copy(host, model)
		r.ok(r.MemcpyHtoDAsync(a, pointer(host), cells*cellBytes, queues[0]))
		r.ok(r.StreamSynchronize(queues[0]))

		var past []access
		for range rapid.IntRange(1, 20).Draw(t, "operations") {
			on := rapid.IntRange(0, streams-1).Draw(t, "stream")
			from := rapid.IntRange(0, cells-1).Draw(t, "from")
			to := rapid.IntRange(0, cells-1).Draw(t, "to")
			kind := rapid.SampledFrom([]string{"copy", "fill", "kernel"}).Draw(t, "kind")
			if kind == "copy" && from == to || kind == "kernel" && to == cells-1 {
				continue // would overlap, or leave the cells
			}
			var now []access
			switch kind {
			case "copy":
				now = []access{{cell: from}, {cell: to, write: true}}
			case "fill":
				now = []access{{cell: to, write: true}}
			case "kernel": // 32 bytes
				now = []access{{cell: to, write: true}, {cell: to + 1, write: true}}
			}
			for _, before := range past {
				if before.stream != on && slices.ContainsFunc(now, func(x access) bool {
					return x.cell == before.cell && (x.write || before.write)
				}) {
					r.ok(r.StreamWaitEvent(queues[on], before.done, 0))
				}
			}
			switch kind {
			case "copy":
				r.ok(r.MemcpyDtoDAsync(cell(to), cell(from), cellBytes, queues[on]))
				copy(model[to*cellBytes:][:cellBytes], model[from*cellBytes:])
			case "fill":
				r.ok(r.MemsetD8Async(cell(to), byte(from), cellBytes, queues[on]))
				copy(model[to*cellBytes:], bytes.Repeat([]byte{byte(from)}, cellBytes))
			case "kernel":
				r.ok(r.launch1(f, queues[on], 1, cell(to), uint32(from)))
				for i := range model[to*cellBytes:][:32] {
					model[to*cellBytes+i] += byte(from)
				}
			}
			var done driver.Event
			r.ok(r.EventCreate(&done, driver.EventDisableTiming))
			r.ok(r.EventRecord(done, queues[on]))
			for _, x := range now {
				past = append(past, access{x.cell, on, x.write, done})
			}
		}
		for _, q := range queues {
			r.ok(r.StreamSynchronize(q))
		}
		r.ok(r.MemcpyDtoHAsync(pointer(host), a, cells*cellBytes, queues[0]))
		r.ok(r.StreamSynchronize(queues[0]))
		if !bytes.Equal(host, model) {
			t.Fatalf("got  %v\nwant %v", host, model)
		}
		var last driver.Event
		for _, x := range past {
			if x.done != last {
				r.ok(r.EventDestroy(x.done))
			}
			last = x.done
		}
	})
}
