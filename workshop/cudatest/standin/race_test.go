package standin_test

import (
	"encoding/binary"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/workshop/cudatest/ptx"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

// deletable asks TestWaits to leave its waits out; the test below sets it for a run in a process of its own.
const deletable = "MILLRACE_TEST_DELETE_WAITS"

// TestWaits runs each kind of work on one stream, and on another, which waits for it, something that touches the same
// bytes. Under the race detector it proves that the event orders the two.
func TestWaits(t *testing.T) {
	type side func(r *rig, s driver.Stream, a driver.DevicePtr, host []byte) driver.Result
	kernel := func(name string) side {
		return func(r *rig, s driver.Stream, a driver.DevicePtr, _ []byte) driver.Result {
			image := "go"
			if name == "ptx" {
				image, name = addPTX, "add"
			}
			return r.launch1(r.function(image, name), s, 1, a, 1)
		}
	}
	sides := map[string]side{
		"HtoD": func(r *rig, s driver.Stream, a driver.DevicePtr, host []byte) driver.Result {
			return r.MemcpyHtoDAsync(a, pointer(host), 128, s)
		},
		"DtoH": func(r *rig, s driver.Stream, a driver.DevicePtr, host []byte) driver.Result {
			return r.MemcpyDtoHAsync(pointer(host), a, 128, s)
		},
		"DtoD": func(r *rig, s driver.Stream, a driver.DevicePtr, _ []byte) driver.Result {
			return r.MemcpyDtoDAsync(a+128, a, 128, s)
		},
		"fill": func(r *rig, s driver.Stream, a driver.DevicePtr, _ []byte) driver.Result {
			return r.MemsetD8Async(a, 0, 128, s)
		},
		"kernel": kernel("add"),
		"ptx":    kernel("ptx"),
		"words": func(r *rig, s driver.Stream, a driver.DevicePtr, _ []byte) driver.Result {
			return r.launch0(r.work(func(mem ptx.Memory) error {
				b, err := mem.At(uint64(a), 8)
				binary.LittleEndian.PutUint64(b, binary.LittleEndian.Uint64(b)+1)
				return err
			}), s)
		},
	}
	for name, first := range sides {
		t.Run(name, func(t *testing.T) {
			r := open(t, standin.Options{Load: func(image []byte) (*standin.Image, error) {
				if string(image) == "go" {
					return goKernels(image)
				}
				return loadPTX(image)
			}})
			s1, s2, e, a, host := r.stream(), r.stream(), r.event(), r.device(256), r.pinned(128)
			r.ok(r.MemsetD8Async(a, 0, 256, s1))
			r.ok(r.StreamSynchronize(s1))
			r.ok(first(r, s1, a, host))
			r.ok(r.EventRecord(e, s1))
			if os.Getenv(deletable) == "" {
				r.ok(r.StreamWaitEvent(s2, e, 0))
			} else {
				// Most likely s1 is done by now. To the detector that is no order, but it can miss two accesses at the
				// very same moment.
				time.Sleep(2 * time.Millisecond)
			}
			r.ok(r.MemsetD8Async(a, 1, 128, s2)) // all of it: the detector remembers four accesses to 8 bytes
			r.ok(r.StreamSynchronize(s2))
			r.ok(r.StreamSynchronize(s1))
		})
	}
	// The host is a party, too: what it writes to memory that a copy is still to read. Several threads make calls
	// meanwhile.
	t.Run("host", func(t *testing.T) {
		r := open(t, standin.Options{})
		s, a, host := r.stream(), r.device(128), r.pinned(128)
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
			r.CtxSetCurrent(r.context)
			r.MemcpyHtoDAsync(a, pointer(host), 128, s)
			if os.Getenv(deletable) == "" {
				r.StreamSynchronize(s)
			} else {
				time.Sleep(2 * time.Millisecond)
			}
		}()
		<-done
		var free, total uint64
		r.ok(r.MemGetInfo(&free, &total))
		host[0] = 1
		r.ok(r.StreamSynchronize(s))
	})
}

// The race detector finds each wait of TestWaits that is missing, whatever the timing.
func TestMissingWaitsAreFound(t *testing.T) {
	if !standin.RaceEnabled {
		t.Skip("needs the race detector")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestWaits$", "-test.v")
	// Cases share most of their stacks, of which the detector would report each once.
	cmd.Env = append(os.Environ(), deletable+"=1", "GORACE=suppress_equal_stacks=0 suppress_equal_addresses=0")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatal("a run without waits passes")
	}
	for _, name := range []string{"HtoD", "DtoH", "DtoD", "fill", "kernel", "ptx", "words", "host"} {
		if !strings.Contains(string(out), "--- FAIL: TestWaits/"+name+" ") {
			t.Errorf("%s: a missing wait is not found", name)
		}
	}
}
