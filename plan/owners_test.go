package plan_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// All hosts name the same owners, who have about as much each. Each extent that checkpoints hold is at the part's
// owner, as one host alone has it, and the other hosts have the weights.
func TestOwners(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := drawModel(rt)
		hosts := rapid.IntRange(2, 4).Draw(rt, "hosts")
		n := numerics(2*hosts, rapid.Bool().Draw(rt, "split"))
		alone := map[store.ID]store.Spec{}
		for _, spec := range newPlan(rt, m, n).Extents() {
			alone[spec.ID] = spec
		}
		n.Cohorts = hosts
		plans := hostPlans(rt, m, n, hosts)
		owned, owners := make([]int64, hosts), map[store.ID]int{}
		largest := int64(0)
		for part := range m.Parts {
			owner := plans[0].Owner(part)
			elems := m.Parts[part].Layout.StateElems
			owned[owner], largest = owned[owner]+elems, max(largest, elems)
			for h, p := range plans {
				if p.Owner(part) != owner || p.Owns(part) != (owner == h) {
					rt.Errorf("part %d is of host %d, says host 0; host %d says %d", part, owner, h, p.Owner(part))
				}
			}
		}
		if more := slices.Max(owned) - slices.Min(owned); more > largest {
			rt.Errorf("hosts own %v elements, and the largest part has %d", owned, largest)
		}
		for h, p := range plans {
			for _, spec := range p.Extents() {
				switch {
				case spec.Kind == store.GradSum: // of this host's groups, on every host
				case spec != alone[spec.ID]:
					rt.Errorf("host %d has %+v, and one host alone %+v", h, spec, alone[spec.ID])
				case p.Owns(spec.Part):
					owners[spec.ID]++
				case spec.Kind != store.Weights:
					rt.Errorf("host %d has %v, and host %d owns the part", h, spec.ID, p.Owner(spec.Part))
				}
			}
		}
		for id := range alone {
			if id.Kind != store.GradSum && owners[id] != 1 {
				rt.Errorf("%v is at %d owners", id, owners[id])
			}
		}
	})
}

// A step divides into the same number of groups for each host, and each host has a number. Logits are of one host.
func TestClusterRefuses(t *testing.T) {
	m := tiny.model(t)
	for want, c := range map[string]struct {
		of     plan.Cluster
		groups int
		rows   int // of logits
	}{
		"":                     {plan.Cluster{Host: 1, Hosts: 2}, 4, 0},
		"a multiple of 3":      {plan.Cluster{Host: 2, Hosts: 3}, 4, 0},
		"a multiple of 2":      {plan.Cluster{Hosts: 2}, 0, 0},
		"host 2 of 2":          {plan.Cluster{Host: 2, Hosts: 2}, 4, 0},
		"numbered from 0":      {plan.Cluster{Host: -1, Hosts: 2}, 4, 0},
		"host 1 of 1: hosts":   {plan.Cluster{Host: 1}, 4, 0},
		"host 0 of 1: hosts a": {plan.Cluster{Hosts: -1}, 4, 0},
		"plan for one host":    {plan.Cluster{Hosts: 2}, 4, 1},
	} {
		n := numerics(4, true)
		n.Cohorts = c.groups
		err := plan.Request{Model: m, Numerics: n, Cluster: c.of, Device: device.Info{Unified: true},
			Outputs: plan.Outputs{LogitRows: c.rows}, Machine: machine}.Fits(context.Background())
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v with %d groups: %v, want %q", c.of, c.groups, err, want)
		}
	}
}
