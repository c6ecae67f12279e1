package devicetest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/device/devicetest"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

func openCPU(t testing.TB) device.Device {
	d, err := cpu.New(cpu.Options{Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A faulty device that is asked for no faults is a device.
func TestFaultyConforms(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the whole suite")
	}
	n := 0
	late := devicetest.Jitter(100*time.Microsecond, 1)
	openFaulty := func() device.Device {
		return devicetest.Faulty(openCPU(t), func(stream, op string, k int) error {
			if n++; n%50 == 0 {
				return late(stream, op, k)
			}
			return nil
		})
	}
	devicetest.Suite{Open: openFaulty, OpenPeer: openFaulty}.Run(t)
}

// Each operation of two streams that wait for each other is made to fail in turn: everybody wakes, everybody who
// depends on the failure learns of it, and nothing runs that depends on it.
func TestFaultyFails(t *testing.T) {
	const rounds = 3
	for failed := range 2 * rounds {
		t.Run(fmt.Sprint(failed), func(t *testing.T) {
			cause := errors.New("it broke")
			victim := []string{"a", "b"}[failed%2]
			dev := devicetest.Faulty(openCPU(t), func(stream, op string, n int) error {
				if stream == victim && n == failed/2 {
					return cause
				}
				return nil
			})
			r, err := hostmem.New().Reserve("number", 8)
			if err != nil {
				t.Fatal(err)
			}
			buf, err := dev.Register(r)
			if err != nil {
				t.Fatal(err)
			}
			number := hostmem.F32(r.Bytes())
			number[1] = 1
			value := device.NewVec(device.Whole(buf), tensor.F32, 1)
			one := device.NewVec(device.Whole(buf).Slice(4, 4), tensor.F32, 1)
			a, _ := dev.NewStream("a")
			b, _ := dev.NewStream("b")
			ab, _ := dev.NewEvent()
			ba, _ := dev.NewEvent()
			for range rounds {
				a.Wait(ba)
				a.Add(value, value, one)
				a.Record(ab)
				b.Wait(ab)
				b.Add(value, value, one)
				b.Record(ba)
			}
			last := ba.Wait()
			errA, errB := a.Sync(), b.Sync()
			if !errors.Is(last, cause) || !errors.Is(errB, cause) {
				t.Errorf("the last event has %v, stream b %v", last, errB)
			}
			if wantA := failed < 2*rounds-1; errors.Is(errA, cause) != wantA {
				t.Errorf("stream a has %v", errA)
			}
			if want := "stream " + victim + ": Add: it broke"; !strings.Contains(errB.Error(), want) {
				t.Errorf("the error is %q, not %q", errB, want)
			}
			if number[0] != float32(failed) {
				t.Errorf("%v additions ran before the failure, want %d", number[0], failed)
			}
			for _, c := range []interface{ Close() error }{a, b} {
				if err := c.Close(); err != nil && !errors.Is(err, cause) {
					t.Error(err)
				}
			}
			for _, c := range []interface{ Close() error }{buf, dev, r} {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
