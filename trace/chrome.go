package trace

import (
	"bufio"
	"encoding/json"
	"io"
	"time"
)

// chromeEvent is an event of the Chrome trace format: "X" is a complete span, "M" names a process or a track.
// Source: "Trace Event Format", Chromium project.
type chromeEvent struct {
	Name  string         `json:"name"`
	Phase string         `json:"ph"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	TS    *float64       `json:"ts,omitempty"`  // microseconds
	Dur   *float64       `json:"dur,omitempty"` // microseconds
	Args  map[string]any `json:"args,omitempty"`
}

// chromeOther has the fields that the format leaves to programs.
type chromeOther struct {
	About
	ForgottenSpans int64            `json:"forgotten_spans"`
	ForgottenOf    map[string]int64 `json:"forgotten_of,omitempty"` // by lane
}

// About says what was traced.
type About struct {
	Model     string `json:"model,omitempty"`     // name, directory or shape
	Device    string `json:"device,omitempty"`    // that computed; of a simulation, the machine
	Tokens    int64  `json:"tokens,omitempty"`    // positions of a step, padding included; 0: not known
	Simulated bool   `json:"simulated,omitempty"` // nothing ran: the times are predicted
}

// Trace is the content of a Chrome trace of this program.
type Trace struct {
	About
	Spans     []Span          // by lane, and in the order of recording
	Forgotten [NumLanes]int64 // older spans of each lane that it does not hold
}

// Trace returns the spans that the recorder remembers.
func (r *Recorder) Trace(about About) *Trace {
	t := &Trace{About: about}
	t.Spans, t.Forgotten = r.spans()
	return t
}

// Crew has the workers that have spans, and those that every run has.
func (t *Trace) Crew() Crew {
	crew := Crew{Ranks: 1}
	for i := range t.Spans {
		span := &t.Spans[i]
		crew.Ranks = max(crew.Ranks, 1+span.Rank)
		if span.Lane == Exchange {
			crew.Ranks = max(crew.Ranks, 2) // with another one
		}
		crew.Network = crew.Network || span.OnNetwork()
	}
	return crew
}

// WriteChrome writes the trace in the Chrome trace format, one track per worker.
func (t *Trace) WriteChrome(w io.Writer) error {
	out := bufio.NewWriterSize(w, 1<<16)
	encoder := json.NewEncoder(out)
	var err error
	write := func(e chromeEvent) {
		if err == nil {
			e.PID = 1
			err = encoder.Encode(e)
		}
	}
	comma := func() { out.WriteByte(',') } // errors stick to a bufio.Writer and come back from Flush

	out.WriteString(`{"displayTimeUnit":"ms","traceEvents":[` + "\n")
	write(chromeEvent{Name: "process_name", Phase: "M", Args: map[string]any{"name": "millrace"}})
	crew := t.Crew()
	for i, w := range crew.Workers() {
		comma()
		write(chromeEvent{Name: "thread_name", Phase: "M", TID: i + 1, Args: map[string]any{"name": w.String()}})
		comma()
		write(chromeEvent{Name: "thread_sort_index", Phase: "M", TID: i + 1, Args: map[string]any{"sort_index": i}})
	}
	for _, s := range t.Spans {
		start, length := micros(s.Start), micros(s.End-s.Start)
		comma()
		write(chromeEvent{Name: s.Name, Phase: "X", TID: crew.Index(s.Worker) + 1, TS: &start, Dur: &length,
			Args: map[string]any{"step": s.Step}})
	}
	out.WriteString("],\"otherData\":")
	if err == nil {
		err = encoder.Encode(t.other())
	}
	out.WriteString("}\n")
	if err != nil {
		return err
	}
	return out.Flush()
}

func (t *Trace) other() chromeOther {
	o := chromeOther{About: t.About}
	for l, n := range t.Forgotten {
		if n > 0 {
			if o.ForgottenOf == nil {
				o.ForgottenOf = map[string]int64{}
			}
			o.ForgottenOf[Lane(l).String()] = n
			o.ForgottenSpans += n
		}
	}
	return o
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
