package train

import (
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/trace"
)

// timelineColumns is the width of a timeline: that of plan.Timeline.
const timelineColumns = 72

// timelineMarks are what operations look like, by the first word of their spans; all others are an o. They are those of
// plan.Timeline, whose legend is printed below both.
var timelineMarks = func() map[string]byte {
	marks := map[string]byte{}
	for mark, kinds := range map[byte][]plan.Kind{
		'U': {plan.Update}, 'e': {plan.Gather, plan.Scatter}, 'W': {plan.Fetch, plan.FetchState, plan.Home}, 'x': {plan.Load, plan.Save, plan.DrainInput}, 'a': {plan.SaveKept, plan.LoadKept},
		'F': {plan.Forward}, 'B': {plan.Backward}, 'G': {plan.Drain, plan.DrainSum}, 'g': {plan.ZeroGrad, plan.Round},
		'H': {plan.HeadNorm, plan.HeadStats, plan.HeadLoss, plan.HeadLogits, plan.HeadGrad, plan.HeadVisit, plan.HeadInput},
		'w': {plan.SaveState},
	} {
		for _, kind := range kinds {
			marks[kind.String()] = mark
		}
	}
	return marks
}()

// timeline draws the spans of a step, a line for each lane that has any, over time from left to right: in each column what took
// most of it, a colon where the lane was busy for less than half, a dot where it was idle.
func timeline(spans []trace.Span, step int64) []string {
	var begin, end time.Duration
	some := false
	for _, s := range spans {
		if s.Step != step {
			continue
		}
		if !some || s.Start < begin {
			begin = s.Start
		}
		end, some = max(end, s.End), true
	}
	column := float64(end-begin) / timelineColumns
	if !(column > 0) {
		return nil
	}
	var lines []string
	for lane := range trace.NumLanes {
		var took [timelineColumns]map[byte]float64
		used := false
		for _, s := range spans {
			if s.Step != step || s.Lane != lane || s.End <= s.Start {
				continue
			}
			used = true
			word, _, _ := strings.Cut(s.Name, " ")
			mark := timelineMarks[word]
			if mark == 0 {
				mark = 'o'
			}
			from, to := float64(s.Start-begin)/column, float64(s.End-begin)/column
			for c := int(from); c < timelineColumns && float64(c) < to; c++ {
				if took[c] == nil {
					took[c] = map[byte]float64{}
				}
				took[c][mark] += min(to, float64(c+1)) - max(from, float64(c))
			}
		}
		if !used {
			continue
		}
		line := make([]byte, timelineColumns)
		for c, of := range took {
			line[c] = columnMark(of)
		}
		lines = append(lines, fmt.Sprintf("%-7s %s", lane, line))
	}
	return lines
}

// columnMark is what a column shows, from the shares of it that each mark took.
func columnMark(shares map[byte]float64) byte {
	busy, best, most := 0.0, byte('.'), 0.0
	for mark, share := range shares {
		busy += share
		if share > most || share == most && mark < best {
			best, most = mark, share
		}
	}
	switch {
	case busy < 0.02:
		return '.'
	case busy < 0.5:
		return ':'
	}
	return best
}
