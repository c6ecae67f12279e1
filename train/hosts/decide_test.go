package hosts

import (
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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
