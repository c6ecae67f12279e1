package train

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/stream/streamtest"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/vfs"
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
					peers := &messages{Peers: network.Peers(host)}
					warnings := 0
					tell := func(e Event) {
						if w, is := e.(Warning); is &&
							strings.Contains(w.Text, "waited for 10m0s for rank 1 (host b), ") {
							warnings++
						}
					}
					cluster := &Cluster{Host: host, Hosts: 2, Names: []string{"a", "b"}, Peers: peers}
					env := &Env{Progress: io.Discard, Events: tell, Cluster: cluster}
					err := env.together(t.Context(), func(ctx context.Context) error { return c.work(ctx, host) })
					of, is := errors.AsType[*HostsError](err)
					switch {
					case c.want == "" && err != nil, c.want != "" && !is:
						t.Errorf("%s: host %d: %v", name, host, err)
					case is && (of.Reports != (host == 1) || !strings.Contains(err.Error(), c.want)):
						t.Errorf("%s: host %d: %v, which it reports: %v", name, host, err, of.Reports)
					}
					if long := c.lasts > longWork && host == 0; (warnings == 1) != long || warnings > 1 {
						t.Errorf("%s: host %d warns %d times that it waits", name, host, warnings)
					}
					if least := int(c.lasts / beat); peers.exchanges < least || peers.exchanges > least+2 {
						t.Errorf("%s: host %d hears of the other %d times in %v", name, host, peers.exchanges, c.lasts)
					}
				})
			}
			group.Wait()
		})
	}
}

// messages are peers that count exchanges, and know the longest wait for another host, by the clock of a synctest
// bubble, which no load moves.
type messages struct {
	Peers
	exchanges int
	received  time.Duration
	exchanged time.Duration
}

func (m *messages) Exchange(b []byte) ([][]byte, error) {
	m.exchanges++
	begin := time.Now()
	defer func() { m.exchanged = max(m.exchanged, time.Since(begin)) }()
	return m.Peers.Exchange(b)
}

// Hosts that are not at the same point of a run find out, though one message may look like the other.
func TestHostsAtOtherPoints(t *testing.T) {
	network := streamtest.New(2)
	var group sync.WaitGroup
	for host := range 2 {
		group.Go(func() {
			c := &Cluster{Host: host, Hosts: 2, Names: []string{"a", "b"}, Peers: network.Peers(host)}
			var err error
			if host == 0 {
				_, err = exchange(c, told{})
			} else {
				_, err = exchange(c, arrival{})
			}
			if !isAlone(err) || !strings.Contains(err.Error(), "is at another point of the run than ") {
				t.Errorf("host %d: %v", host, err)
			}
		})
	}
	group.Wait()
}

func (m *messages) Receive(ctx context.Context, from int, b []byte) error {
	begin := time.Now()
	defer func() { m.received = max(m.received, time.Since(begin)) }()
	return m.Peers.Receive(ctx, from, b)
}

// A host that has no low halves to give hears every beat that host 0 still writes the model.
func TestHostsHearOfWriting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := streamtest.New(2)
		var group sync.WaitGroup
		for host := range 2 {
			group.Go(func() {
				peers := &messages{Peers: network.Peers(host)}
				s := &Session{env: &Env{Cluster: &Cluster{Host: host, Hosts: 2, Peers: peers}}, plan: &plan.Plan{Model: &model.Model{}}}
				s.plan.Numerics.Master = optim.Split
				err := s.exportAlike(t.Context(), format{dtype: tensor.F32}, func(context.Context) error {
					time.Sleep(time.Hour)
					return nil
				})
				if err != nil || max(peers.received, peers.exchanged) > beat {
					t.Errorf("host %d: %v, and waits of %v and %v", host, err, peers.received, peers.exchanged)
				}
			})
		}
		group.Wait()
	})
}

// Hosts hear every beat of one that takes hours for what it does alone: to take its directories, and to give up what
// it has.
func TestHostsHearOfWorkAlone(t *testing.T) {
	c := hostsConfig(t)
	c.MaxSteps, c.Eval = 1, runfile.Eval{}
	synctest.Test(t, func(t *testing.T) {
		peers, locks := make([]*messages, 2), &slowLocks{FS: vfs.OS{}}
		succeed(t, trainHosts(t, 2, c, func(h *aHost) {
			peers[h.host] = &messages{Peers: h.env.Cluster.Peers}
			h.env.Cluster.Peers = peers[h.host]
			if h.host == 0 {
				h.env.FS = locks
			}
		}))
		for host, of := range peers {
			if of.exchanged > beat {
				t.Errorf("host %d waits for %v", host, of.exchanged)
			}
		}
		if locks.taken == 0 || locks.given == 0 {
			t.Errorf("host 0 took %d locks, and gave %d up", locks.taken, locks.given)
		}
	})
}

// slowLocks is a file system whose locks take an hour, and another one to be given up.
type slowLocks struct {
	vfs.FS
	taken, given int
}

func (s *slowLocks) Lock(name string) (vfs.Lock, error) {
	s.taken++
	time.Sleep(time.Hour)
	lock, err := s.FS.Lock(name)
	return slowLock{lock, s}, err
}

type slowLock struct {
	vfs.Lock
	of *slowLocks
}

func (l slowLock) Close() error {
	l.of.given++
	time.Sleep(time.Hour)
	return l.Lock.Close()
}
