package train

import (
	"context"
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
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/vfs"
)

// messages are peers that count exchanges, and know the longest wait for another host, by the clock of a synctest
// bubble, which no load moves.
type messages struct {
	hosts.Peers
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
				s := &session.Session{Env: &session.Env{Cluster: &hosts.Cluster{Host: host, Hosts: 2, Peers: peers}},
					Plan: &plan.Plan{Model: &model.Model{}}}
				s.Plan.Numerics.Master = optim.Split
				err := export.Together(t.Context(), s, export.Format{DType: tensor.F32}, func(context.Context, export.View) error {
					time.Sleep(time.Hour)
					return nil
				})
				if err != nil || max(peers.received, peers.exchanged) > hosts.Beat {
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
			if of.exchanged > hosts.Beat {
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
