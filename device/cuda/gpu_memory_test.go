package cuda_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda"
	"github.com/millrace/millrace/hostmem"
)

// TestGPUMemory tells how much host memory there is once it is used, how long pinning takes with one thread and with
// four, and how much memory of the GPU and of the host that costs. The line HOST has the bytes that a run may use.
func TestGPUMemory(t *testing.T) {
	needGPU(t)
	// If memory runs out, other processes are worth more than this one.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0o666)
	note := ""
	defer func() { fmt.Printf("SUMMARY %s\n", note) }() // also of what was found before a failure
	d := openGPU(t, ownProducts)
	defer mustClose(t, d)

	before, touched := availableBytes(t), int64(0)
	var pieces []*hostmem.Region
	seconds := secondsOf(t, d, func() error {
		pieces, touched = touch(gpuMemory.touch, min(6<<30, before/4)) // to touch the rest may cost a process its life
		return nil
	})
	for _, b := range pieces {
		mustClose(t, b)
	}
	after := availableBytes(t)
	note = fmt.Sprintf("%s at once, %s after %s were touched in %.1f s", size(before), size(after), size(touched), seconds)
	fmt.Printf("HOST %d\n", max(touched, after)) // touched memory is free again, even if the system does not say so yet

	region, err := hostmem.New().Reserve("pinned", gpuMemory.pin)
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, region)
	if err := region.Populate(); err != nil {
		t.Fatal(err)
	}
	pin := func(threads int64) (seconds float64, gpu, host int64) {
		d.SetPieces(region.Len()/threads, region.Len())
		free, there := freeBytes(t, d), availableBytes(t)
		var pinned device.Buffer
		seconds = secondsOf(t, d, func() (err error) {
			pinned, err = d.Register(region)
			return err
		})
		gpu, host = free-freeBytes(t, d), there-availableBytes(t)
		mustClose(t, pinned)
		return seconds, gpu, host
	}
	one, gpu, host := pin(1)
	four, _, _ := pin(4)
	note += fmt.Sprintf("; %s pinned in %.2f s by one thread and %.2f s by four, "+
		"for %.1f MiB of the GPU and %.1f MiB of the host", size(region.Len()), one, four,
		float64(gpu)/(1<<20), float64(host)/(1<<20))
}

// touch makes memory resident in pieces. It asks before each piece whether floor bytes are there, since some machines
// have memory added as it is used.
func touch(bytes, floor int64) (pieces []*hostmem.Region, touched int64) {
	const piece = 1 << 30
	accounts := hostmem.New()
	accounts.GrowOnUse(true)
	for touched < bytes {
		if free, _, err := hostmem.Available(); err != nil || free < floor {
			break
		}
		b, err := accounts.Reserve("touched", min(piece, bytes-touched))
		if err != nil {
			break
		}
		pieces = append(pieces, b)
		if b.Populate() != nil {
			break
		}
		touched += b.Len()
	}
	return pieces, touched
}

// secondsOf times f by events of the GPU.
func secondsOf(t *testing.T, d *cuda.Device, f func() error) float64 {
	t.Helper()
	s, err := d.NewStream("time")
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, s)
	var events [2]device.Event
	for i := range events {
		if events[i], err = d.NewEvent(); err != nil {
			t.Fatal(err)
		}
		defer mustClose(t, events[i])
	}
	s.Record(events[0])
	err = f()
	s.Record(events[1])
	if err := errors.Join(err, s.Sync()); err != nil {
		t.Fatal(err)
	}
	return events[1].Since(events[0]).Seconds()
}

func freeBytes(t *testing.T, d *cuda.Device) int64 {
	t.Helper()
	n, err := d.FreeBytes()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func availableBytes(t *testing.T) int64 {
	t.Helper()
	n, _, err := hostmem.Available()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func size(bytes int64) string {
	if bytes < 1<<30 {
		return fmt.Sprintf("%.0f MiB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
}
