package verbs

import (
	"context"
	"fmt"
	"strings"

	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/hosts"
)

// HostsPlanned says what a plan for host 0 of several means for all of them.
type HostsPlanned struct {
	Hosts  int              `json:"hosts"`
	ByHost []plan.HostShare `json:"by_host"`
	// OneStepSeconds has the seconds of the same step on one host, and SpeedUp their ratio to those of the plan; 0
	// where one host has no room for it.
	OneStepSeconds float64 `json:"one_host_step_sec,omitempty"`
	SpeedUp        float64 `json:"speed_up,omitempty"`
	OneDiskBytes   int64   `json:"one_host_disk_bytes,omitempty"` // of its state
	// NetworkTokens is about the fewest tokens of a step with which computing takes as long as the network is busy; 0:
	// it does. See plan.Plan.NetworkTokens.
	NetworkTokens int `json:"network_tokens,omitempty"`

	alone string // why one host has no room
}

// String prints the plan in lines.
func (h *HostsPlanned) String() string {
	most, least := 0, 0
	for host, of := range h.ByHost {
		if of.StateBytes > h.ByHost[most].StateBytes {
			most = host
		}
		if of.StateBytes < h.ByHost[least].StateBytes {
			least = host
		}
	}
	text := fmt.Sprintf("hosts       host %d has most state, %s, and host %d least, %s; all %d "+
		"have room for it\n", most,
		plan.FormatBytes(h.ByHost[most].StateBytes), least, plan.FormatBytes(h.ByHost[least].StateBytes), h.Hosts)
	if h.SpeedUp > 0 {
		text += fmt.Sprintf("one host    takes %s for the same step, %.2f times as long",
			plan.FormatSeconds(h.OneStepSeconds), h.SpeedUp)
		if h.OneDiskBytes > 0 {
			text += fmt.Sprintf(", with %s of state on disk", plan.FormatBytes(h.OneDiskBytes))
		}
	} else {
		text += "one host    cannot take the same step: " + h.alone
	}
	if h.NetworkTokens > 0 {
		text += fmt.Sprintf("\nnetwork     it is busy for longer than a host computes, up to about %d tokens a "+
			"step, %d a host",
			h.NetworkTokens, h.NetworkTokens/h.Hosts)
	}
	return text + "\n"
}

// cluster returns host 0 of the hosts that the options ask for, or nil. It decides numerics.groups as a run on them
// does.
func (o *PlanOptions) cluster(c *runfile.Config) (*hosts.Cluster, error) {
	if o.Hosts <= 1 {
		return nil, nil
	}
	cluster := &hosts.Cluster{Hosts: o.Hosts}
	if o.Network != "" {
		rate, err := plan.Network(o.Network)
		if err != nil {
			return nil, err
		}
		cluster.NetworkBytesPerSec = rate
	}
	return cluster, cluster.ChooseGroups(c)
}

// checkNetwork refuses to plan for several hosts with a network that is not known.
func checkNetwork(c *hosts.Cluster, m plan.Machine) error {
	if c == nil || c.Network(m) > 0 {
		return nil
	}
	return fmt.Errorf("the rate of the network between hosts is not known: name it, such as --network 100Gb, or "+
		"give network in a machine file; names are %s", strings.Join(plan.Networks(), ", "))
}

// hostsPlanned says what a plan means for all hosts. alone plans the same step for one host.
func hostsPlanned(ctx context.Context, p *plan.Plan, alone func() (*plan.Plan, error)) (*HostsPlanned, error) {
	if err := p.CheckHosts(ctx); err != nil {
		return nil, err
	}
	h := &HostsPlanned{Hosts: p.Cluster.Hosts, ByHost: p.HostShares(), NetworkTokens: p.NetworkTokens()}
	one, err := alone()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		h.alone = err.Error()
	default:
		h.OneStepSeconds, h.OneDiskBytes = one.Predicted.StepSeconds, one.DiskBytes
		h.SpeedUp = h.OneStepSeconds / p.Predicted.StepSeconds
	}
	return h, nil
}
