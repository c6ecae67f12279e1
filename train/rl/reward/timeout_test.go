package reward

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/runfile"
)

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

// thinker is a process that judges a line after the other, each in the time that its completion names.
type thinker struct {
	t     *testing.T
	lines chan []byte
	got   chan written
	quit  chan struct{}
}

func startThinker(t *testing.T) starter {
	return func(program) (child, error) {
		c := &thinker{t, make(chan []byte, window), make(chan written), make(chan struct{})}
		go c.think()
		return c, nil
	}
}

func (c *thinker) think() {
	for {
		var a asked
		select {
		case line := <-c.lines:
			if err := json.Unmarshal(line, &a); err != nil {
				c.t.Error(err)
			}
		case <-c.quit:
			return
		}
		pause, err := time.ParseDuration(a.Completion)
		if err != nil {
			c.t.Error(err)
		}
		select {
		case <-time.After(pause):
		case <-c.quit:
			return
		}
		select {
		case c.got <- written{line: fmt.Appendf(nil, `{"id": %d, "reward": %v}`, a.ID, pause.Seconds())}:
		case <-c.quit:
			return
		}
	}
}

func (c *thinker) give(line []byte) {
	select {
	case c.lines <- line:
	default:
		c.t.Error("more lines than the window has")
	}
}

func (c *thinker) wrote() <-chan written { return c.got }
func (c *thinker) said() string          { return "" }
func (c *thinker) end()                  { close(c.quit) }

// The time of a line begins when the process has no earlier one to judge. One that takes too long costs its own reward,
// and the time of the wait for it: twice, the second time by itself.
func TestSlow(t *testing.T) {
	for _, c := range []struct {
		completions, rewards, says string
		workers, seconds           int
	}{
		{strings.Repeat("29s ", 20), strings.Repeat("29 ", 20), "20 scored", 1, 20 * 29},
		{strings.Repeat("29s ", 20), strings.Repeat("29 ", 20), "20 scored", 4, 5 * 29},
		{"1s 2s 1h 3s 4s", "1 2 NaN 3 4", "4 scored, 1 timed_out", 1, 1 + 2 + 30 + 30 + 3 + 4},
		{"1h 1s 31s 2s", "NaN 1 NaN 2", "2 scored, 2 timed_out", 1, 30 + 30 + 1 + 30 + 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			p, err := Open(t.Context(), []runfile.Reward{{Name: "a", Command: played("x"), Workers: c.workers}},
				Options{start: startThinker(t)})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			began := time.Now()
			for i, completion := range strings.Fields(c.completions) {
				if err := p.Judge(Answer{ID: int64(i), Completion: completion}); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			r, err := p.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if rewards(r) != strings.TrimSpace(c.rewards) || counts(r.Tallies[0]) != c.says {
				t.Errorf("%s; %s", rewards(r), counts(r.Tallies[0]))
			}
			want := float64(c.seconds)
			if got := time.Since(began).Seconds(); got != want || r.WaitSec != want || r.Tallies[0].BusySec != want {
				t.Errorf("%s took %v s, waited %v s, %+v", c.completions, got, r.WaitSec, r.Tallies[0])
			}
		})
	}
}

// A program that does not start has no rewards.
func TestDoesNotStart(t *testing.T) {
	o := Options{start: func(program) (child, error) { return nil, errors.New("no memory") }}
	spec := []runfile.Reward{{Name: "a", Command: played("x")}}
	if r, err := judged(t, spec, o, "a", "b"); err != nil || counts(r.Tallies[0]) != "2 exited" {
		t.Error(r, err)
	}
	if _, err := judged(t, spec, o, strings.Split("abcdefghij", "")...); err == nil ||
		!strings.HasSuffix(err.Error(), "of the last one the program does not start: no memory") {
		t.Error(err)
	}
}
