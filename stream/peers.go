package stream

import (
	"context"
	"fmt"
	"slices"
)

// Peers are the other hosts of a cluster as an engine reaches them, by their numbers ([plan.Cluster]). All hosts walk
// schedules with the same messages in the same order, so a message needs no name: the next one that a host sends is the
// next one that the other receives.
//
// One goroutine calls Send, another one Receive and a third one Exchange, at the same time. An engine calls Exchange
// when neither of the others is under way, except in a schedule that saves; those who write its state to a model do not
// wait for that.
// A host that has failed calls none of them again. So an implementation must find out by itself that a host is gone or
// silent; its errors are one line and name the host.
type Peers interface {
	// Send sends b to a host, and returns when b may change. It may wait until the host receives. Messages to one host
	// arrive in their order.
	Send(ctx context.Context, host int, b []byte) error
	// Receive fills b with the next message of a host, which has as many bytes. b is written until it returns, also
	// with an error, and not after that.
	Receive(ctx context.Context, host int, b []byte) error
	// Exchange sends b to all hosts and returns those of all, by host, this one's included. All hosts call it, in the
	// same order. Lengths may differ. The result is the caller's, with b in it or a copy.
	Exchange(b []byte) ([][]byte, error)
}

// openPeers checks that the engine has the peers that its plan needs.
func (e *Engine) openPeers() error {
	switch hosts := e.Plan.Cluster.Count(); {
	case e.Peers != nil:
	case e.AddressOnly || hosts == 1:
		e.Peers = absent{hosts}
	default:
		return fmt.Errorf("the plan is for host %d of %d, and the engine has no peers; set Config.Peers, or plan for "+
			"one host", e.Plan.Cluster.Host, hosts)
	}
	return nil
}

// absent stands for the peers of a host that is alone, and for those of a rehearsal, which move no byte.
type absent struct{ hosts int }

func (absent) Send(context.Context, int, []byte) error    { return nil }
func (absent) Receive(context.Context, int, []byte) error { return nil }

// Exchange has all hosts give the same.
func (p absent) Exchange(b []byte) ([][]byte, error) { return slices.Repeat([][]byte{b}, p.hosts), nil }
