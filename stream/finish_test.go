package stream_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
)

// Hosts that have saved hear of one that still does, for as long as it gets on. Of one that hangs they hear nothing:
// the wait for it is as long as that lasts.
func TestHostsHearOfSaves(t *testing.T) {
	const beat = 2 * time.Second
	for name, c := range map[string]struct {
		first, other time.Duration // that an extent takes on host 1
		least, most  time.Duration // that host 0 waits for a message, at the longest
	}{
		"slow":  {time.Minute, time.Minute, beat, 4*time.Minute + beat},
		"hangs": {20 * time.Minute, 0, 20*time.Minute - beat, 20*time.Minute + beat},
	} {
		synctest.Test(t, func(t *testing.T) {
			// Of one worker: several spin on the clock, which stands still meanwhile.
			dev, err := cpu.New(cpu.Options{Workers: 1, Accounts: hostmem.New()})
			if err != nil {
				t.Fatal(err)
			}
			defer dev.Close()
			s := clusterSubject(t, false)
			waits := &timed{}
			h := startHosts(t, s, setup{device: dev}, setup{device: dev})
			defer h.close(t)
			waits.Peers = h.rigs[0].engine.Peers
			h.rigs[0].engine.Peers = waits
			saved := make([]int, 2)
			h.each(t, func(t errorer, host int) {
				e := h.rigs[host].engine
				for i, b := range s.batches[:2] {
					if i == 1 {
						if host == 0 {
							waits.longest = 0
						}
						e.Save(func(context.Context, store.ID, uint64) error {
							took := c.other
							if saved[host]++; saved[host] == 1 {
								took = c.first
							}
							time.Sleep(took * time.Duration(host))
							return nil
						})
					}
					if _, err := e.Step(context.Background(), b, s.updates[i]); err != nil {
						t.Fatal(err)
					}
				}
			})
			if waits.longest < c.least || waits.longest > c.most || saved[1] < 10 {
				t.Errorf("%s: host 0 waits for up to %v, want %v to %v, for %d extents of host 1", name, waits.longest,
					c.least, c.most, saved[1])
			}
		})
	}
}

// timed are peers that know the length of their longest exchange, by the clock of a synctest bubble, which no load
// moves.
type timed struct {
	stream.Peers
	longest time.Duration
}

func (p *timed) Exchange(b []byte) ([][]byte, error) {
	begin := time.Now()
	defer func() { p.longest = max(p.longest, time.Since(begin)) }()
	return p.Peers.Exchange(b)
}
