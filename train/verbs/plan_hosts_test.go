package verbs

import (
	"context"
	"strings"
	"testing"

	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/rehearse"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/traintest"
)

// A plan for several hosts is that of host 0, says what each has, compares them with one, and holds for all of them to
// the byte.
func TestPlanForHosts(t *testing.T) {
	for name, device := range map[string]string{"bound": "", "streamed": "3MiB"} {
		c := traintest.SmallConfig(t)
		c.Precision, c.Numerics.MicroBatch = runfile.Defaults().Precision, 1
		if device != "" {
			c.Memory.Device, c.Numerics.Exchange = traintest.Budget(t, device).Device, runfile.ExchangeBF16
		}
		asked, env := *c, traintest.NewEnv(t)
		alone := *c
		alone.Numerics.Exchange = "" // which a step of one group has not
		one, err := PlanFor(t.Context(), &alone, PlanOptions{Env: env})
		if err != nil {
			t.Fatal(err)
		}
		p, err := PlanFor(t.Context(), c, PlanOptions{Env: env, Hosts: 4, Network: "1Gb"})
		if err != nil {
			t.Fatal(err)
		}
		if c.Numerics != asked.Numerics || env.Cluster != nil {
			t.Errorf("%s: the plan has left %+v, and %v", name, c.Numerics, env.Cluster)
		}
		h := p.Hosts
		if one.Hosts != nil || one.Plan.Cluster.Several() || p.Plan.Cluster != (plan.Cluster{Hosts: 4}) ||
			p.Plan.Whole.CohortCount() != 4 || len(h.ByHost) != 4 ||
			h.OneStepSeconds != one.Plan.Predicted.StepSeconds {
			t.Fatalf("%s: %+v of %+v", name, h, p.Plan.Cluster)
		}
		var sent, received, weights, state int64
		for _, of := range h.ByHost {
			sent, received, state = sent+of.SentBytes, received+of.ReceivedBytes, state+of.StateBytes
		}
		for part := range p.Plan.Model.Parts {
			weights += 2 * p.Plan.Model.Parts[part].Layout.WeightElems
		}
		exchange := int64(4) // bytes of an element of a sum
		if c.Numerics.Exchange != "" {
			exchange = 2
		}
		// Of the embedding a group of 64 tokens sends as many rows.
		m := p.Plan.Model
		elems := weights / 2
		sums := elems - int64((m.Vocab-64)*m.Hidden)
		if want := 3*exchange*sums + 3*2*elems; sent < want || sent > want*11/10 { // and padding
			t.Errorf("%s: %d bytes are sent, want %d", name, sent, want)
		}
		if sent != received || sent == 0 || state < 4*weights {
			t.Errorf("%s: %d bytes are sent, %d received, and %d of state, with %d of weights", name, sent, received,
				state, weights)
		}
		text := p.String()
		for _, want := range []string{"hosts: each of 4 computes 1 micro-batch", "all 4 have room for it",
			"one host    takes", "during", "network     it is busy for longer than a host computes"} {
			if strings.Contains(text, want) != (want[0] != 'n' || h.NetworkTokens > 0) {
				t.Errorf("%s: %q in\n%s", name, want, text)
			}
		}
		if strings.Contains(text, "in 4 groups whose sums are bf16") != (exchange == 2) {
			t.Errorf("%s: sums of %d bytes an element in\n%s", name, exchange, text)
		}
		all, err := rehearse.Hosts(context.Background(), p.Plan, 2)
		if err != nil || len(all) != 4 {
			t.Fatalf("%s: %d rehearsals, %v", name, len(all), err)
		}
		for host, r := range all {
			if r.SentBytes != h.ByHost[host].SentBytes || r.ReceivedBytes != h.ByHost[host].ReceivedBytes {
				t.Errorf("%s: host %d sends %d bytes and receives %d, want %+v", name, host, r.SentBytes,
					r.ReceivedBytes, h.ByHost[host])
			}
		}
	}
}

// A network that is slower than what a host computes names the tokens that would hide it, and with these it is not.
func TestNetworkTokens(t *testing.T) {
	c := traintest.SmallConfig(t)
	c.Numerics.MicroBatch = 1
	ask := func(tokens int) *Planned {
		c.BatchTokens = tokens
		o := PlanOptions{Env: traintest.NewEnv(t), Machine: "rtx4090-pc-128gb", Hosts: 2, Network: "1Gb"}
		p, err := PlanFor(t.Context(), c, o)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	few := ask(256)
	tokens := few.Hosts.NetworkTokens
	if tokens <= 256 || tokens%(2*64) != 0 {
		t.Fatalf("%d tokens", tokens)
	}
	if p := ask(tokens); p.Hosts.NetworkTokens > tokens*11/10 {
		t.Errorf("with %d tokens it takes %d", tokens, p.Hosts.NetworkTokens)
	}
}

// What hosts cannot share, and a network that is not known, are errors of one line.
func TestPlanForHostsRefuses(t *testing.T) {
	type opts = PlanOptions
	for want, change := range map[string]func(*runfile.Config, *opts){
		"3 hosts do not divide the 4 sequences of a step": func(_ *runfile.Config, o *opts) { o.Hosts = 3 },
		"numerics.groups is 2, and 4 hosts cannot":        func(c *runfile.Config, _ *opts) { c.Numerics.Groups = 2 },
		"is not known: name it, such as --network 100Gb":  func(_ *runfile.Config, o *opts) { o.Network = "" },
		`network "fast" is unknown`:                       func(_ *runfile.Config, o *opts) { o.Network = "fast" },
	} {
		c, o := traintest.SmallConfig(t), PlanOptions{Env: traintest.NewEnv(t), Hosts: 4, Network: "100Gb"}
		change(c, &o)
		_, err := PlanFor(t.Context(), c, o)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
