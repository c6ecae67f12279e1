package console

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/terminal"
)

// Text of a file or a user cannot move the cursor: a line stays one line.
func TestSay(t *testing.T) {
	var said strings.Builder
	Out{Writer: &said}.Say("%s: %d rows", "a\x1b[2Jb\rc", 3)
	if text := said.String(); strings.ContainsAny(text, "\x1b\r") || !strings.HasSuffix(text, ": 3 rows\n") || strings.Count(text, "\n") != 1 {
		t.Errorf("%q", text)
	}
}

// A bar that was never drawn has nothing to remove.
func TestBarThatIsNotDrawn(t *testing.T) {
	var said strings.Builder
	b := Out{Writer: &said, Terminal: true}.Bar("reading")
	b.Set(1, 0) // of nothing
	b.End()
	if said.Len() > 0 {
		t.Errorf("%q", said.String())
	}
}

// A bar for what comes often has a line at each interval, which says where it is.
func TestSlowBar(t *testing.T) {
	var said strings.Builder
	now := time.Unix(1e9, 0)
	b := Out{Writer: &said, Now: func() time.Time { return now }}.SlowBar("step 3/9", 2*time.Minute)
	for range 10 {
		now = now.Add(30 * time.Second)
		b.Show(now.Sub(time.Unix(1e9, 0)).Minutes()/10, "layer 7")
	}
	b.End()
	const want = "step 3/9: 20%, 8m00s left: layer 7\nstep 3/9: 40%, 6m00s left: layer 7\n"
	if said.String() != want {
		t.Errorf("%q, want %q", said.String(), want)
	}
}

// A line shows after a while, on a terminal alone, and leaves nothing there.
func TestLine(t *testing.T) {
	for on, want := range map[bool]string{false: "", true: terminal.EraseLine + "plan: 3 tried" + terminal.EraseLine +
		"plan: 5 tried" + terminal.EraseLine} {
		var said strings.Builder
		now := time.Unix(1e9, 0)
		l := Out{Writer: &said, Terminal: on, Now: func() time.Time { return now }}.Line("plan")
		for n, ms := range []time.Duration{0, 1000, 900, 1000, 50, 1000} {
			now = now.Add(ms * time.Millisecond)
			l.Show(fmt.Sprint(n, " tried"))
		}
		l.End()
		if said.String() != want {
			t.Errorf("%q, want %q", said.String(), want)
		}
	}
}

func TestSeconds(t *testing.T) {
	for want, s := range map[string]float64{"0.0s": 0, "4.2s": 4.2, "3m20s": 200, "1h02m": 3720, "30h00m": 108000} {
		if got := Seconds(s); got != want {
			t.Errorf("%v: %q, want %q", s, got, want)
		}
	}
}

func TestOneLine(t *testing.T) {
	if got := OneLine(errors.Join(errors.New("a"), errors.New("b"))); got != "a; b" {
		t.Errorf("%q", got)
	}
}
