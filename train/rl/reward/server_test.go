package reward

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/runfile"
)

// judging is a server that answers the lists that it gets by a function: its address, and how often it was called.
func judging(t *testing.T, answer func(w http.ResponseWriter, call int, list []asked)) (string, *atomic.Int64) {
	t.Helper()
	calls := new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var list []asked
		if err != nil || json.Unmarshal(body, &list) != nil || r.Method != http.MethodPost ||
			r.Header.Get("Content-Type") != "application/json" || r.URL.Path != "/s3cret" {
			t.Errorf("%s %s with %q, %v", r.Method, r.URL, body, err)
		}
		answer(w, int(calls.Add(1)), list)
	}))
	t.Cleanup(s.Close)
	return s.URL + "/s3cret", calls
}

// lengths answers with the lengths of completions, in another order.
func lengths(w http.ResponseWriter, list []asked) {
	var all []string
	for _, a := range list {
		all = append(all, fmt.Sprintf(`{"id": %d, "reward": %d, "metrics": {"bytes": %[2]d}}`, a.ID, len(a.Completion)))
	}
	slices.Reverse(all)
	fmt.Fprintf(w, "[%s]\n", strings.Join(all, ","))
}

func has(list []asked, completion string) bool {
	return slices.ContainsFunc(list, func(a asked) bool { return a.Completion == completion })
}

func TestServers(t *testing.T) {
	for name, c := range map[string]struct {
		answer        func(w http.ResponseWriter, call int, list []asked)
		rewards, says string
	}{
		"well": {func(w http.ResponseWriter, _ int, list []asked) { lengths(w, list) }, "1 6 3 4 5", "5 scored"},
		"busy at first": {func(w http.ResponseWriter, call int, list []asked) {
			if call == 1 {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			lengths(w, list)
		}, "1 6 3 4 5", "5 scored"},
		"an answer that fails": {func(w http.ResponseWriter, _ int, list []asked) {
			if has(list, "poison") {
				w.WriteHeader(http.StatusInternalServerError)
			}
			lengths(w, list)
		}, "1 NaN 3 4 5", "4 scored, 1 refused"},
		"an answer that is left out": {func(w http.ResponseWriter, _ int, list []asked) {
			lengths(w, slices.DeleteFunc(list, func(a asked) bool { return a.Completion == "poison" }))
		}, "1 NaN 3 4 5", "4 scored, 1 malformed"},
		"NaN": {func(w http.ResponseWriter, _ int, list []asked) {
			if has(list, "poison") {
				fmt.Fprintf(w, `[{"id": 1, "reward": -Infinity}]`)
				return
			}
			lengths(w, list)
		}, "1 NaN 3 4 5", "4 scored, 1 not_finite"},
		"twice": {func(w http.ResponseWriter, _ int, list []asked) {
			if has(list, "poison") {
				list = append(list, list...)
			}
			lengths(w, list)
		}, "1 NaN 3 4 5", "4 scored, 1 stray"},
		"no list": {func(w http.ResponseWriter, _ int, list []asked) {
			if has(list, "poison") {
				fmt.Fprint(w, "<html>")
				return
			}
			lengths(w, list)
		}, "1 NaN 3 4 5", "4 scored, 1 malformed"},
		"too much": {func(w http.ResponseWriter, _ int, list []asked) {
			if has(list, "poison") {
				for range 5 << 10 {
					fmt.Fprint(w, strings.Repeat(" ", 1<<10))
				}
				return
			}
			lengths(w, list)
		}, "1 NaN 3 4 5", "4 scored, 1 too_long"},
		"elsewhere": {func(w http.ResponseWriter, _ int, list []asked) {
			if has(list, "poison") {
				w.Header().Set("Location", "/other")
				w.WriteHeader(http.StatusTemporaryRedirect)
				return
			}
			lengths(w, list)
		}, "1 NaN 3 4 5", "4 scored, 1 refused"},
	} {
		for workers := 1; workers <= 2; workers++ {
			address, _ := judging(t, c.answer)
			r, err := judged(t, []runfile.Reward{{Name: "a", URL: address, Workers: workers}}, Options{},
				"a", "poison", "ccc", "dddd", "eeeee")
			if err != nil {
				t.Fatal(err)
			}
			if rewards(r) != c.rewards || counts(r.Tallies[0]) != c.says {
				t.Errorf("%s, %d: %s; %s", name, workers, rewards(r), counts(r.Tallies[0]))
			}
		}
	}
}

// A server that fails always, hangs or is not there ends the panel, without its address; one request more is made where
// the server has not begun to judge.
func TestServersFail(t *testing.T) {
	ends := make(chan struct{})
	defer close(ends)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	missing, calls := judging(t, func(w http.ResponseWriter, _ int, _ []asked) { w.WriteHeader(http.StatusNotFound) })
	busy, busyCalls := judging(t, func(w http.ResponseWriter, _ int, _ []asked) {
		w.WriteHeader(http.StatusTooManyRequests)
	})
	silent, _ := judging(t, func(http.ResponseWriter, int, []asked) { <-ends })
	for address, want := range map[string]string{
		gone.URL: "connection refused",
		missing:  "of the last one the server answered 404 Not Found",
		busy:     "the server answered 429 Too Many Requests",
		silent:   "the server has not answered in 1ms",
	} {
		spec := runfile.Reward{Name: "a", URL: address}
		if address == silent {
			spec.Timeout = runfile.Wait(time.Millisecond)
		}
		_, err := judged(t, []runfile.Reward{spec}, Options{}, strings.Split("abcdefghij", "")...)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "reward a: 10 answers") ||
			strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if n, m := calls.Load(), busyCalls.Load(); n < 10 || n > 20 || m < 20 || m > 40 {
		t.Errorf("%d and %d calls", n, m)
	}
	if _, err := Open(t.Context(), []runfile.Reward{{Name: "a", URL: "$NO_SUCH_JUDGE"}}, Options{}); err == nil ||
		!strings.Contains(err.Error(), "rl.reward[0] (a): url names $NO_SUCH_JUDGE") {
		t.Error(err)
	}
}

// The context ends a request that waits.
func TestServerEnds(t *testing.T) {
	ends := make(chan struct{})
	defer close(ends)
	heard := make(chan struct{}, 1)
	address, _ := judging(t, func(http.ResponseWriter, int, []asked) { heard <- struct{}{}; <-ends })
	p, err := Open(t.Context(), []runfile.Reward{{Name: "a", URL: address}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Judge(Answer{}); err != nil {
		t.Fatal(err)
	}
	<-heard
	p.Close()
}
