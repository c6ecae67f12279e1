package plan

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/trace"
)

// Words that name what the disk does in traces.
const (
	ReadWord  = "read"
	WriteWord = "write"
)

// Trace is a simulated steady step, with the number 1. A span lasts as long as the operation works, also where other
// lanes slow it down. In a step with more than 32 micro-batches, a span stands for several of them.
func (p *Plan) Trace(m Machine, dev device.Info, about trace.About) *trace.Trace {
	about.Simulated, about.Tokens = true, int64(p.Whole.StepPositions())
	t := &trace.Trace{About: about}
	groups := p.Numerics.groupMicros(simulatedMicros)
	type latest struct { // of a worker
		op   *Op
		mark byte
		at   int // in spans
	}
	crew := p.Crew()
	workers := len(crew.Workers())
	ends, spans := make([]latest, workers), make([][]trace.Span, workers)
	p.walk(m, dev, walking{micros: simulatedMicros, see: func(s interval) {
		begin, end := simulatedTime(s.begin), simulatedTime(s.until)
		w := crew.Index(s.Worker)
		l := &ends[w]
		if l.op == s.op && l.mark == s.mark && spans[w][l.at].End == begin {
			spans[w][l.at].End = end // its share has changed since, and it has not ended
			return
		}
		if end == begin {
			return
		}
		name := p.describeGroup(s.op, groups)
		switch s.mark {
		case readMark:
			name = ReadWord + " for " + name
		case writeMark:
			name = WriteWord + " for " + name
		}
		*l = latest{s.op, s.mark, len(spans[w])}
		spans[w] = append(spans[w], trace.Span{Worker: s.Worker, Name: name, Step: 1, Start: begin, End: end})
	}})
	for _, of := range spans {
		t.Spans = append(t.Spans, of...)
	}
	return t
}

// describeGroup names an operation whose micro-batch is a group of them.
func (p *Plan) describeGroup(op *Op, g microGroups) string {
	if op.Micro < 0 || g.size == 1 {
		return p.Describe(op)
	}
	first, micros := g.span(op.Micro)
	first += op.Micro / g.each * p.Numerics.CohortMicros() // of its cohort
	named := *op
	named.Micro = none
	return fmt.Sprintf("%s micro-batches %d to %d", p.Describe(&named), first, first+micros-1)
}

func simulatedTime(sec float64) time.Duration { return time.Duration(sec * 1e9) }
