package stream_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/device/devicetest"
)

// hangs blocks operations of a device from the at-th of a stream on, until it is released.
type hangs struct {
	on       string
	at       int
	released chan struct{}
	mu       sync.Mutex
	count    map[string]int
	begun    bool // it hangs
}

func (h *hangs) failAt(stream, _ string, n int) error {
	h.mu.Lock()
	h.count[stream] = n + 1
	hang := stream == h.on && n == h.at
	h.begun = h.begun || hang
	h.mu.Unlock()
	if hang {
		<-h.released
	}
	return nil
}

// Whichever operation of a host hangs, who goes from any host to the one whose message it needs comes to that host.
// Hosts that need none have come to the exchange of results, and need one that has not.
func TestHostsFindTheOneThatHangs(t *testing.T) {
	const hosts, slow = 4, 2
	for _, name := range []string{"bound", "ring", "disk"} {
		s := clusterSubject(t, name == "ring")
		checked := 0
		run := func(h *hangs) {
			synctest.Test(t, func(t *testing.T) {
				h.released, h.count = make(chan struct{}), map[string]int{}
				o := faultCases()[name]
				dev, err := cpu.New(cpu.Options{Workers: 1}) // several wait for work without rest, for a while
				if err != nil {
					t.Fatal(err)
				}
				defer dev.Close()
				o.device = dev
				setups := slices.Repeat([]setup{o}, hosts)
				setups[slow].wrap = func(d device.Device) device.Device { return devicetest.Faulty(d, h.failAt) }
				c := startHosts(t, s, setups...)
				defer c.close(t)
				ended := make(chan error, 1)
				go func() { ended <- errors.Join(c.sequences(t, s)...) }()
				synctest.Wait()
				if h.begun {
					checked++
					c.checkLeadTo(t, slow, fmt.Sprintf("%s: operation %d of %s", name, h.at, h.on))
				}
				close(h.released)
				if err := <-ended; err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		all := &hangs{}
		run(all)
		for on, n := range all.count {
			for at := tables; at < n; at += sample(n, 6) {
				run(&hangs{on: on, at: at})
			}
		}
		if checked < 2 {
			t.Errorf("%s: the host hung %d times, and has %d streams", name, checked, len(all.count))
		}
	}
}

// checkLeadTo checks that hosts that stand still lead to one of them.
func (c *cluster) checkLeadTo(t *testing.T, slow int, what string) {
	t.Helper()
	for host := range c.rigs {
		var chain []string
		for at := host; ; {
			of, next := c.rigs[at].engine.Standing()
			chain = append(chain, fmt.Sprintf("host %d: %s", at, of))
			if next < 0 {
				for other := range c.rigs {
					if _, at := c.rigs[other].engine.Standing(); at >= 0 {
						next = other
					}
				}
			}
			if next == at || next < 0 || len(chain) > len(c.rigs) {
				if at != slow || next != at || !strings.HasPrefix(of, "at ") {
					t.Errorf("%s hangs, and from host %d one comes to host %d, which needs host %d: %s", what, host,
						at, next, strings.Join(chain, "; "))
				}
				break
			}
			at = next
		}
	}
}

// Between two schedules a host is after the work of a step.
func TestStandingBetweenSteps(t *testing.T) {
	s := clusterSubject(t, false)
	c := startHosts(t, s, setup{}, setup{})
	defer c.close(t)
	c.each(t, func(t errorer, host int) {
		e := c.rigs[host].engine
		if at, of := e.Standing(); at != "before the first step" || of != -1 {
			t.Errorf("%s, %d", at, of)
		}
		if _, err := e.Step(context.Background(), s.batches[0], s.updates[0]); err != nil {
			t.Errorf("%v", err)
		}
		if at, of := e.Standing(); at != "after the work of step 1" || of != -1 {
			t.Errorf("%s, %d", at, of)
		}
	})
}
