package timeline

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/trace"
)

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func TestChart(t *testing.T) {
	compute := trace.Worker{Lane: trace.Compute}
	spans := []trace.Span{
		{Worker: trace.Worker{Lane: trace.Fetch}, Name: "fetch a", Step: 2, Start: ms(100), End: ms(118)},
		{Worker: compute, Name: "forward a", Step: 1, Start: ms(0), End: ms(100)}, // of another step
		{Worker: compute, Name: "forward a micro-batch 0", Step: 2, Start: ms(118), End: ms(136)},
		{Worker: compute, Name: "something else", Step: 2, Start: ms(136), End: ms(154)},
		{Worker: compute, Name: "backward a", Step: 2, Start: ms(155), End: ms(170)},
		{Worker: trace.Worker{Lane: trace.Drain}, Name: "drain a", Step: 2, Start: ms(169), End: ms(169)},
	}
	s, err := Of(&trace.Trace{Spans: spans}, 2)
	if err != nil {
		t.Fatal(err)
	}
	dots := func(n int) string { return strings.Repeat(".", n) }
	want := []string{
		"fetch   " + strings.Repeat("W", 18) + dots(52),
		"compute " + dots(18) + strings.Repeat("F", 18) + strings.Repeat("o", 18) + "." + strings.Repeat("B", 15),
	}
	if diff := cmp.Diff(want, s.Chart()); diff != "" {
		t.Error(diff)
	}
}

func TestStepOf(t *testing.T) {
	work := func(lane trace.Lane, step int64, start, end int) trace.Span {
		of := trace.Worker{Lane: lane}
		return trace.Span{Worker: of, Name: "forward a", Step: step, Start: ms(start), End: ms(end)}
	}
	two := []trace.Span{work(trace.Fetch, 1, 0, 10), work(trace.Compute, 1, 5, 20), work(trace.Compute, 2, 20, 50)}
	for name, c := range map[string]struct {
		spans     []trace.Span
		forgotten [trace.NumLanes]int64
		number    int64

		step   int64
		length int
		torn   bool
		err    string
	}{
		"the last one":      {spans: two, step: 2, length: 30},
		"by number":         {spans: two, number: 1, step: 1, length: 20},
		"updates end a run": {spans: append(two, work(trace.Update, 3, 50, 90)), step: 2, length: 30},
		"no step computes":  {spans: []trace.Span{work(trace.Update, 3, 50, 90)}, step: 3, length: 40},
		"the first is torn": {spans: two, forgotten: [trace.NumLanes]int64{trace.Compute: 5}, step: 2, length: 30},
		"a torn one by number": {spans: two, forgotten: [trace.NumLanes]int64{trace.Compute: 5}, number: 1, step: 1,
			length: 20, torn: true},
		"all are torn": {spans: two, forgotten: [trace.NumLanes]int64{trace.Drain: 5}, step: 2, length: 30,
			torn: true},
		"without a number":         {spans: append(two, work(trace.Disk, 0, 40, 90)), step: 2, length: 30},
		"empty":                    {err: "no steps"},
		"a missing step":           {spans: two, number: 7, err: "no step 7: choose one from 1 to 2"},
		"a step that took no time": {spans: []trace.Span{work(trace.Compute, 1, 5, 5)}, err: "took no time"},
		"only work without a step": {spans: []trace.Span{work(trace.Disk, 0, 5, 9)}, err: "no steps"},
		"a trace that begins late": {spans: []trace.Span{work(trace.Compute, 9, math.MaxInt32, math.MaxInt32+7)}, step: 9,
			length: 7},
		"blocks that overlap count": {spans: append(two, work(trace.Compute, 2, 25, 45)), step: 2, length: 30},
	} {
		s, err := Of(&trace.Trace{Spans: c.spans, Forgotten: c.forgotten}, c.number)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: error %v, want %q", name, err, c.err)
			}
			continue
		}
		if err != nil || s.Number != c.step || s.Length != ms(c.length) || s.Torn != c.torn {
			t.Errorf("%s: %+v, %v", name, s, err)
			continue
		}
		for _, row := range s.Rows {
			if busy := row.Busy(); busy < 0 || busy > s.Length {
				t.Errorf("%s: %v is busy for %v of %v", name, row.Worker, busy, s.Length)
			}
		}
	}
	s, err := Of(&trace.Trace{Spans: append(two, work(trace.Disk, 0, 40, 90))}, 2)
	if err != nil {
		t.Fatal(err)
	}
	if want := (trace.Lanes{trace.Compute: 0.030, trace.Disk: 0.010}); s.BusyLanes() != want {
		t.Errorf("busy %+v, want %+v", s.BusyLanes(), want)
	}
}
