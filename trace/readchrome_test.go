package trace

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// chrome is the file of a trace.
func chrome(t interface{ Fatal(...any) }, tr *Trace) []byte {
	var b bytes.Buffer
	if err := tr.WriteChrome(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestChromeIsReadBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		times, crew := rapid.Int64Range(0, 1e15), Crew{Ranks: 3, Network: true}
		want := &Trace{About: About{Model: rapid.String().Draw(rt, "model"), Device: rapid.String().Draw(rt, "device"),
			Tokens: rapid.Int64Min(0).Draw(rt, "tokens"), Simulated: rapid.Bool().Draw(rt, "simulated")}}
		for range rapid.IntRange(0, 20).Draw(rt, "spans") {
			start := time.Duration(times.Draw(rt, "start"))
			want.Spans = append(want.Spans, Span{rapid.SampledFrom(crew.Workers()).Draw(rt, "worker"),
				rapid.String().Draw(rt, "name"), rapid.Int64Range(0, 1<<53).Draw(rt, "step"),
				start, start + time.Duration(times.Draw(rt, "length"))})
		}
		for l := range want.Forgotten {
			want.Forgotten[l] = rapid.Int64Range(0, 1<<40).Draw(rt, "forgotten")
		}
		got, err := ReadChrome(bytes.NewReader(chrome(rt, want)))
		if err != nil {
			rt.Fatal(err)
		}
		if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
			rt.Error(d)
		}
	})
}

func TestNotATrace(t *testing.T) {
	const named = `{"ph":"M","name":"thread_name","tid":1,"args":{"name":"fetch"}}`
	events := func(list string) string { return `{"traceEvents":[` + list + `]}` }
	for name, c := range map[string]struct{ text, want string }{
		"empty":             {"", "ends too early"},
		"cut":               {`{"traceEvents":[` + named + `,`, "ends too early"},
		"text":              {"step 1: loss 3", "not JSON near byte"},
		"an array":          {"[]", "the file does not begin with {"},
		"null":              {"null", "the file does not begin with {"},
		"without events":    {"{}", "no events"},
		"no list":           {`{"traceEvents":7}`, "traceEvents does not begin with ["},
		"a number":          {events("5"), "an event is a number"},
		"a text as time":    {events(`{"ts":"now"}`), "ts is a string"},
		"another program":   {events(`{"ph":"M","name":"thread_name","args":{"name":"main"}}`), "not a lane"},
		"no track":          {events(`{"ph":"X","tid":1,"ts":1,"dur":1}`), "event 1 is on a track without a name"},
		"no time":           {events(named + `,{"ph":"X","tid":1,"dur":1}`), "event 2 has no time"},
		"before the start":  {events(named + `,{"ph":"X","tid":1,"ts":-1,"dur":1}`), "event 2 has no time"},
		"a negative length": {events(named + `,{"ph":"X","tid":1,"ts":1,"dur":-1}`), "event 2 has no length"},
		"far too late":      {events(named + `,{"ph":"X","tid":1,"ts":1e300,"dur":1}`), "event 2 has no time"},
		"half a step":       {events(named + `,{"ph":"X","tid":1,"ts":1,"dur":1,"args":{"step":0.5}}`), "not a whole number"},
		"a negative step":   {events(named + `,{"ph":"X","tid":1,"ts":1,"dur":1,"args":{"step":-1}}`), "not a whole number"},
		"negative tokens":   {`{"otherData":{"tokens":-1},` + events(named)[1:], "tokens are negative"},
		"forgotten":         {`{"otherData":{"forgotten_of":{"disk":-1}},` + events(named)[1:], "forgotten_of"},
		"two files":         {events(named) + events(named), "something comes after its end"},
		"too large":         {strings.Repeat(" ", 2<<20), "is larger than 1 MiB"},
	} {
		_, err := readChrome(strings.NewReader(c.text), 1<<20)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	_, err := ReadChrome(io.MultiReader(strings.NewReader(`{"traceEvents":[`), iotest.ErrReader(os.ErrClosed)))
	if !errors.Is(err, os.ErrClosed) || strings.Contains(err.Error(), "not a trace") {
		t.Errorf("an error of the disk became %v", err)
	}
}

// A trace of a newer version may have keys and events that this one does not know.
func TestUnknownEventsAreIgnored(t *testing.T) {
	got, err := ReadChrome(strings.NewReader(`{"new":[{"a":[1]}],"traceEvents":[` +
		`{"ph":"C","name":"memory","args":{"b":2}},` +
		`{"ph":"M","name":"thread_name","tid":9,"args":{"name":"drain"}},` +
		`{"ph":"X","tid":9,"name":"drain a","ts":1.5,"dur":2}]}`))
	want := &Trace{Spans: []Span{{Worker{Lane: Drain}, "drain a", 0, 1500, 3500}}}
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Error(err, d)
	}
}
