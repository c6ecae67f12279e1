package timeline

import (
	"slices"
	"time"
)

// Document is a step for programs, such as the page of millrace serve. Times are seconds since its beginning.
type Document struct {
	Step      int64          `json:"step"`
	Simulated bool           `json:"simulated"` // nothing ran
	Torn      bool           `json:"torn"`      // the trace lacks its beginning
	Seconds   float64        `json:"seconds"`
	Lanes     []DocumentLane `json:"lanes"` // those that have spans
}

// DocumentLane is a worker of a step.
type DocumentLane struct {
	Name    string             `json:"name"`
	Spans   []DocumentSpan     `json:"spans"`
	Busy    float64            `json:"busy"`
	Waiting map[string]float64 `json:"waiting"` // seconds without work before spans, by the lane that they waited for
}

// DocumentSpan is an operation, or several of one lane that are too short to be told apart.
type DocumentSpan struct {
	From float64 `json:"from"`
	To   float64 `json:"to"`
	What string  `json:"what"`
	// WaitsFor is the lane whose work ended last in the idle time of this one before the span. It is nil where there was
	// no such time, or where no work ended in it.
	WaitsFor *string `json:"waits_for"`
}

// Document returns the step with at most about spans of each lane: shorter ones are joined with their neighbours. The
// lane that another one waited for is found in the times alone, in the same way for a step that was measured and for
// one that was simulated, so that the two can be compared.
func (s *Step) Document(spans int) *Document {
	d := &Document{Step: s.Number, Simulated: s.Simulated, Torn: s.Torn, Seconds: s.Length.Seconds(),
		Lanes: []DocumentLane{}}
	ends := make([][]time.Duration, len(s.Rows))
	for i, row := range s.Rows {
		for _, b := range row.Blocks {
			ends[i] = append(ends[i], b.End)
		}
		slices.Sort(ends[i])
	}
	for i, row := range s.Rows {
		if len(row.Blocks) == 0 {
			continue
		}
		lane := DocumentLane{Name: row.Worker.String(), Spans: []DocumentSpan{}, Busy: row.Busy().Seconds(),
			Waiting: map[string]float64{}}
		end := time.Duration(0) // of the blocks so far
		for _, b := range row.Blocks {
			span := DocumentSpan{From: b.Begin.Seconds(), To: b.End.Seconds(), What: b.Name}
			if of := s.awaited(ends, i, end, b.Begin); of >= 0 {
				name := s.Rows[of].Worker.String()
				span.WaitsFor = &name
				lane.Waiting[name] += (b.Begin - end).Seconds()
			}
			end = max(end, b.End)
			lane.add(span, s.Length.Seconds()/float64(max(spans, 1)))
		}
		d.Lanes = append(d.Lanes, lane)
	}
	return d
}

// awaited is the row whose work ended last in a time in which another row had none; -1 if no row's did.
func (s *Step) awaited(ends [][]time.Duration, row int, from, to time.Duration) int {
	found, latest := -1, from
	for i := range s.Rows {
		if i == row {
			continue
		}
		after, _ := slices.BinarySearch(ends[i], to+1)
		if after > 0 && ends[i][after-1] > latest {
			found, latest = i, ends[i][after-1]
		}
	}
	return found
}

// add adds a span, or makes the one before longer: where both together are shorter than the least seconds, or have one
// name and no time between them.
func (l *DocumentLane) add(span DocumentSpan, leastSec float64) {
	if n := len(l.Spans); n > 0 {
		before := &l.Spans[n-1]
		isOne := span.What == before.What && span.From <= before.To
		if isOne || max(span.To, before.To)-before.From < leastSec {
			before.To = max(span.To, before.To)
			return
		}
	}
	l.Spans = append(l.Spans, span)
}
