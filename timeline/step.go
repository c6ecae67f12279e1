// Package timeline shows what each lane did in a step of a trace: how long it was busy, a chart for terminals, and a
// picture.
//
//   - [Of] takes a [Step] from a trace.Trace, measured or simulated.
//   - [Step.Chart] draws it with letters, [Step.SVG] as a picture in a [Theme].
//
// Invariants: the same trace gives the same bytes on every machine. A picture is at most [MaxSVGBytes] long, and
// well-formed XML whatever names a trace has.
package timeline

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/trace"
)

// Step is a step of a trace.
type Step struct {
	trace.About
	Number int64 // of the optimizer's steps; of a simulation 1
	Torn   bool  // the trace lacks the beginning of the step
	Length time.Duration
	Rows   []Row
}

// Row has what a worker did.
type Row struct {
	trace.Worker
	Blocks []Block // in the order in which they begin
}

// Block is an operation on a lane.
type Block struct {
	Name       string
	Mark       byte          // of plan.MarkOf
	Begin, End time.Duration // since the beginning of the step
}

// Of is the step of a trace with that number; 0 takes the last step that computes and is whole, or else the last one
// that computes. A lane may have spans of no step (0): those that overlap with the step are a part of it. A trace
// without that step, and a step that took no time, are errors.
func Of(t *trace.Trace, number int64) (*Step, error) {
	numbers, computes := steps(t)
	whole := firstWhole(t)
	switch {
	case len(numbers) == 0:
		return nil, errors.New("the trace has no steps: write a trace of a run that trains at least one step")
	case number == 0:
		number = lastWhole(numbers, computes, whole)
	case !slices.Contains(numbers, number):
		return nil, fmt.Errorf("the trace has no step %d: choose one from %d to %d",
			number, numbers[0], numbers[len(numbers)-1])
	}
	s := &Step{About: t.About, Number: number, Torn: number < whole}
	begin, end := time.Duration(math.MaxInt64), time.Duration(0)
	for _, span := range t.Spans {
		if span.Step == number {
			begin, end = min(begin, span.Start), max(end, span.End)
		}
	}
	if s.Length = end - begin; s.Length <= 0 {
		return nil, fmt.Errorf("step %d of the trace took no time: choose another with --step", number)
	}
	crew := t.Crew()
	for _, of := range crew.Workers() {
		s.Rows = append(s.Rows, Row{Worker: of})
	}
	for _, span := range t.Spans {
		if span.Step == number || span.Step == 0 && span.Start < end && span.End > begin {
			row := &s.Rows[crew.Index(span.Worker)]
			row.Blocks = append(row.Blocks, Block{span.Name, plan.MarkOf(span.Name),
				max(span.Start-begin, 0), min(span.End-begin, s.Length)})
		}
	}
	for _, row := range s.Rows {
		slices.SortStableFunc(row.Blocks, func(a, b Block) int { return cmp.Compare(a.Begin, b.Begin) })
	}
	return s, nil
}

// steps are the numbers of the trace's steps, in order, and which of them compute. A run ends with updates alone, and
// they have the number of a step.
func steps(t *trace.Trace) (numbers []int64, computes map[int64]bool) {
	computes = map[int64]bool{}
	for _, span := range t.Spans {
		if span.Step == 0 {
			continue
		}
		if _, seen := computes[span.Step]; !seen {
			numbers = append(numbers, span.Step)
		}
		computes[span.Step] = computes[span.Step] || span.Lane == trace.Compute && span.End > span.Start
	}
	slices.Sort(numbers)
	return numbers, computes
}

// firstWhole is the first step of which the trace has all spans: a lane forgets its oldest ones.
func firstWhole(t *trace.Trace) int64 {
	var oldest [trace.NumLanes]int64 // of any device
	for _, span := range t.Spans {
		if at := &oldest[span.Lane]; span.Step != 0 && (*at == 0 || span.Step < *at) {
			*at = span.Step
		}
	}
	first := int64(0)
	for lane, forgotten := range t.Forgotten {
		switch {
		case forgotten == 0:
		case oldest[lane] == 0:
			return math.MaxInt64
		default:
			first = max(first, oldest[lane]+1)
		}
	}
	return first
}

// lastWhole is the last of the numbers that computes and is whole, or else the last that computes, or else the last.
func lastWhole(numbers []int64, computes map[int64]bool, whole int64) int64 {
	last := int64(0)
	for _, number := range numbers {
		if computes[number] {
			last = number
		}
	}
	for _, number := range slices.Backward(numbers) {
		if computes[number] && number >= whole {
			return number
		}
	}
	return cmp.Or(last, numbers[len(numbers)-1])
}

// Busy sums the time of a row's blocks; time in which two blocks overlap counts once.
func (r *Row) Busy() (busy time.Duration) {
	end := time.Duration(0)
	for _, b := range r.Blocks {
		busy += max(b.End-max(b.Begin, end), 0)
		end = max(end, b.End)
	}
	return busy
}

// BusyLanes are the busy seconds of each lane, of several devices' those of the busiest.
func (s *Step) BusyLanes() trace.Lanes {
	var sec trace.Lanes
	for i := range s.Rows {
		sec[s.Rows[i].Lane] = max(sec[s.Rows[i].Lane], s.Rows[i].Busy().Seconds())
	}
	return sec
}

// Chart is the plan.Chart of the step.
func (s *Step) Chart() []string {
	c := plan.NewChart(s.Length.Seconds())
	for _, row := range s.Rows {
		for _, b := range row.Blocks {
			c.Add(row.Worker, b.Mark, b.Begin.Seconds(), b.End.Seconds())
		}
	}
	return c.Lines()
}
