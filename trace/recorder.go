// Package trace records what a run did and when: spans of the lanes, for people who look for idle time, and one record
// of metrics per step.
//
// A [Recorder] collects [Span]s during the run, cheaply enough to be always on. A [Trace] holds them and says what was
// traced: [Trace.WriteChrome] writes a Chrome trace (it opens in ui.perfetto.dev and chrome://tracing) with one track
// per [Lane], and [ReadChrome] reads it. [Metrics] is a line of metrics.jsonl; [RecordFile] appends to such a file,
// [ReadMetrics] reads one.
//
// Invariants: recording allocates nothing and never waits for anything slow; a nil Recorder records nothing. A metrics
// file has whole lines in the order of steps. Only a crash can tear the last line; readers ignore a torn line and a
// resumed run overwrites it.
package trace

import (
	"sync"
	"time"
)

// Span is a stretch of a lane's time in which it was busy.
type Span struct {
	Worker
	// Name says the work of the span, such as "forward 12". It is kept, not copied: make it once, not per span.
	Name       string
	Step       int64
	Start, End time.Duration // since the recorder was made
}

// Recorder keeps the latest spans of each worker. It is safe for concurrent use; a nil one does nothing.
type Recorder struct {
	epoch   time.Time
	crew    Crew
	workers []Worker
	lanes   []lane // by worker
}

// lane ends in padding: lanes record at the same time, and their locks must not share a cache line.
type lane struct {
	mu    sync.Mutex
	ring  []Span
	count int64 // spans ever recorded; the latest is ring[(count-1) % len(ring)]
	busy  time.Duration
	_     [64]byte
}

// NewRecorder makes a recorder for a crew. It remembers the latest spansPerLane spans of each worker (64 bytes each); 0
// remembers none and still adds up busy time.
func NewRecorder(crew Crew, spansPerLane int) *Recorder {
	workers := crew.Workers()
	r := &Recorder{epoch: time.Now(), crew: crew, workers: workers, lanes: make([]lane, len(workers))}
	for i := range r.lanes {
		r.lanes[i].ring = make([]Span, spansPerLane)
	}
	return r
}

// Now is the time since the recorder was made, on the monotonic clock.
func (r *Recorder) Now() time.Duration {
	if r == nil {
		return 0
	}
	return time.Since(r.epoch)
}

// Record notes that a worker was busy from start to end, both from [Recorder.Now]. Spans of one worker do not overlap,
// or busy time counts twice.
func (r *Recorder) Record(w Worker, name string, step int64, start, end time.Duration) {
	if r == nil {
		return
	}
	at := &r.lanes[r.crew.Index(w)]
	at.mu.Lock()
	defer at.mu.Unlock()
	at.busy += end - start
	if n := int64(len(at.ring)); n > 0 {
		at.ring[at.count%n] = Span{w, name, step, start, end}
	}
	at.count++
}

// TakeBusy returns the seconds that each lane was busy since the last TakeBusy, or since the start; with several
// devices, also by device, and in the first result those of the device whose lane was busiest. A span counts where it
// ends: an update of step n that runs below the next forward pass is busy time of the record written next.
func (r *Recorder) TakeBusy() (Lanes, []DeviceSeconds) {
	var busy Lanes
	var devices []DeviceSeconds
	if r == nil {
		return busy, nil
	}
	for i, w := range r.workers {
		l := &r.lanes[i]
		l.mu.Lock()
		sec := l.busy.Seconds()
		l.busy = 0
		l.mu.Unlock()
		busy[w.Lane] = max(busy[w.Lane], sec)
		if r.crew.Ranks > 1 {
			devices = add(devices, w, sec)
		}
	}
	return busy, devices
}

// spans are the spans that are remembered, by lane and in the order of recording, and the number of older ones of each
// lane that are not.
func (r *Recorder) spans() (spans []Span, forgotten [NumLanes]int64) {
	if r == nil {
		return nil, forgotten
	}
	for i := range r.lanes {
		l := &r.lanes[i]
		l.mu.Lock()
		n := int64(len(l.ring))
		first := max(l.count-n, 0)
		for at := first; at < l.count; at++ {
			spans = append(spans, l.ring[at%n])
		}
		forgotten[r.workers[i].Lane] += first
		l.mu.Unlock()
	}
	return spans, forgotten
}
