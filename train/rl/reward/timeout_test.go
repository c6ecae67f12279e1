package reward

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/runfile"
)

func optimGiven(x float64) optim.Setting { return optim.Given(x) }

// silent is an alarm that never rings.
type silent struct{}

func never(time.Duration) alarm        { return silent{} }
func (silent) rings() <-chan time.Time { return nil }
func (silent) start()                  {}
func (silent) stop()                   {}

// atOnce is an alarm that rings when it is started.
type atOnce struct{ ring chan time.Time }

func (a atOnce) rings() <-chan time.Time { return a.ring }
func (a atOnce) start() {
	select {
	case a.ring <- time.Time{}:
	default:
	}
}
func (a atOnce) stop() {
	select {
	case <-a.ring:
	default:
	}
}

// A process that hangs is ended and started again, and its answers have no reward; ten of them end the panel.
func TestHangs(t *testing.T) {
	o := Options{after: func(time.Duration) alarm { return atOnce{make(chan time.Time, 1)} }}
	spec := []runfile.Reward{{Name: "a", Command: played("hang"), Timeout: runfile.Wait(7 * time.Second)}}
	r, err := judged(t, spec, o, "a", "b", "c")
	if err != nil {
		t.Fatal(err)
	}
	if rewards(r) != "NaN NaN NaN" || counts(r.Tallies[0]) != "3 timed_out" || r.Tallies[0].Restarts < 2 {
		t.Errorf("%s; %s; %d restarts", rewards(r), counts(r.Tallies[0]), r.Tallies[0].Restarts)
	}
	_, err = judged(t, spec, o, strings.Split("abcdefghij", "")...)
	if err == nil || !strings.HasSuffix(err.Error(), "of the last one nothing was heard in 7s") {
		t.Error(err)
	}
}
