package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/outside"
	"github.com/millrace/millrace/internal/surroundings"
	"github.com/millrace/millrace/runfile"
)

func TestMain(m *testing.M) { os.Exit(surroundings.Run(m)) }

// quick are limits for tests in which nothing hangs.
var quick = Limits{Command: time.Hour, Hook: time.Hour, Waits: []time.Duration{1, 1}}

// hook is a server that answers calls with these statuses, one after the other, and with the last one from then on.
func hook(t *testing.T, statuses ...int) (address string, got chan Event) {
	t.Helper()
	got = make(chan Event, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var e Event
		if err != nil || json.Unmarshal(body, &e) != nil || r.Method != http.MethodPost ||
			r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s with %q, %v", r.Method, body, err)
		}
		got <- e
		status := statuses[0]
		if len(statuses) > 1 {
			statuses = statuses[1:]
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(server.Close)
	return server.URL + "/s3cret", got
}

func TestHook(t *testing.T) {
	loss := 1.5
	e := Event{Event: "slow", Run: "runs/a", Step: 7, Steps: 9, Loss: &loss, Text: "runs/a: it is slow", TokensPerSec: 3}
	for name, c := range map[string]struct {
		statuses []int
		calls    int
		trouble  string
	}{
		"delivered":              {[]int{204}, 1, ""},
		"delivered at last":      {[]int{503, 429, 200}, 3, ""},
		"never":                  {[]int{500}, 3, "was not told of the event slow: the server answered 500 Internal Server"},
		"an address of the past": {[]int{404}, 1, "the server answered 404 Not Found"},
	} {
		address, got := hook(t, c.statuses...)
		s, err := Open([]runfile.Notice{{URL: address, On: []string{"slow"}}}, quick)
		if err != nil {
			t.Fatal(err)
		}
		if s.Hears("ended") || !s.Hears("slow") {
			t.Errorf("%s: it hears other events", name)
		}
		s.Send(Event{Event: "ended"})
		s.Send(e)
		troubles := strings.Join(s.Close(t.Context(), time.Hour), "\n")
		s.Send(e) // which does nothing
		if len(got) != c.calls || (c.trouble == "") != (troubles == "") || !strings.Contains(troubles, c.trouble) {
			t.Errorf("%s: %d calls, %q", name, len(got), troubles)
		}
		if strings.Contains(troubles, "s3cret") {
			t.Errorf("%s: the address is in %q", name, troubles)
		}
		for range c.calls {
			if d := cmp.Diff(e, <-got); d != "" {
				t.Errorf("%s: %s", name, d)
			}
		}
	}
}

// A server that is not there, or does not answer, is told of without its address.
func TestHookFails(t *testing.T) {
	ends := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-ends }))
	defer silent.Close()
	defer close(ends)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	short := Limits{Hook: time.Millisecond}
	for address, want := range map[string]string{gone.URL: "connection refused", silent.URL: "has not answered in 1ms"} {
		limits := quick
		if address == silent.URL {
			limits = short
		}
		s, err := Open([]runfile.Notice{{URL: address + "/s3cret"}}, limits)
		if err != nil {
			t.Fatal(err)
		}
		s.Send(Event{Event: "ended"})
		troubles := s.Close(t.Context(), time.Hour)
		if len(troubles) != 1 || !strings.Contains(troubles[0], want) || strings.Contains(troubles[0], "s3cret") {
			t.Errorf("%q, want %q", troubles, want)
		}
	}
}

// A redirect to another host would tell that of the run, and a GET tells the same one nothing.
func TestRedirects(t *testing.T) {
	address, got := hook(t, 200)
	for status, c := range map[int]struct{ to, want string }{
		307: {address, "redirects to another one"},
		302: {"/page", "redirects to a page"},
		308: {"/round", "redirects too often"},
	} {
		posts := 0
		from := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			posts++
			http.Redirect(w, r, c.to, status)
		}))
		s, err := Open([]runfile.Notice{{URL: from.URL}}, Limits{Hook: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		s.Send(Event{Event: "ended"})
		if troubles := s.Close(t.Context(), time.Hour); len(troubles) != 1 || !strings.Contains(troubles[0], c.want) {
			t.Errorf("%d: %q", status, troubles)
		}
		from.Close()
		if want := map[int]int{307: 1, 302: 1, 308: 1 + mostRedirects}[status]; posts != want {
			t.Errorf("%d: %d calls, want %d", status, posts, want)
		}
	}
	within := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			http.Redirect(w, r, "/there", http.StatusTemporaryRedirect)
		}
	}))
	defer within.Close()
	s, err := Open([]runfile.Notice{{URL: within.URL}}, Limits{Hook: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	s.Send(Event{Event: "ended"})
	if troubles := s.Close(t.Context(), time.Hour); troubles != nil || len(got) > 0 {
		t.Errorf("on the same host: %q; the other one got %d", troubles, len(got))
	}
}

// A command gets the event as JSON, and in variables; no shell reads its arguments.
func TestCommand(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	script := `cat > "$1"; echo "$MILLRACE_EVENT|$MILLRACE_RUN|$MILLRACE_STEP|$MILLRACE_TEXT|$2" >> "$1"`
	s, err := Open([]runfile.Notice{{Command: []string{"sh", "-c", script, "sh", out, "$HOME; a b"}}}, quick)
	if err != nil {
		t.Fatal(err)
	}
	e := Event{Event: "ended", Run: "runs/a b", Step: 5, Text: "it's $(done)"}
	s.Send(e)
	if troubles := s.Close(t.Context(), time.Hour); troubles != nil {
		t.Fatal(troubles)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	doc, line, _ := strings.Cut(string(text), "\n")
	var got Event
	if err := json.Unmarshal([]byte(doc), &got); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	if d := cmp.Diff(e, got); d != "" || line != "ended|runs/a b|5|it's $(done)|$HOME; a b\n" {
		t.Errorf("%s, %q", d, line)
	}
}

func TestCommandFails(t *testing.T) {
	long := strings.Repeat("x", 3*outside.TailBytes)
	for script, want := range map[string]string{
		"echo 'no such\n\tservice' >&2; exit 3": "exit status 3: no such service",
		"printf 'a\033b\377'; exit 1":           `exit status 1: a\x1bb?`,
		"echo " + long + "; exit 1":             long[:outside.TailBytes-1],
		"kill -9 $$":                            "killed",
	} {
		s, err := Open([]runfile.Notice{{Command: []string{"sh", "-c", script}}}, quick)
		if err != nil {
			t.Fatal(err)
		}
		s.Send(Event{Event: "ended"})
		troubles := s.Close(t.Context(), time.Hour)
		if len(troubles) != 1 || !strings.Contains(troubles[0], "notify[0] (sh) was not told of the event ended: ") ||
			!strings.Contains(troubles[0], want) || len(troubles[0]) > 2*outside.TailBytes ||
			strings.Contains(troubles[0], "\n") {
			t.Errorf("%q, want %q", troubles, want)
		}
	}
}

// A command whose time is over ends, and with it what it has started.
func TestCommandIsEnded(t *testing.T) {
	for name, limits := range map[string]Limits{"by its limit": {Command: time.Millisecond}, "by the run's end": quick} {
		s, err := Open([]runfile.Notice{{Command: []string{"sh", "-c", "sleep 1000 & sleep 1000"}}}, limits)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			s.Send(Event{Event: "ended"})
		}
		patience := time.Duration(0)
		if name == "by its limit" {
			patience = time.Hour
		}
		want := map[string]string{"by its limit": "was still running after 1ms, and was ended",
			"by the run's end": errNoTime.Error()}[name]
		troubles := s.Close(t.Context(), patience)
		if len(troubles) != 2 || !strings.Contains(troubles[0], want) || !strings.Contains(troubles[1], want) {
			t.Errorf("%s: %q, want %q", name, troubles, want)
		}
	}
}

// Processes that a command has started hold its output: it is at its end where all of them are.
func TestGroupIsEnded(t *testing.T) {
	pipe, other, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	link := fmt.Sprintf("/proc/self/fd/%d", other.Fd())
	path := filepath.Join(t.TempDir(), "pipe")
	if _, err := os.Stat(link); err != nil {
		t.Skip("this system has no /proc: make long runs it on Linux")
	}
	if err := os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), other.Fd()), path); err != nil {
		t.Fatal(err)
	}
	script := `exec 3>"$0"; sleep 1000 & echo begun >&3; wait`
	s, err := Open([]runfile.Notice{{Command: []string{"sh", "-c", script, path}}}, quick)
	if err != nil {
		t.Fatal(err)
	}
	s.Send(Event{Event: "ended"})
	begun := make([]byte, 6)
	if _, err := io.ReadFull(pipe, begun); err != nil {
		t.Fatal(err)
	}
	other.Close()
	s.Close(t.Context(), 0)
	if rest, err := io.ReadAll(pipe); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
}

// A hook that hangs makes no one wait: events beyond the queue are counted as not delivered, and other notices get
// theirs.
func TestQueueIsBounded(t *testing.T) {
	ends, calls := make(chan struct{}), make(chan struct{}, 1)
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		calls <- struct{}{}
		<-ends
	}))
	defer silent.Close()
	defer close(ends)
	address, got := hook(t, 200)
	s, err := Open([]runfile.Notice{{URL: silent.URL}, {URL: address}}, quick)
	if err != nil {
		t.Fatal(err)
	}
	s.Send(Event{Event: "slow"})
	<-calls // it hangs
	<-got
	for range mostWaiting + 3 {
		s.Send(Event{Event: "slow"})
		<-got
	}
	if troubles := s.Troubles(); len(troubles) != 3 || !strings.Contains(troubles[0], "32 earlier ones still wait") {
		t.Errorf("%q", troubles)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if troubles := s.Close(ctx, 0); len(troubles) == 0 || !strings.Contains(troubles[0], errNoTime.Error()) {
		t.Errorf("at the end: %q", troubles)
	}
}

// Variables and programs that are not there are known before a run begins.
func TestOpenRefuses(t *testing.T) {
	t.Setenv("HOOK", "")
	for want, n := range map[string]runfile.Notice{
		"notify[1]: url names $HOOK":                      {URL: "https://example.com/$HOOK"},
		"notify[1].command: there is no program no-such-": {Command: []string{"no-such-program"}},
	} {
		if _, err := Open([]runfile.Notice{{Command: []string{"sh"}}, n}, quick); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	var none *Sender
	if s, err := Open(nil, quick); s != nil || err != nil {
		t.Errorf("without notices: %v, %v", s, err)
	}
	if none.Send(Event{}); none.Hears("ended") || none.Troubles() != nil || none.Close(t.Context(), 0) != nil {
		t.Error("a sender without notices has something to do")
	}
}

// A test delivers by all notices, whatever they hear, and tells of each.
func TestTest(t *testing.T) {
	address, got := hook(t, 200)
	var said []string
	err := Test(t.Context(), []runfile.Notice{{URL: address, On: []string{"slow"}}, {Command: []string{"false"}}}, quick,
		Event{Event: "test"}, func(name string, err error) { said = append(said, fmt.Sprint(name, err)) })
	if err != nil || len(got) != 1 || len(said) != 2 || !strings.HasSuffix(said[0], "<nil>") ||
		said[1] != "notify[1] (false)exit status 1" {
		t.Errorf("%v, %d calls, %q", err, len(got), said)
	}
	if errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
