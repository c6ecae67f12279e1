package serve

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/trace"
)

// stepsOf are the steps that the page sees of the run, and the run's document.
func stepsOf(s *site, id string) ([]int64, runDocument) {
	s.t.Helper()
	s.pass(now, true)
	for _, r := range get[runsDocument](s, "/api/runs").Runs {
		if r.ID == id {
			return get[answered](s, "/api/runs/"+id+"/columns?names=loss&points=10000").Steps, r
		}
	}
	s.t.Fatalf("there is no run %s", id)
	return nil, runDocument{}
}

// A file is followed as it grows, is cut by a run that resumes, is changed in its last line, and is another file.
func TestFollowing(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "metrics.jsonl", "")
	s := newSite(t, Options{Dirs: []string{dir}})
	name := filepath.Join(dir, recordsName)
	check := func(what string, last int64) {
		t.Helper()
		steps, r := stepsOf(s, "r1")
		if len(steps) != int(last) || last > 0 && steps[last-1] != last || r.LastStep != last || !r.Complete {
			t.Errorf("%s: steps %v, %+v; want them to %d", what, steps, r, last)
		}
		if last > 0 && (r.Summary == nil || r.Summary.LastStep != last || r.Summary.Tokens != 100*last) {
			t.Errorf("%s: summary %+v", what, r.Summary)
		}
	}
	check("an empty file", 0)
	appendTo(t, dir, "metrics.jsonl", recordsTo(0, 9))
	check("a first piece", 9)
	torn := record(10)
	appendTo(t, dir, "metrics.jsonl", torn[:40])
	check("a torn line", 9)
	appendTo(t, dir, "metrics.jsonl", torn[40:])
	check("its rest", 10)
	revision := get[runsDocument](s, "/api/runs").Runs[0].Revision
	s.pass(now, true)
	if again := get[runsDocument](s, "/api/runs").Runs[0].Revision; again != revision {
		t.Errorf("nothing has changed, and the revision is %d after %d", again, revision)
	}

	// A run that resumes cuts the file and continues, between two looks or not.
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	records, err := trace.NewMetricsFile(f, 5)
	if err != nil {
		t.Fatal(err)
	}
	check("a cut", 5)
	if err := records.Close(); err != nil {
		t.Fatal(err)
	}
	appendTo(t, dir, "metrics.jsonl", recordsTo(6, 7))
	check("a run that has resumed", 7)
	write(t, dir, "metrics.jsonl", strings.ReplaceAll(recordsTo(0, 12), `"grad_norm":1,`, `"grad_norm":2,`))
	check("a file that was cut and has grown since the last look", 12)
	w := s.do(request("GET", "/api/runs/r1/columns?names=grad_norm"))
	if !strings.Contains(w.Body.String(), `"mean":[2,2,`) {
		t.Errorf("records that are gone: %s", w.Body)
	}

	// The last line gets an evaluation, as of a run that was stopped in it.
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "metrics.jsonl", strings.TrimSuffix(string(text), "}\n")+`,"eval_loss":0.5}`+"\n")
	check("a changed line", 12)
	got := get[answered](s, "/api/runs/r1/columns?names=eval_loss").Columns["eval_loss"].At
	if !slices.Equal(got, []int64{0, 10, 12}) {
		t.Errorf("evaluations at %v", got)
	}

	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "run.json", "{}")
	check("no file", 0)
	write(t, dir, "metrics.jsonl", recordsTo(1, 3))
	check("another file", 3)
	write(t, dir, "other", recordsTo(1, 8))
	if err := os.Rename(filepath.Join(dir, "other"), name); err != nil {
		t.Fatal(err)
	}
	check("a file in its place", 8)
}

const recordsName = "metrics.jsonl"

// Lines that are no records are left out, and the list of runs says so.
func TestDamagedLines(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "metrics.jsonl", record(1)+"\x00\x00\x00\n"+record(2)+`{"step":-1}`+"\n{}\n\n"+
		strings.Repeat("x", 3*chunkBytes)+"\n"+record(3))
	s := newSite(t, Options{Dirs: []string{dir}})
	steps, _ := stepsOf(s, "r1")
	list := get[runsDocument](s, "/api/runs")
	if !slices.Equal(steps, []int64{1, 2, 3}) || list.Message == nil ||
		!strings.Contains(*list.Message, "4 lines of its records") {
		t.Errorf("steps %v, message %v", steps, *list.Message)
	}
}

// The first answer about a long file comes from a sample of it, of a bounded number of bytes, and later ones from all.
func TestLongFile(t *testing.T) {
	dir := t.TempDir()
	line := strings.Replace(record(1), `"step":1,"loss":4,`, `"step":%d,"loss":%.6f,`, 1)
	n := int64(2*atOnceBytes/len(line)) + 1000
	var text []byte
	for step := range n {
		text = fmt.Appendf(text, line, step+1, 4/math.Sqrt(float64(step+1)))
	}
	write(t, dir, "a/metrics.jsonl", string(text))
	s := New(Options{Dirs: []string{dir}})
	s.address = DefaultAddress
	at := &site{t, s, s.guard(s.routes())}
	s.all()[0].look(now, true)
	r := get[runsDocument](at, "/api/runs").Runs[0]
	if r.Complete || r.Summary != nil || r.FirstStep != 1 || r.LastStep != n ||
		!slices.Contains(r.Columns, "lanes/fetch") {
		t.Errorf("before it is read: %+v", r)
	}
	doc := get[answered](at, "/api/runs/r1/columns?names=loss")
	if doc.Complete || len(doc.Steps) < 500 || len(doc.Steps) > 1001 || doc.Steps[len(doc.Steps)-1] != n {
		t.Fatalf("a sample: %d steps, complete: %v", len(doc.Steps), doc.Complete)
	}
	for i, step := range doc.Steps {
		if mean := doc.Columns["loss"].Mean[i]; mean == nil || doc.Bucket == 1 && fmt.Sprintf("%.4f", *mean) != lossAt(step) {
			t.Fatalf("the loss of step %d is %v, not %s", step, mean, lossAt(step))
		}
	}
	passes := 0
	for s.readMore() {
		passes++
	}
	steps, r := stepsOf(at, "r1")
	if !r.Complete || r.Summary == nil || r.Summary.Tokens != 100*n || passes < 3 || len(steps) < 5000 {
		t.Errorf("after %d pieces: %d steps, %+v", passes, len(steps), r)
	}
}

// Ten runs of 100,000 steps have their first answers from a bounded number of bytes: see TestLongFile. Here the numbers
// of many steps stay within their memory.
func TestManySteps(t *testing.T) {
	tab := newTable(2 << 20)
	var cells []cell
	reader := trace.BriefReader{Each: func(name []byte, x float64) { cells = append(cells, cell{tab.column(name), x}) }}
	if _, ok := reader.Read([]byte(strings.TrimSpace(record(1)))); !ok {
		t.Fatal("it is no record")
	}
	for step := range int64(200_000) {
		tab.add(step+1, cells)
	}
	doc := ask(t, tab, asked{to: 1 << 40, points: 2000})
	if tab.bytes > 2<<20 || tab.each < 4 || len(doc.Steps) < 1000 || doc.Steps[len(doc.Steps)-1] != 200_000 {
		t.Errorf("%d bytes, %d records in an entry, %d points", tab.bytes, tab.each, len(doc.Steps))
	}
}

// Watchers are told at most as often as a machine that trains can answer all of them: 200 of them each ten seconds.
func TestEventsOfManyWatchers(t *testing.T) {
	e := events{changed: make(chan struct{})}
	e.watch(200)
	told := func(after time.Duration, revision int64) bool {
		_, changed := e.latest()
		e.publish(now.Add(after), map[string]int64{"r1": revision})
		select {
		case <-changed:
			return true
		default:
			return false
		}
	}
	if !told(0, 1) || told(time.Second, 2) || told(9*time.Second, 3) || !told(10*time.Second, 3) ||
		told(30*time.Second, 3) {
		t.Error("events are not ten seconds apart, or one that says nothing new was sent")
	}
	e.watch(-190)
	if !told(31*time.Second, 4) || !told(32*time.Second, 5) {
		t.Error("ten watchers are not told each second")
	}
}
