package hosts

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/stream/streamtest"
)

// Hosts that are not at the same point of a run find out, though one message may look like the other.
func TestHostsAtOtherPoints(t *testing.T) {
	network := streamtest.New(2)
	var group sync.WaitGroup
	for host := range 2 {
		group.Go(func() {
			c := &Cluster{Host: host, Hosts: 2, Names: []string{"a", "b"}, Peers: network.Peers(host)}
			var err error
			if host == 0 {
				err = Decide(c, Report[struct{ A int }]{}).Err
			} else {
				err = Decide(c, Report[struct{ B int }]{}).Err
			}
			if !IsAlone(err) || !strings.Contains(err.Error(), "is at another point of the run than ") {
				t.Errorf("host %d: %v", host, err)
			}
		})
	}
	group.Wait()
}

// All hosts decide the same by the reports of all: the error of the first that has one, which it alone reports, and to
// end where any is to end. A process that is alone decides by its own report.
func TestDecide(t *testing.T) {
	broken := errors.New("the sluice is shut")
	for name, x := range map[string]struct {
		own     [3]Report[int]
		stop    bool
		err     string
		reports int
	}{
		"nothing":       {[3]Report[int]{{Own: 4}, {Own: 5}, {Own: 6}}, false, "", -1},
		"one is to end": {[3]Report[int]{{Own: 4}, {Own: 5, Stop: true}, {Own: 6}}, true, "", -1},
		"one fails":     {[3]Report[int]{{Own: 4}, {Own: 5, Err: broken}, {Own: 6}}, false, "the sluice is shut", 1},
		"all have their own": {[3]Report[int]{{Own: 4, Err: errors.New("no water")}, {Own: 5, Err: broken}, {Own: 6}}, false,
			"", 0},
	} {
		network := streamtest.New(3)
		var group sync.WaitGroup
		for host := range 3 {
			group.Go(func() {
				c := &Cluster{Host: host, Hosts: 3, Names: []string{"a", "b", "c"}, Peers: network.Peers(host)}
				d := Decide(c, x.own[host])
				of, is := errors.AsType[*Error](d.Err)
				if d.Stop != x.stop || !slices.Equal(d.All, []int{4, 5, 6}) || d.Lead() != 4 || is != (x.reports >= 0) ||
					is && (of.Reports != (host == x.reports) || !strings.Contains(d.Err.Error(), x.err)) {
					t.Errorf("%s: host %d decides %+v", name, host, d)
				}
			})
		}
		group.Wait()
	}
	if d := Decide(nil, Report[int]{broken, true, 4}); d.Err != broken || !d.Stop || d.Lead() != 4 {
		t.Errorf("alone: %+v", d)
	}
}

// An error that all hosts have, or that one has alone, is told to none of them.
func TestNothingIsToldTwice(t *testing.T) {
	c := &Cluster{Hosts: 2} // without peers
	for _, err := range []error{c.Everywhere(errors.New("x")), c.Alone(errors.New("x"))} {
		if got := c.Agree(err); got != err {
			t.Errorf("%v, of %v", got, err)
		}
	}
}

// Hosts wait longer for each other than distributed.timeout says where a step is long.
func TestLongStepsOfHosts(t *testing.T) {
	var waits []time.Duration
	c := &Cluster{Hosts: 2, WaitUpTo: func(d time.Duration) { waits = append(waits, d) }}
	for _, sec := range []float64{150, 301, 200, 600, math.Inf(1), 700} {
		before := len(waits)
		if longer := c.WaitForSteps(sec, 10*time.Minute); (longer > 0) != (len(waits) > before) {
			t.Errorf("a step of %v s: it says %v, after %v", sec, longer, waits)
		}
	}
	if want := []time.Duration{21 * time.Minute, 40 * time.Minute, 720 * time.Hour}; !slices.Equal(waits, want) {
		t.Errorf("hosts wait up to %v, want %v", waits, want)
	}
}

// A process that is alone leads, is one host, waits for no other, and plans as it was asked to.
func TestAlone(t *testing.T) {
	var c *Cluster
	r := plan.Request{Machine: plan.Machine{NetworkBytesPerSec: 7}}
	c.Plan(&r)
	if r.Cluster != (plan.Cluster{}) || r.Machine.NetworkBytesPerSec != 7 {
		t.Errorf("it plans for %+v and a network of %v", r.Cluster, r.Machine.NetworkBytesPerSec)
	}
	if !c.Leads() || c.Count() != 1 || c.Sharers() != 1 || c.Planned() != (plan.Cluster{}) {
		t.Errorf("it leads: %v, of %d hosts, %d of them here", c.Leads(), c.Count(), c.Sharers())
	}
	if c.Beat(time.Hour) != time.Hour || c.WaitForSteps(1e6, time.Minute) != 0 || (*Awaited)(nil).Take() != 0 {
		t.Error("it waits for others")
	}
	if err := errors.New("x"); c.Alone(err) != err || c.Everywhere(err) != err || c.Agree(err) != err {
		t.Error("its error is another one")
	}
}

// A host knows its place, who shares its machine, and the network: its own figure before the machine's.
func TestPlaceInCluster(t *testing.T) {
	c := &Cluster{Host: 1, Hosts: 3, Names: []string{"a", "b"}, Local: []int{1, 2}}
	first := &Cluster{Hosts: 3}
	if c.Leads() || !first.Leads() || c.Count() != 3 || c.Sharers() != 2 || first.Sharers() != 1 {
		t.Errorf("leads %v and %v, %d hosts, %d and %d here", c.Leads(), first.Leads(), c.Count(), c.Sharers(),
			first.Sharers())
	}
	for host, want := range []string{"rank 0 (host a)", "rank 1 (host b)", "rank 2"} {
		if got := c.Name(host); got != want {
			t.Errorf("host %d is %q, want %q", host, got, want)
		}
	}
	for own, want := range map[float64]float64{0: 7, 5: 5} {
		c.NetworkBytesPerSec = own
		r := plan.Request{Machine: plan.Machine{NetworkBytesPerSec: 7}}
		c.Plan(&r)
		if r.Cluster != (plan.Cluster{Host: 1, Hosts: 3}) || r.Machine.NetworkBytesPerSec != want {
			t.Errorf("it plans for %+v and a network of %v, want %v", r.Cluster, r.Machine.NetworkBytesPerSec, want)
		}
	}
	if c.Beat(time.Hour) != Beat {
		t.Errorf("it hears of others after %v", c.Beat(time.Hour))
	}
}

// Hosts have as many groups each. Where the groups are auto, there is one for each host, which then has whole rows.
func TestGroupsOfHosts(t *testing.T) {
	for _, x := range []struct {
		hosts, rows int
		asked, want runfile.Auto
		err         string
	}{
		{1, 7, 0, 0, ""},
		{1, 7, 3, 3, ""},
		{2, 6, 0, 2, ""},
		{2, 6, 4, 4, ""},
		{2, 7, 0, 0, "2 hosts do not divide the 7 sequences"},
		{2, 6, 3, 3, "numerics.groups is 3, and 2 hosts cannot"},
		{2, 7, 1, 1, "numerics.groups is 1, and 2 hosts cannot"},
	} {
		config := &runfile.Config{SequenceLen: 16, BatchTokens: 16 * x.rows}
		config.Numerics.Groups = x.asked
		err := (&Cluster{Hosts: x.hosts}).ChooseGroups(config)
		if (err != nil) != (x.err != "") || err != nil && !strings.Contains(err.Error(), x.err) ||
			config.Numerics.Groups != x.want {
			t.Errorf("%d hosts, %d rows, %d groups: %d, %v", x.hosts, x.rows, x.asked, config.Numerics.Groups, err)
		}
	}
}

// decided has each of two hosts report an error, and returns what each ends with.
func decided(of ...error) (all [2]error) {
	network := streamtest.New(2)
	var group sync.WaitGroup
	for host := range 2 {
		group.Go(func() {
			c := &Cluster{Host: host, Hosts: 2, Names: []string{"a", "b"}, Peers: network.Peers(host)}
			all[host] = c.Agree(of[host])
		})
	}
	group.Wait()
	return all
}

// An error that is told stays what it was to those who ask, and no other one: of the request, an interruption, or an
// end on purpose. One that its host has not found to be of the request is not of it elsewhere.
func TestToldErrorsKeepTheirKind(t *testing.T) {
	kinds := []error{blame.ErrRequest, ErrInterrupted, context.Canceled, ErrStop, context.DeadlineExceeded}
	for i, of := range append(kinds, errors.New("the sluice is shut")) {
		all := decided(nil, fmt.Errorf("a step: %w", of))
		for host, err := range all {
			for j, kind := range kinds {
				if errors.Is(err, kind) != (i == j) {
					t.Errorf("host %d: of %v, %v is %v: %v", host, of, err, kind, i != j)
				}
			}
		}
		if got, want := all[0].Error(), "rank 1 (host b): a step: "+of.Error(); got != want {
			t.Errorf("host 0 ends with %q, want %q", got, want)
		}
		if got, want := all[1].Error(), "a step: "+of.Error(); got != want {
			t.Errorf("host 1 ends with %q, want %q", got, want)
		}
		if errors.Is(blame.BadRequest(all[0]), blame.ErrRequest) != (i == 0) {
			t.Errorf("of %v: host 0 takes %v for one of the request: %v", of, all[0], i != 0)
		}
	}
}

// An error of budgets has the name of its host, where that is host 0; the launcher puts the names of others in front.
func TestErrorsOfBudgetsNameTheirHost(t *testing.T) {
	few := errors.New("too little memory")
	for _, x := range []struct {
		of   [2]error
		want [2]string
	}{
		{[2]error{OfBudgets(few), nil}, [2]string{"rank 0 (host a): " + few.Error(), "rank 0 (host a): " + few.Error()}},
		{[2]error{few, nil}, [2]string{few.Error(), "rank 0 (host a): " + few.Error()}},
		{[2]error{nil, OfBudgets(few)}, [2]string{"rank 1 (host b): " + few.Error(), few.Error()}},
	} {
		if got := decided(x.of[:]...); got[0].Error() != x.want[0] || got[1].Error() != x.want[1] {
			t.Errorf("of %v: %q", x.of, got)
		}
	}
	if OfBudgets(nil) != nil {
		t.Error("nothing is an error of budgets")
	}
}

// sameError is an error that all hosts have by what it is.
type sameError struct{ error }

func (sameError) SameOnAll() {}

// An error in the middle of what all do together is of one host alone, unless all have it.
func TestErrorsOfOneHost(t *testing.T) {
	c := &Cluster{Host: 1, Hosts: 2}
	broken := errors.New("the sluice is shut")
	told := c.Everywhere(broken)
	for _, of := range []error{told, sameError{broken}, ErrInterrupted, nil} {
		if err := c.Alone(of); err != of || IsAlone(err) {
			t.Errorf("%v becomes %v", of, err)
		}
	}
	if err := c.Alone(broken); !IsAlone(err) || !errors.Is(err, broken) {
		t.Errorf("%v becomes %v, which is not of one host alone", broken, err)
	}
	of, _ := errors.AsType[*Error](told)
	if of == nil || of.Reports || !errors.Is(of, broken) || c.Everywhere(nil) != nil {
		t.Errorf("%v becomes %+v", broken, told)
	}
	leads, _ := errors.AsType[*Error]((&Cluster{Hosts: 2}).Everywhere(broken))
	if over := leads.Over(ErrStop); !leads.Reports || !over.Reports || over.Error() != ErrStop.Error() {
		t.Errorf("host 0 has %+v, and over that %+v", leads, over)
	}
}

// lost are peers that do not answer.
type lost struct{ Peers }

var errLost = errors.New("the network is gone")

func (lost) Exchange([]byte) ([][]byte, error) { return nil, errLost }

// A host that cannot reach the others ends alone, with its own error if it has one; so does its work.
func TestOthersAreGone(t *testing.T) {
	c := &Cluster{Hosts: 2, Peers: lost{}}
	broken := errors.New("the sluice is shut")
	for _, own := range []error{nil, broken} {
		d := Decide(c, Report[int]{own, true, 4})
		if !IsAlone(d.Err) || !errors.Is(d.Err, errLost) || errors.Is(d.Err, broken) != (own != nil) || !d.Stop ||
			d.Lead() != 4 {
			t.Errorf("with %v it decides %+v", own, d)
		}
	}
	err := Work{Cluster: c, Clock: at(0)}.Together(t.Context(), func(ctx context.Context) error {
		<-ctx.Done()
		return broken
	})
	if !errors.Is(err, errLost) || !errors.Is(err, broken) {
		t.Errorf("its work ends with %v", err)
	}
	if err := (Work{}).Together(t.Context(), func(context.Context) error { return broken }); err != broken {
		t.Errorf("the work of a process that is alone ends with %v", err)
	}
}

// at is a clock on which any time has passed.
type at int64

func (c at) Now() time.Time { return time.Unix(int64(c), 0) }

func (c at) After(time.Duration) (<-chan time.Time, func()) {
	passed := make(chan time.Time, 1)
	passed <- c.Now()
	return passed, func() {}
}
