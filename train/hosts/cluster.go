package hosts

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/stream"
)

// Cluster is a process among those that share a run, its hosts: each has a store, devices and an engine of its own, and
// computes a part of each step. All of them call Train with the same configuration. Host 0 leads: it decides what the
// others take over, it has the output directory, and it alone tells of the run.
//
// A nil Cluster is a process that is alone. Its methods then return what they are given.
type Cluster struct {
	Host, Hosts int      // this one, from 0, and how many there are
	Names       []string // of the hosts' machines, by host, for people
	Local       []int    // the hosts on the same machine, with this one, ascending: they share its memory
	Peers       Peers    // nil: the cluster is planned for, and not there
	// NetworkBytesPerSec is plan.Machine.NetworkBytesPerSec for predictions; 0: the machine's.
	NetworkBytesPerSec float64
	// WaitUpTo lets Peers wait for so long, where that is longer than distributed.timeout. Nil: they know no limit.
	WaitUpTo func(time.Duration)
	// TellBy has the others hear by a function what this host is at, and the host whose message it needs for that (see
	// stream.Engine.Standing): the errors of hosts that wait for too long name the one that keeps them waiting. Nil:
	// they are not told.
	TellBy func(standing func() (at string, host int))

	waits time.Duration // how long they do; 0: distributed.timeout
}

// Peers are the other hosts as this one reaches them.
type Peers = stream.Peers

// Leads reports whether the process is host 0, or alone.
func (c *Cluster) Leads() bool { return c == nil || c.Host == 0 }

// Planned is the cluster as a plan has it.
func (c *Cluster) Planned() plan.Cluster {
	if c == nil {
		return plan.Cluster{}
	}
	return plan.Cluster{Host: c.Host, Hosts: c.Hosts}
}

// Count is the number of hosts.
func (c *Cluster) Count() int { return c.Planned().Count() }

// Sharers is the number of hosts that share this machine's memory.
func (c *Cluster) Sharers() int {
	if c == nil {
		return 1
	}
	return max(len(c.Local), 1)
}

// Name is a host for people: its rank, as launchers number them, and the machine.
func (c *Cluster) Name(host int) string {
	if host < len(c.Names) {
		return fmt.Sprintf("rank %d (host %s)", host, c.Names[host])
	}
	return fmt.Sprintf("rank %d", host)
}

// Plan has a request plan for this host of the cluster.
func (c *Cluster) Plan(r *plan.Request) {
	if c != nil {
		r.Cluster, r.Machine.NetworkBytesPerSec = c.Planned(), c.Network(r.Machine)
	}
}

// Network is the rate of the network between hosts of a machine; 0: it is not known.
func (c *Cluster) Network(m plan.Machine) float64 {
	return cmp.Or(c.NetworkBytesPerSec, m.NetworkBytesPerSec)
}

// ChooseGroups decides numerics.groups where it is auto, and refuses groups that the hosts cannot share.
func (c *Cluster) ChooseGroups(config *runfile.Config) error {
	hosts, rows := c.Count(), config.BatchTokens/config.SequenceLen
	if hosts == 1 {
		return nil
	}
	groups := &config.Numerics.Groups
	switch {
	case *groups > 0 && int(*groups)%hosts != 0:
		return fmt.Errorf("numerics.groups is %d, and %d hosts cannot have as many groups each: take a number of "+
			"hosts that divides %[1]d; a new run in another output_dir may have other groups", *groups, hosts)
	case *groups == 0 && rows%hosts != 0:
		return fmt.Errorf("%d hosts do not divide the %d sequences of a step (batch_tokens / sequence_len): change "+
			"batch_tokens, or take another number of hosts", hosts, rows)
	case *groups == 0:
		*groups = runfile.Auto(hosts)
	}
	return nil
}

// WaitForSteps lets hosts wait for four steps of sec seconds, if that is longer than they wait, and returns how
// long they do then; else 0. timeout is distributed.timeout. An owner waits for sums of gradients from the beginning of
// a step, and they come after the forward pass. Predictions, and the times of other steps, may be that wrong.
func (c *Cluster) WaitForSteps(sec float64, timeout time.Duration) time.Duration {
	if c == nil {
		return 0
	}
	minutes := math.Ceil(min(4*sec, longestWait.Seconds()) / 60)
	wait := time.Duration(minutes) * time.Minute
	if wait <= max(c.waits, timeout) {
		return 0
	}
	c.waits = wait
	if c.WaitUpTo != nil {
		c.WaitUpTo(wait)
	}
	return wait
}

// longestWait is the longest distributed.timeout as well.
const longestWait = 720 * time.Hour

// Awaited are peers that count how long this host has waited in exchanges for slower ones. One goroutine exchanges. An
// engine that gives nothing still works: it does not wait.
type Awaited struct {
	Peers
	waited time.Duration
}

// Exchange exchanges bytes as the peers do, and measures the time.
func (a *Awaited) Exchange(b []byte) ([][]byte, error) {
	begin := time.Now()
	all, err := a.Peers.Exchange(b)
	if len(b) > 0 {
		a.waited += time.Since(begin)
	}
	return all, err
}

// Take returns the time since the last call; 0 of a process that is alone, which has none of these peers.
func (a *Awaited) Take() time.Duration {
	if a == nil {
		return 0
	}
	d := a.waited
	a.waited = 0
	return d
}
