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
