package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

const ms = time.Millisecond

func TestRecorder(t *testing.T) {
	crew := Crew{Ranks: 2, Network: true}
	workers := crew.Workers()
	r := NewRecorder(crew, 3)
	var wg sync.WaitGroup
	for n, w := range workers {
		wg.Go(func() {
			for i := range 5 {
				r.Record(w, "work", int64(i), time.Duration(i)*10*ms, time.Duration(i)*10*ms+time.Duration(n+1)*ms)
			}
		})
	}
	wg.Wait()
	of := r.Trace(About{})
	if want := [NumLanes]int64{4, 4, 4, 2, 2, 4, 2, 2}; len(of.Spans) != 36 || of.Forgotten != want {
		t.Fatalf("%d spans, %v forgotten", len(of.Spans), of.Forgotten)
	}
	for i, s := range of.Spans {
		if s.Worker != workers[i/3] || s.Step != int64(2+i%3) {
			t.Errorf("span %d is %v", i, s)
		}
	}
	want := Lanes{0.035, 0.040, 0.045, 0.020, 0.025, 0.050, 0.055, 0.060}
	byDevice := []DeviceSeconds{{0.005, 0.010, 0.015, 0.030}, {0.035, 0.040, 0.045, 0.050}}
	lanes, devices := r.TakeBusy()
	if d := cmp.Diff(want, lanes, cmpopts.EquateApprox(0, 1e-12)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(byDevice, devices, cmpopts.EquateApprox(0, 1e-12)); d != "" {
		t.Error(d)
	}
	if got, _ := r.TakeBusy(); got != (Lanes{}) {
		t.Errorf("busy time was counted twice: %v", got)
	}
	if a, b := r.Now(), r.Now(); a < 0 || b < a {
		t.Errorf("time runs backwards: %v, %v", a, b)
	}
}

func TestNilRecorder(t *testing.T) {
	var r *Recorder
	r.Record(Worker{Lane: Fetch}, "x", 1, r.Now(), r.Now())
	busy, devices := r.TakeBusy()
	of := r.Trace(About{})
	if of.Spans != nil || of.Forgotten != [NumLanes]int64{} || busy != (Lanes{}) || devices != nil {
		t.Error("a nil recorder recorded something")
	}
}

func TestRecordDoesNotAllocate(t *testing.T) {
	for _, size := range []int{0, 100} {
		r := NewRecorder(Crew{}, size)
		if n := testing.AllocsPerRun(1000, func() {
			start := r.Now()
			r.Record(Worker{Lane: Compute}, "forward", 1, start, r.Now())
			r.TakeBusy()
		}); n != 0 {
			t.Errorf("%v allocations per span", n)
		}
	}
}

// The format's rules: an object with traceEvents; each event has a phase, a process and a track; spans have a start and
// a length; tracks are named.
func TestChrome(t *testing.T) {
	r := NewRecorder(Crew{}, 2)
	r.Record(Worker{Lane: Fetch}, "oldest", 0, 0, ms)
	r.Record(Worker{Lane: Fetch}, `fetch "3"`, 7, ms, 3*ms)
	r.Record(Worker{Lane: Fetch}, "empty", 7, 3*ms, 3*ms)
	r.Record(Worker{Lane: Disk}, "save", 8, 1500, 2*ms)
	var b bytes.Buffer
	if err := r.Trace(About{}).WriteChrome(&b); err != nil {
		t.Fatal(err)
	}
	var file struct {
		TraceEvents []map[string]any
		OtherData   map[string]any
	}
	if err := json.Unmarshal(b.Bytes(), &file); err != nil {
		t.Fatalf("%v in %s", err, b.Bytes())
	}
	tracks, spans := map[any]any{}, []map[string]any{}
	for _, e := range file.TraceEvents {
		switch {
		case e["ph"] == "M" && e["name"] == "thread_name":
			tracks[e["tid"]] = e["args"].(map[string]any)["name"]
		case e["ph"] == "X":
			if tracks[e["tid"]] == nil {
				t.Errorf("the track of %v has no name", e)
			}
			spans = append(spans, e)
		case e["ph"] != "M":
			t.Errorf("phase of %v", e)
		}
		if e["pid"] != 1.0 {
			t.Errorf("process of %v", e)
		}
	}
	if d := cmp.Diff(map[any]any{1.0: "fetch", 2.0: "compute", 3.0: "drain", 4.0: "update", 5.0: "disk"}, tracks); d != "" {
		t.Error(d)
	}
	span := func(name string, tid, ts, dur, step float64) map[string]any {
		return map[string]any{"name": name, "ph": "X", "pid": 1.0, "tid": tid, "ts": ts, "dur": dur,
			"args": map[string]any{"step": step}}
	}
	if d := cmp.Diff([]map[string]any{span(`fetch "3"`, 1, 1000, 2000, 7), span("empty", 1, 3000, 0, 7),
		span("save", 5, 1.5, 1998.5, 8)}, spans); d != "" {
		t.Error(d)
	}
	if file.OtherData["forgotten_spans"] != 1.0 {
		t.Errorf("otherData: %v", file.OtherData)
	}
}

func TestChromeReportsWriteErrors(t *testing.T) {
	if err := (&Trace{}).WriteChrome(brokenWriter{}); err != os.ErrClosed {
		t.Errorf("error %v", err)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, os.ErrClosed }

// The names of metrics.jsonl are an interface to other programs.
func TestMetricsLine(t *testing.T) {
	loss := 2.5
	line, err := json.Marshal(Metrics{Step: 3, Loss: 1.25, GradNorm: math.Inf(1), EvalLoss: &loss, Lanes: Lanes{Disk: 0.5}})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"step":3,"loss":1.25,"grad_norm":null,"clip_scale":0,"learning_rate":0,"tokens":0,"target_tokens":0,` +
		`"tokens_per_sec":0,"step_sec":0,"model_tflops":0,"device_peak_bytes":0,"host_peak_bytes":0,"disk_read_bytes":0,` +
		`"disk_written_bytes":0,"lanes":{"fetch":0,"compute":0,"drain":0,"update":0,"disk":0.5},"eval_loss":2.5}`
	if string(line) != want {
		t.Errorf("got  %s\nwant %s", line, want)
	}
	line, _ = json.Marshal(Metrics{})
	if strings.Contains(string(line), "eval_loss") {
		t.Errorf("eval_loss without an evaluation: %s", line)
	}
}

func drawMetrics(t *rapid.T, step int64) Metrics {
	m := Metrics{Step: step}
	number := rapid.OneOf(rapid.Float64(), rapid.Just(math.NaN()))
	v := reflect.ValueOf(&m).Elem()
	for i := 1; i < v.NumField(); i++ {
		switch f := v.Field(i); f.Kind() {
		case reflect.Float64:
			f.SetFloat(number.Draw(t, v.Type().Field(i).Name))
		case reflect.Int64:
			f.SetInt(rapid.Int64().Draw(t, v.Type().Field(i).Name))
		}
	}
	m.Lanes[Update] = rapid.Float64().Draw(t, "update")
	if rapid.Bool().Draw(t, "eval") {
		x := rapid.Float64().Draw(t, "eval_loss")
		m.EvalLoss = &x
	}
	return m
}

func openMetrics(name string, lastStep int64) (*RecordFile[Metrics], error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	return NewMetricsFile(f, lastStep)
}

// flaky is a file that takes room more bytes. Every larger write then fails as on a full disk.
type flaky struct {
	*os.File
	room int
}

func (f *flaky) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(p[:min(len(p), f.room)], off)
	if f.room -= n; err == nil && n < len(p) {
		err = syscall.ENOSPC
	}
	return n, err
}

// Records move to another file with those that wait; where that cannot take them, they stay where they are.
func TestMetricsMove(t *testing.T) {
	open := func(name string) *os.File {
		f, err := os.OpenFile(filepath.Join(t.TempDir(), name), os.O_RDWR|os.O_CREATE, 0o666)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	first := &flaky{open("first"), 1 << 20}
	m, err := NewMetricsFile(first, 0)
	if err == nil {
		err = m.Append(Metrics{Step: 1})
	}
	if err != nil {
		t.Fatal(err)
	}
	first.room = 0
	if err := m.Append(Metrics{Step: 2}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	full := &flaky{open("full"), 3}
	if err := m.MoveTo(full); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("a full disk: error %v", err)
	}
	second := open("second")
	if err := m.MoveTo(second); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.Append(Metrics{Step: 3}), m.Sync()); err != nil {
		t.Fatal(err)
	}
	all, err := ReadMetrics(io.NewSectionReader(second, 0, 1<<20))
	if err != nil || len(all) != 3 || all[0].Step != 1 || all[1].Step != 2 || all[2].Step != 3 {
		t.Errorf("records %+v, error %v", all, err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the first file is open: %v", err)
	}
}

// Records that a full disk refuses, or takes in part, wait and are all written when there is room.
func TestMetricsWaitForRoom(t *testing.T) {
	name := filepath.Join(t.TempDir(), "metrics.jsonl")
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	f := &flaky{file, 1 << 20}
	m, err := NewMetricsFile(f, 0)
	if err != nil {
		t.Fatal(err)
	}
	for step := range int64(7) {
		if step == 2 {
			f.room = 100 // less than a record
		}
		if step == 5 {
			f.room = 1 << 20
		}
		err := m.Append(Metrics{Step: step + 1})
		if full := step >= 2 && step < 5; full != (err != nil) || full != (m.Waiting() > 0) {
			t.Errorf("step %d: %d wait, error %v", step+1, m.Waiting(), err)
		}
		text, _ := os.ReadFile(name)
		if len(text) > 0 && text[len(text)-1] != '\n' {
			t.Errorf("after step %d the file ends in half a record", step+1)
		}
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(name)
	all, err := ReadMetrics(bytes.NewReader(text))
	if err != nil || len(all) != 7 {
		t.Fatalf("%d records, error %v", len(all), err)
	}
	for i, r := range all {
		if r.Step != int64(i+1) {
			t.Errorf("record %d is of step %d", i+1, r.Step)
		}
	}
}

// However a file was cut, a resumed run ends with each step once, and what was written reads back.
func TestMetricsFileResumes(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		name := filepath.Join(dir, "metrics.jsonl")
		os.Remove(name)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		write := func(from, to int64) (records []Metrics) {
			f, err := openMetrics(name, from)
			must(err)
			for s := from + 1; s <= to; s++ {
				m := drawMetrics(t, s)
				records = append(records, m)
				must(f.Append(m))
			}
			must(f.Sync())
			must(f.Close())
			return records
		}
		n := rapid.Int64Range(0, 5).Draw(t, "n")
		first := write(0, n)
		text, err := os.ReadFile(name)
		must(err)
		cut := rapid.IntRange(0, len(text)).Draw(t, "cut")
		must(os.WriteFile(name, text[:cut], 0o666))
		whole := int64(bytes.Count(text[:cut], []byte("\n")))
		f, err := os.Open(name)
		must(err)
		got, err := ReadMetrics(f)
		must(err)
		f.Close()
		equal := cmpopts.EquateNaNs()
		if d := cmp.Diff(first[:whole], got, equal, cmpopts.EquateEmpty()); d != "" {
			t.Fatal(d)
		}
		from := rapid.Int64Range(0, whole).Draw(t, "checkpoint")
		second := write(from, from+2)
		f, err = os.Open(name)
		must(err)
		defer f.Close()
		got, err = ReadMetrics(f)
		must(err)
		if d := cmp.Diff(append(first[:from:from], second...), got, equal); d != "" {
			t.Fatal(d)
		}
	})
}

// A file tells how many records it had of its latest step, and of that alone.
func TestRecordsOfAStep(t *testing.T) {
	name := filepath.Join(t.TempDir(), "metrics.jsonl")
	text := `{"step":1}` + "\n" + `{"step":2}` + "\n" + `{"step":2}` + "\n" + `{"step":3}` + "\n"
	if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := openMetrics(name, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if had := [3]int{f.Had(1), f.Had(2), f.Had(3)}; had != [3]int{0, 2, 0} {
		t.Errorf("records of steps 1 to 3: %v", had)
	}
}

func TestMetricsFilesThatAreNot(t *testing.T) {
	const good = `{"step":1,"loss":2}` + "\n"
	for what, c := range map[string]struct {
		text    string
		records int
		err     string
	}{
		"empty":               {"", 0, ""},
		"zeros after":         {good + "\x00\x00\x00", 1, ""},
		"zeros and a newline": {good + "\x00\x00\n", 1, ""},
		"unknown field":       {`{"step":1,"new":[1]}` + "\n", 1, ""},
		"torn in the middle":  {`{"st` + "\n" + good, 0, "line 1"},
		"prose":               {good + "Dear reader", 1, "line 2"},
		"not a record":        {good + `{"a":1}` + "\n" + good, 1, "line 2"},
		"a long line":         {good + strings.Repeat("x", metricsRecords.LineBytes+1), 1, "line 2"},
		"wrong type":          {`{"step":"one"}` + "\n" + good, 0, "line 1"},
	} {
		got, err := ReadMetrics(strings.NewReader(c.text))
		if len(got) != c.records || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %d records, %v", what, len(got), err)
		}
		name := filepath.Join(t.TempDir(), "metrics.jsonl")
		os.WriteFile(name, []byte(c.text), 0o666)
		f, err := openMetrics(name, 100)
		if (err == nil) != (c.err == "") {
			t.Errorf("%s: NewMetricsFile: %v", what, err)
		}
		if err == nil {
			f.Close()
		} else if after, _ := os.ReadFile(name); string(after) != c.text {
			t.Errorf("%s: a file that is not ours was changed", what)
		}
	}
}

func FuzzReadMetrics(f *testing.F) {
	f.Add([]byte(`{"step":1,"loss":null,"eval_loss":3}` + "\n"))
	f.Add([]byte("\x00\n{"))
	f.Fuzz(func(t *testing.T, text []byte) {
		records, err := ReadMetrics(bytes.NewReader(text))
		if err != nil {
			return
		}
		var again bytes.Buffer
		for _, m := range records {
			line, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			again.Write(append(line, '\n'))
		}
		second, err := ReadMetrics(&again)
		if d := cmp.Diff(records, second, cmpopts.EquateNaNs()); d != "" || err != nil {
			t.Fatal(err, d)
		}
	})
}

func BenchmarkRecord(b *testing.B) {
	r := NewRecorder(Crew{}, 1<<12)
	for b.Loop() {
		start := r.Now()
		r.Record(Worker{Lane: Compute}, "forward", 1, start, r.Now())
	}
}

func TestMedian(t *testing.T) {
	for want, sorted := range map[float64][]float64{2: {1, 2, 9}, 1.5: {1, 2}, 7: {7}} {
		if got := Median(sorted); got != want {
			t.Errorf("of %v: %v, want %v", sorted, got, want)
		}
	}
}
