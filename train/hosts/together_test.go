package hosts

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/stream/streamtest"
)

// A host that waits for another's work hears of it every beat, however long that takes. When one fails, the others stop
// working, and all have its error.
func TestTogether(t *testing.T) {
	for name, c := range map[string]struct {
		work  func(ctx context.Context, host int) error
		want  string
		lasts time.Duration
	}{
		"one is slow": {func(_ context.Context, host int) error {
			time.Sleep(time.Duration(host) * time.Hour)
			return nil
		}, "", time.Hour},
		"one fails": {func(ctx context.Context, host int) error {
			if host == 1 {
				time.Sleep(time.Minute)
				return errors.New("the sluice is shut")
			}
			<-ctx.Done()
			return ctx.Err()
		}, "the sluice is shut", time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			network := streamtest.New(2)
			var group sync.WaitGroup
			for host := range 2 {
				group.Go(func() {
					peers := &counted{Peers: network.Peers(host)}
					warnings := 0
					warn := func(format string, args ...any) {
						if strings.Contains(fmt.Sprintf(format, args...), "waited for 10m0s for rank 1 (host b), ") {
							warnings++
						}
					}
					cluster := &Cluster{Host: host, Hosts: 2, Names: []string{"a", "b"}, Peers: peers}
					work := Work{Cluster: cluster, Clock: MachineClock{}, Warn: warn}
					err := work.Together(t.Context(), func(ctx context.Context) error { return c.work(ctx, host) })
					of, is := errors.AsType[*Error](err)
					switch {
					case c.want == "" && err != nil, c.want != "" && !is:
						t.Errorf("%s: host %d: %v", name, host, err)
					case is && (of.Reports != (host == 1) || !strings.Contains(err.Error(), c.want)):
						t.Errorf("%s: host %d: %v, which it reports: %v", name, host, err, of.Reports)
					}
					if long := c.lasts > longWork && host == 0; (warnings == 1) != long || warnings > 1 {
						t.Errorf("%s: host %d warns %d times that it waits", name, host, warnings)
					}
					if least := int(c.lasts / Beat); peers.exchanges < least || peers.exchanges > least+2 {
						t.Errorf("%s: host %d hears of the other %d times in %v", name, host, peers.exchanges, c.lasts)
					}
				})
			}
			group.Wait()
		})
	}
}

// counted are peers that count exchanges.
type counted struct {
	Peers
	exchanges int
}

func (c *counted) Exchange(b []byte) ([][]byte, error) {
	c.exchanges++
	return c.Peers.Exchange(b)
}

// slow are peers that answer after a minute.
type slow struct{ Peers }

func (slow) Exchange(b []byte) ([][]byte, error) {
	time.Sleep(time.Minute)
	return [][]byte{b}, nil
}

// The time that a host waits for others adds up until it is taken. A host that gives nothing does not wait.
func TestAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Awaited{Peers: slow{}}
		for _, given := range []string{"x", "y", ""} {
			if all, err := a.Exchange([]byte(given)); err != nil || len(all) != 1 || string(all[0]) != given {
				t.Errorf("%q becomes %q, %v", given, all, err)
			}
		}
		if first, then := a.Take(), a.Take(); first != 2*time.Minute || then != 0 {
			t.Errorf("it has waited %v, and then %v", first, then)
		}
	})
}

// Of the hosts that wait for others' work the first one says for whom, once it has waited for long.
func TestFirstHostWarns(t *testing.T) {
	for wait, isLong := range map[time.Duration]bool{longWork - time.Minute: false, time.Hour: true} {
		synctest.Test(t, func(t *testing.T) { firstHostWarns(t, wait, isLong) })
	}
}

// firstHostWarns has hosts work for some time, all but the first two.
func firstHostWarns(t *testing.T, wait time.Duration, isLong bool) {
	network := streamtest.New(4)
	var group sync.WaitGroup
	for host := range 4 {
		group.Go(func() {
			var warnings []string
			warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
			cluster := &Cluster{Host: host, Hosts: 4, Peers: network.Peers(host)}
			work := Work{Cluster: cluster, Clock: MachineClock{}, Warn: warn}
			err := work.Together(t.Context(), func(context.Context) error {
				if host > 1 {
					time.Sleep(wait)
				}
				return nil
			})
			if err != nil || (len(warnings) == 1) != (host == 0 && isLong) || len(warnings) > 1 ||
				len(warnings) > 0 && !strings.Contains(warnings[0], "for rank 2, rank 3, which may") {
				t.Errorf("host %d warns %q, %v", host, warnings, err)
			}
		})
	}
	group.Wait()
}
