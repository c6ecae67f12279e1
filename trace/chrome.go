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

// WriteChrome writes the remembered spans in the Chrome trace format, one track per lane.
func (r *Recorder) WriteChrome(w io.Writer) error {
	spans, forgotten := r.Spans()
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
	for l := range NumLanes {
		comma()
		write(chromeEvent{Name: "thread_name", Phase: "M", TID: int(l) + 1, Args: map[string]any{"name": l.String()}})
		comma()
		write(chromeEvent{Name: "thread_sort_index", Phase: "M", TID: int(l) + 1, Args: map[string]any{"sort_index": int(l)}})
	}
	for _, s := range spans {
		start, length := micros(s.Start), micros(s.End-s.Start)
		comma()
		write(chromeEvent{Name: s.Name, Phase: "X", TID: int(s.Lane) + 1, TS: &start, Dur: &length,
			Args: map[string]any{"step": s.Step}})
	}
	out.WriteString("],\"otherData\":")
	if err == nil {
		err = encoder.Encode(map[string]int64{"forgotten_spans": forgotten})
	}
	out.WriteString("}\n")
	if err != nil {
		return err
	}
	return out.Flush()
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
