package plan

import (
	"context"
	"fmt"
)

// HostShare has what a host keeps of a model, and what passes between it and the others in a step.
type HostShare struct {
	StateBytes int64 `json:"state_bytes"` // in host memory and on disk: all weights, and the rest of what it owns
	HostTraffic
}

// HostShares are the shares of each host; nil where one is alone.
func (p *Plan) HostShares() []HostShare {
	var all []HostShare
	for host, traffic := range p.Traffic() {
		of := *p
		of.Cluster.Host = host
		share := HostShare{HostTraffic: traffic}
		for _, spec := range of.Extents() {
			share.StateBytes += spec.Bytes
		}
		all = append(all, share)
	}
	return all
}

// CheckHosts says in one line which of the hosts has no room for this plan's sizes in the same budgets, if one
// has not. It simulates nothing.
func (p *Plan) CheckHosts(ctx context.Context) error {
	for host := range p.Cluster.Count() {
		r := *p.asked
		r.Cluster.Host = host
		if err := r.Fits(ctx); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("host %d of %d, with what it owns: %w", host, r.Cluster.Hosts, err)
		}
	}
	return nil
}

// OnHost plans for another host of the cluster, with the same sizes and budgets.
func (p *Plan) OnHost(ctx context.Context, host int) (*Plan, error) {
	r := *p.asked
	r.Cluster.Host = host
	return New(ctx, r)
}

// NetworkTokens is about the fewest tokens of a step with which the devices of a host compute as long as its network is
// busy: messages are as long whatever the tokens, and computing takes as many times as long. It is 0 where that is so
// already, and of one host.
func (p *Plan) NetworkTokens() int {
	q := &p.Predicted
	network, computing := max(q.LaneSeconds[LaneSend], q.LaneSeconds[LaneReceive]), q.LaneSeconds[LaneCompute]
	if network <= computing || computing == 0 {
		return 0
	}
	unit := p.Cluster.Count() * p.Whole.SequenceLen
	steps := float64(p.Whole.StepPositions()) * network / computing / float64(unit)
	return (int(steps) + 1) * unit
}
