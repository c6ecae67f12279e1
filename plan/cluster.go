package plan

import "fmt"

// Cluster says which of the hosts of a cluster a plan is for. The zero value is one host alone.
//
// The cohorts of a step (see cohorts.go) are divided evenly: host h has the h-th row of consecutive ones, with their
// micro-batches. Each host has the weights of all parts, and the rest of the state of those that it owns (see
// owners.go). What passes between hosts, and in which order, is in schedule_network.go.
type Cluster struct {
	Host  int `json:"host"` // from 0
	Hosts int `json:"hosts"`
}

// Count is the number of hosts, from 1 on.
func (c Cluster) Count() int { return max(c.Hosts, 1) }

// Several reports whether there are other hosts.
func (c Cluster) Several() bool { return c.Hosts > 1 }

// Share returns the numerics of one of a number of hosts: those of its own micro-batches and cohorts.
func (n Numerics) Share(hosts int) Numerics {
	if hosts > 1 {
		n.MicroBatches, n.Cohorts = n.MicroBatches/hosts, n.CohortCount()/hosts
	}
	return n
}

// share returns the numerics of this host's part of a step.
func (r Request) share() Numerics { return r.Numerics.Share(r.Cluster.Count()) }

// checkCluster refuses a cluster that cannot divide a step, or what none can do.
func (r Request) checkCluster() error {
	switch c, n, hosts := r.Cluster, r.Numerics, r.Cluster.Count(); {
	case c.Hosts < 0 || c.Host < 0 || c.Host >= hosts:
		return fmt.Errorf("host %d of %d: hosts are numbered from 0", c.Host, hosts)
	case n.CohortCount()%hosts != 0:
		return fmt.Errorf("numerics.groups is %d, and the job has %d hosts, each of which computes as many groups; "+
			"set numerics.groups to a multiple of %d", n.CohortCount(), hosts, hosts)
	case c.Several() && r.Outputs.LogitRows > 0 && !r.Outputs.Continues():
		return fmt.Errorf("logits: each of %d hosts has those of its own micro-batches alone; plan for one host", hosts)
	}
	return nil
}

// firstCohort is the number in the step of this host's first cohort.
func (p *Plan) firstCohort() int { return p.Cluster.Host * p.Numerics.CohortCount() }

// hostOf is the host that computes a cohort of the step.
func (p *Plan) hostOf(cohort int) int { return cohort / p.Numerics.CohortCount() }
