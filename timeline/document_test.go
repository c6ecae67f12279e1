package timeline_test

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/millrace/millrace/timeline"
	"github.com/millrace/millrace/trace"
)

// A lane that was idle before a span waited for the lane whose work ended last in that time. Busy and waiting seconds
// are those of all spans, also where spans that are too short to be told apart are joined.
func TestDocument(t *testing.T) {
	ms := func(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }
	tr := &trace.Trace{About: trace.About{Simulated: true}}
	add := func(w trace.Worker, name string, from, to float64) {
		tr.Spans = append(tr.Spans, trace.Span{Worker: w, Name: name, Step: 1, Start: ms(from), End: ms(to)})
	}
	add(trace.Fetch.Of(0), "fetch layer 0", 0, 30)
	add(trace.Update.Of(0), "update layer 1", 0, 60)
	add(trace.Compute.Of(0), "forward layer 0", 30, 50)
	add(trace.Compute.Of(0), "forward layer 1", 60, 80)
	add(trace.Compute.Of(0), "forward layer 1", 80, 90) // of the next micro-batch
	add(trace.Drain.Of(0), "save layer 0", 70, 71)
	add(trace.Fetch.Of(0), "fetch layer 1", 92, 99)
	add(trace.Update.Of(0), "update layer 2", 91, 95)
	for i := range 1000 {
		add(trace.Compute.Of(0), fmt.Sprint("backward layer ", i), 100+0.1*float64(i), 100+0.1*float64(i)+0.05)
	}
	step, err := timeline.Of(tr, 0)
	if err != nil {
		t.Fatal(err)
	}
	d := step.Document(50)
	if d.Step != 1 || !d.Simulated || d.Torn || math.Abs(d.Seconds-0.19995) > 1e-9 || len(d.Lanes) != 4 {
		t.Fatalf("%+v", d)
	}
	lanes := map[string]timeline.DocumentLane{}
	for _, l := range d.Lanes {
		lanes[l.Name] = l
	}
	compute := lanes["compute"]
	waits := func(i int) string {
		if compute.Spans[i].WaitsFor == nil {
			return ""
		}
		return *compute.Spans[i].WaitsFor
	}
	if waits(0) != "fetch" || waits(1) != "update" || compute.Spans[1].To != 0.09 ||
		compute.Spans[1].What != "forward layer 1" {
		t.Errorf("%+v", compute.Spans[:2])
	}
	if n := len(compute.Spans); n < 20 || n > 60 || compute.Spans[n-1].To != d.Seconds {
		t.Errorf("%d spans, to %g", n, compute.Spans[n-1].To)
	}
	if math.Abs(compute.Busy-0.1) > 1e-6 || math.Abs(compute.Waiting["fetch"]-0.04) > 1e-9 ||
		math.Abs(compute.Waiting["update"]-0.01) > 1e-9 || len(compute.Waiting) != 2 {
		t.Errorf("busy %g, waiting %v", compute.Busy, compute.Waiting)
	}
	if drain := lanes["drain"]; *drain.Spans[0].WaitsFor != "update" {
		t.Errorf("%+v", drain)
	}
	again := step.Document(50)
	one, err1 := json.Marshal(d)
	two, err2 := json.Marshal(again)
	if err1 != nil || err2 != nil || string(one) != string(two) {
		t.Errorf("two documents of a step differ: %v %v", err1, err2)
	}
}
