// Package streamtest connects engines of one process as the hosts of a cluster, for tests.
//
// Its messages meet: a Send ends when the other host has received it, as one of MPI does where the message is long. So
// hosts that wait for each other in a circle stand still, and their test does not end.
package streamtest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/millrace/millrace/stream"
)

// Network connects hosts. It is safe for concurrent use.
type Network struct {
	hosts    []*host
	messages [][]chan message // by sender and receiver

	mu    sync.Mutex
	round *round // the exchange that is under way
}

// host has a host's view of the network.
type host struct {
	*Network
	number int
	ended  chan struct{} // closed by End
}

// message waits for its receiver, which copies it.
type message struct {
	bytes []byte
	taken chan error // nil: it was copied
}

// round is an exchange.
type round struct {
	bytes [][]byte // by host, of those that have come
	came  int
	over  chan struct{} // closed when all have come, or when one of them has ended
	err   error         // which
}

// New connects a number of hosts.
func New(hosts int) *Network {
	n := &Network{}
	for i := range hosts {
		n.hosts = append(n.hosts, &host{Network: n, number: i, ended: make(chan struct{})})
		var to []chan message
		for range hosts {
			to = append(to, make(chan message))
		}
		n.messages = append(n.messages, to)
	}
	n.begin()
	return n
}

func (n *Network) begin() {
	n.round = &round{bytes: make([][]byte, len(n.hosts)), over: make(chan struct{})}
}

// Peers are the other hosts as one of them reaches them.
func (n *Network) Peers(host int) stream.Peers { return n.hosts[host] }

// End ends a host, as a process that is killed does: its operations fail, and so do those of others that wait for it,
// or that come later.
func (n *Network) End(host int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case <-n.hosts[host].ended:
		return
	default:
		close(n.hosts[host].ended)
	}
	if n.round.err == nil {
		n.round.err = gone(host)
		close(n.round.over)
	}
}

// Send implements stream.Peers.
func (h *host) Send(ctx context.Context, to int, b []byte) error {
	m := message{b, make(chan error, 1)}
	select {
	case h.messages[h.number][to] <- m:
		return <-m.taken
	case <-h.ended:
		return gone(h.number)
	case <-h.hosts[to].ended:
		return gone(to)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Receive implements stream.Peers.
func (h *host) Receive(ctx context.Context, from int, b []byte) error {
	select {
	case m := <-h.messages[from][h.number]:
		var err error
		if len(m.bytes) != len(b) {
			err = fmt.Errorf("host %d sends %d bytes where host %d awaits %d", from, len(m.bytes), h.number, len(b))
		}
		copy(b, m.bytes)
		m.taken <- err
		return err
	case <-h.ended:
		return gone(h.number)
	case <-h.hosts[from].ended:
		return gone(from)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Exchange implements stream.Peers.
func (h *host) Exchange(b []byte) ([][]byte, error) {
	h.mu.Lock()
	r := h.round
	if r.err == nil {
		r.bytes[h.number] = slices.Clone(b)
		if r.came++; r.came == len(h.hosts) {
			close(r.over)
			h.begin()
		}
	}
	h.mu.Unlock()
	if <-r.over; r.err != nil {
		return nil, r.err
	}
	var all [][]byte
	for _, of := range r.bytes {
		all = append(all, slices.Clone(of)) // the caller's own
	}
	return all, nil
}

func gone(host int) error { return fmt.Errorf("host %d has ended", host) }
