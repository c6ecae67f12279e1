package serve

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/internal/surroundings"
	"github.com/millrace/millrace/trace"
)

// inMemory runs tests with their files in memory.
type inMemory struct{ *testing.M }

func (m inMemory) Run() int { return surroundings.Run(m.M) }

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(inMemory{m})
}

// now is the time of tests, a minute after that of step 1 of their runs.
var now = time.Date(2026, 3, 1, 12, 1, 0, 0, time.UTC)

// record is a line of metrics.jsonl.
func record(step int64) string {
	ended := now.Add(time.Duration(step-61) * time.Second).Format(time.RFC3339)
	m := trace.Metrics{Step: step, Loss: 4 / math.Sqrt(float64(max(step, 1))), GradNorm: 1, ClipScale: 1,
		LearningRate: 1e-5,
		Tokens:       100, TargetTokens: 90, TokensPerSec: 100, StepSec: 1, ModelTFLOPS: 2, HostPeakBytes: 1 << 30,
		DiskWrittenBytes: 7, Lanes: trace.Lanes{0.25, 0.75}, Time: &ended}
	if step == 0 {
		m = trace.BeforeTraining(trace.Evaluation{Loss: 5}, ended)
	} else if step%10 == 0 {
		m.SetEval(trace.Evaluation{Loss: m.Loss + 0.1, Objective: map[string]float64{"kl": 0.5}})
	}
	line, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return string(line) + "\n"
}

// recordsTo are the records of steps, with that of step 0 where from is 0.
func recordsTo(from, to int64) string {
	var b strings.Builder
	for step := from; step <= to; step++ {
		b.WriteString(record(step))
	}
	return b.String()
}

// write writes a file below a directory.
func write(t testing.TB, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

// appendTo writes at the end of a file.
func appendTo(t testing.TB, dir, name, text string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// counted is a run of this process that counts what is asked of it.
type counted struct {
	saves, stops, evals atomic.Int64
	every               atomic.Int64
	err                 error
}

func (c *counted) Save() error { c.saves.Add(1); return c.err }
func (c *counted) Stop() error { c.stops.Add(1); return c.err }
func (c *counted) EvaluateEvery(n int) error {
	c.evals.Add(1)
	c.every.Store(int64(n))
	return c.err
}

// site is a server without its loop, and its requests.
type site struct {
	t testing.TB
	*Server
	handler http.Handler
}

const aToken = "0123456789abcdef"

func newSite(t testing.TB, o Options) *site {
	t.Helper()
	o.Token, o.Version = aToken, "v1"
	o.Warn = func(text string) { t.Error(text) }
	s := New(o)
	s.address = DefaultAddress
	s.pass(now, true)
	return &site{t, s, s.guard(s.routes())}
}

// do answers a request.
func (s *site) do(q *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, q)
	return w
}

// request is one of the page, with changes.
func request(method, path string, header ...string) *http.Request {
	q := httptest.NewRequest(method, path, nil)
	q.Host = "127.0.0.1:7077"
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			q.Host = header[i+1]
		}
		q.Header.Set(header[i], header[i+1])
	}
	return q
}

// get reads a document.
func get[T any](s *site, path string) (doc T) {
	s.t.Helper()
	w := s.do(request("GET", path))
	if w.Code != http.StatusOK {
		s.t.Fatalf("%s: %d %s", path, w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		s.t.Fatalf("%s: %v: %s", path, err, w.Body)
	}
	return doc
}

// failsWith checks an answer that is an error.
func (s *site) failsWith(q *http.Request, status int, want string) {
	s.t.Helper()
	w := s.do(q)
	var doc struct{ Error string }
	err := json.Unmarshal(w.Body.Bytes(), &doc)
	if w.Code != status || err != nil || !strings.Contains(doc.Error, want) || strings.Contains(doc.Error, "\n") {
		s.t.Errorf("%s %s of %s: %d %s, not %d with %q", q.Method, q.URL, q.Host, w.Code, w.Body, status, want)
	}
}

// discard reads a body to its end.
func discard(body io.ReadCloser) {
	_, _ = io.Copy(io.Discard, body)
	_ = body.Close()
}

// lossAt is the loss of record as the page gets it.
func lossAt(step int64) string { return fmt.Sprintf("%.4f", 4/math.Sqrt(float64(step))) }
