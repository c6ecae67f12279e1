package trace

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// maxTraceBytes is four times the longest trace that a run writes.
const maxTraceBytes = 256 << 20

// maxMicros bounds the times of a trace that is read: three years. Sums of two then fit a time.Duration.
const maxMicros = 1e14

// ReadChrome reads the file that [Trace.WriteChrome] writes. Any other content is an error, and so is a file above
// 256 MiB.
func ReadChrome(r io.Reader) (*Trace, error) { return readChrome(r, maxTraceBytes) }

func readChrome(r io.Reader, maxBytes int64) (*Trace, error) {
	limited := &io.LimitedReader{R: r, N: maxBytes + 1}
	c := &chromeReader{json: json.NewDecoder(limited), tracks: map[int]Worker{}, names: map[string]string{}}
	err := c.file()
	if limited.N <= 0 {
		return nil, fmt.Errorf("is larger than %d MiB, above any trace that millrace writes: use a shorter one",
			maxBytes>>20)
	}
	if err != nil {
		return nil, notATrace(err, c.json.InputOffset())
	}
	return &c.trace, nil
}

// notATrace words an error of the content, near a byte of the file; an error of the disk stays as it is.
func notATrace(err error, at int64) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	var content contentError
	var why string
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		why = "it ends too early"
	case errors.As(err, &syntax):
		why = fmt.Sprintf("it is not JSON near byte %d", at)
	case errors.As(err, &kind):
		why = fmt.Sprintf("near byte %d, %s is a %s", at, cmp.Or(kind.Field, "an event"), kind.Value)
	case errors.As(err, &content):
		why = err.Error()
	default:
		return err
	}
	return fmt.Errorf("is not a trace that millrace wrote: %s; write one with `bench --trace` or `train --trace`", why)
}

// contentError is about JSON that is not a trace.
type contentError string

func (e contentError) Error() string { return string(e) }

// chromeReader reads one file.
type chromeReader struct {
	json   *json.Decoder
	trace  Trace
	tracks map[int]Worker
	names  map[string]string // of spans, each once
	event  int               // the number of the event that is being read, from 1
}

func (c *chromeReader) file() error {
	if err := c.expect('{', "the file"); err != nil {
		return err
	}
	for c.json.More() {
		key, err := c.json.Token()
		if err != nil {
			return err
		}
		switch key {
		case "traceEvents":
			err = c.events()
		case "otherData":
			err = c.other()
		default:
			var skipped json.RawMessage
			err = c.json.Decode(&skipped)
		}
		if err != nil {
			return err
		}
	}
	if _, err := c.json.Token(); err != nil {
		return err
	}
	if c.event == 0 {
		return contentError("it has no events")
	}
	if _, err := c.json.Token(); !errors.Is(err, io.EOF) {
		return contentError("something comes after its end")
	}
	return nil
}

// expect reads the opening of an object or a list.
func (c *chromeReader) expect(open json.Delim, what string) error {
	got, err := c.json.Token()
	if err == nil && got != open {
		return contentError(fmt.Sprintf("%s does not begin with %v", what, open))
	}
	return err
}

func (c *chromeReader) events() error {
	if err := c.expect('[', "traceEvents"); err != nil {
		return err
	}
	for c.json.More() {
		c.event++
		var e chromeEvent
		if err := c.json.Decode(&e); err != nil {
			return err
		}
		if err := c.take(&e); err != nil {
			return contentError(fmt.Sprintf("event %d %v", c.event, err))
		}
	}
	_, err := c.json.Token()
	return err
}

// take keeps an event if it is a span or names a lane. It ignores other events, which newer versions may write.
func (c *chromeReader) take(e *chromeEvent) error {
	switch {
	case e.Phase == "M" && e.Name == "thread_name":
		name, _ := e.Args["name"].(string)
		w, ok := namedWorker(name)
		if !ok {
			return errors.New("names a track that is not a lane")
		}
		c.tracks[e.TID] = w
		return nil
	case e.Phase != "X":
		return nil
	}
	on, ok := c.tracks[e.TID]
	switch {
	case !ok:
		return errors.New("is on a track without a name")
	case e.TS == nil || !isTime(*e.TS):
		return errors.New("has no time (ts) from 0 to 1e14 microseconds")
	case e.Dur == nil || !isTime(*e.Dur):
		return errors.New("has no length (dur) from 0 to 1e14 microseconds")
	}
	step, _ := e.Args["step"].(float64)
	if step != math.Trunc(step) || step < 0 || step > 1<<53 {
		return errors.New("has a step that is not a whole number")
	}
	name, ok := c.names[e.Name]
	if !ok {
		name, c.names[e.Name] = e.Name, e.Name
	}
	start := nanos(*e.TS)
	c.trace.Spans = append(c.trace.Spans, Span{on, name, int64(step), start, start + nanos(*e.Dur)})
	return nil
}

func (c *chromeReader) other() error {
	var o chromeOther
	if err := c.json.Decode(&o); err != nil {
		return err
	}
	if o.Tokens < 0 {
		return contentError("tokens are negative")
	}
	c.trace.About = o.About
	for l := range NumLanes {
		n := o.ForgottenOf[l.String()]
		if n < 0 || n > math.MaxInt64/int64(NumLanes) {
			return contentError("forgotten_of is not a number of spans")
		}
		c.trace.Forgotten[l] = n
	}
	return nil
}

func isTime(micros float64) bool { return micros >= 0 && micros <= maxMicros }

func nanos(micros float64) time.Duration { return time.Duration(math.Round(micros * 1e3)) }
