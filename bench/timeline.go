package bench

import (
	"strings"
	"time"

	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/trace"
)

// timeline is the plan.Chart of the spans of a step.
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
	marks := map[string]byte{} // by the first word of spans
	for k := range plan.Kind(plan.Kinds) {
		marks[k.String()] = k.Mark()
	}
	c := plan.NewChart((end - begin).Seconds())
	for _, s := range spans {
		if s.Step == step {
			word, _, _ := strings.Cut(s.Name, " ")
			c.Add(s.Lane, marks[word], (s.Start - begin).Seconds(), (s.End - begin).Seconds())
		}
	}
	return c.Lines()
}
