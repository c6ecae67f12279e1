package plan_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
)

func TestNetworks(t *testing.T) {
	for name, want := range map[string]float64{"100Gb": 11e9, "100gb": 11e9, "50Gb": 5.5e9, "50Gbit/s": 5.5e9,
		"50Gbps": 5.5e9, "2.5Gb/s": 0.275e9, "11GB/s": 11e9, "0.5gB/s": 0.5e9} {
		if rate, err := plan.Network(name); err != nil || math.Abs(rate-want) > 1 {
			t.Errorf("%s has %v bytes/s, error %v, want %v", name, rate, err, want)
		}
	}
	for name, want := range map[string]string{"-1Gb": "", "0Gb": "", "NaNGb": "", "InfGb": "", "1e6Gb": "", "Gb": "",
		"": "", "1eGb": "", "5TB/s": "", "100": "known are 1Gb, 10Gb",
		"100GB":  "write 100Gb for its gigabits per second, or 100GB/s for gigabytes per second that arrive",
		"12.5gB": "write 12.5Gb"} {
		if rate, err := plan.Network(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s has %v bytes/s, error %v", name, rate, err)
		}
	}
	for _, name := range plan.Networks() {
		if rate, err := plan.Network(name); err != nil || rate <= 0 {
			t.Errorf("%s has %v bytes/s, %v", name, rate, err)
		}
	}
}

// Whatever the placement, what a host is predicted to send and to receive is its traffic, and what one host sends
// another one receives. A step takes no less than the network is busy, no more than all lanes one after the other, and
// with a network that is slower by far, longer.
func TestSimulationOfHosts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := drawModel(rt)
		hosts := rapid.IntRange(2, 4).Draw(rt, "hosts")
		n := numerics(hosts*rapid.IntRange(1, 3).Draw(rt, "micro-batches"), true)
		n.Cohorts, n.Exchange = hosts, drawExchange(rt)
		sent, received := int64(0), int64(0)
		for h, p := range hostPlans(rt, m, n, hosts) {
			p = p.With(drawPlacement(rt, m, false))
			fast, slow := machine, machine
			fast.NetworkBytesPerSec, slow.NetworkBytesPerSec = 1e10, 1e6
			q, s := p.Simulate(fast, device.Info{}), p.Simulate(slow, device.Info{})
			if traffic := p.Traffic(); q.HostTraffic != traffic[h] && p.Trains() {
				rt.Errorf("host %d: %+v, and the traffic is %+v", h, q.HostTraffic, traffic[h])
			}
			sent, received = sent+q.SentBytes, received+q.ReceivedBytes
			least, most := 0.0, 0.0
			for _, lane := range s.LaneSeconds {
				least, most = max(least, lane), most+float64(p.Ranks())*lane
			}
			if s.StepSeconds < 0.999*least || s.StepSeconds > 1.001*most {
				rt.Errorf("a step of %.6g s, lanes of %.6g s at most and %.6g s together", s.StepSeconds, least, most)
			}
			if p.Trains() && s.StepSeconds <= q.StepSeconds {
				rt.Errorf("a network that is slower by far: %.6g s a step, and %.6g s", s.StepSeconds, q.StepSeconds)
			}
			if hidden := q.NetworkHidden; hidden < 0 || hidden > 1 {
				rt.Errorf("%v of the network's time is hidden", hidden)
			}
		}
		if sent != received {
			rt.Errorf("%d bytes are sent, and %d received", sent, received)
		}
	})
}

// A simulated receive waits for what this host does itself at that time: a sum for its own of the same part and number,
// and the n-th weights of another host for its own n-th update, of those that come before.
func TestAwaitOthers(t *testing.T) {
	m := tiny.model(t)
	n := numerics(4, true)
	n.Cohorts = 4
	p := hostPlans(t, m, n, 2)[1].With(moving(m, 2))
	s, simulated := p.Schedule(plan.Steady), p.Schedule(plan.Steady)
	plan.AwaitOthers(p, simulated)
	var updates []int
	own := map[[2]int]int{} // the sum of a part, by number on its host
	weights := 0
	for i, op := range s.Ops {
		want := slices.Clone(op.After)
		switch {
		case op.Do == plan.DoUpdate:
			updates = append(updates, i)
		case op.Name() == "drain-sum", op.Name() == "scatter":
			own[[2]int{op.Part, op.Writes[0].Cohort - 2}] = i
		case op.Name() == "receive-sum":
			want = append(want, own[[2]int{op.Part, op.Writes[0].Cohort}])
		case op.Name() == "receive-weights":
			if before := min(weights+1, len(updates)); before > 0 {
				want = append(want, updates[before-1])
			}
			weights++
		}
		if got := simulated.Ops[i].After; !slices.Equal(got, want) {
			t.Errorf("%d %v waits for %v in a simulation, want %v", i, op, got, want)
		}
	}
	if weights < 3 || len(updates) < 3 {
		t.Errorf("%d updates, and weights of %d parts come", len(updates), weights)
	}
}

// A 70B model on four hosts moves 6 bytes of three quarters of its parameters a step, which 100 Gbit/s carry while a
// GPU computes 32k tokens of each host, and 10 Gbit/s do not.
func TestNetworkIsHidden(t *testing.T) {
	r, on := onMachine(t, "llama-3-70b", "h100-pcie5")
	r.Numerics.MicroBatches = 32
	r.Numerics.Cohorts = 4
	r.Cluster = plan.Cluster{Host: 1, Hosts: 4}
	r.HostBytes = 0
	params, _ := r.Model.Params()
	steps := map[string]float64{}
	for name, hidden := range map[string]bool{"10Gb": false, "100Gb": true} {
		var err error
		if r.Machine.NetworkBytesPerSec, err = plan.Network(name); err != nil {
			t.Fatal(err)
		}
		p, err := plan.Estimate(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		q := p.Predicted
		if got := float64(q.SentBytes+q.ReceivedBytes) / 2 / float64(params); math.Abs(got-4.5) > 0.05 {
			t.Errorf("%s: %.3f bytes a parameter are sent, and as many received", name, got)
		}
		if (q.NetworkHidden > 0.95) != hidden {
			t.Errorf("%s: %.2f of the network's time is hidden", name, q.NetworkHidden)
		}
		steps[name] = q.StepSeconds
		text := p.Explain(on.Device, r.Machine, p.Forecast(r.Machine, on.Device, 0))
		for _, want := range []string{"step     524288 positions: 32 micro-batches of 8 x 2048 in 4 groups",
			"hosts: each of 4 computes 8 micro-batches of a step", "sent to other hosts",
			"% of that time a device computes"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q is not in\n%s", name, want, text)
			}
		}
	}
	if steps["10Gb"] < 1.5*steps["100Gb"] {
		t.Errorf("steps take %v s", steps)
	}
}
