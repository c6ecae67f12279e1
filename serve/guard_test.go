package serve

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace/internal/rng"
)

// Only names of the server are answered, so that no page of another site reads through a name that it points here.
func TestHosts(t *testing.T) {
	for _, c := range []struct {
		address, host string
		is            bool
	}{
		{"127.0.0.1:7077", "127.0.0.1:7077", true}, {"127.0.0.1:7077", "localhost:8080", true},
		{"127.0.0.1:7077", "[::1]:7077", true}, {"127.0.0.1:7077", "LOCALHOST", true},
		{"127.0.0.1:7077", "evil.example", false}, {"127.0.0.1:7077", "evil.example:7077", false},
		{"127.0.0.1:7077", "127.0.0.1.evil.example", false}, {"127.0.0.1:7077", "", false},
		{"127.0.0.1:7077", "10.0.0.5", false}, {"127.0.0.1:7077", "localhost.evil.example", false},
		{"10.0.0.5:7077", "10.0.0.5:7077", true}, {"10.0.0.5:7077", "10.0.0.6", false},
		{"box.lan:7077", "box.lan:7077", true}, {"box.lan:7077", "other.lan", false},
		{"0.0.0.0:7077", "10.0.0.5:7077", true}, {"0.0.0.0:7077", "evil.example", false}, {":7077", "[fe80::1]", true},
	} {
		s := &Server{address: c.address}
		host, _, _ := net.SplitHostPort(c.address)
		s.open = !isLoopback(host)
		if got := s.isOwnName(c.host); got != c.is {
			t.Errorf("%s, asked as %q: %v", c.address, c.host, got)
		}
	}
}

// What asks something of a run needs the token and comes from the page itself; on an address that others reach, so does
// what reads.
func TestToken(t *testing.T) {
	dir := t.TempDir()
	aRun(t, dir, 3)
	own := &counted{}
	s := newSite(t, Options{Dirs: []string{dir}, Own: own})
	token := []string{TokenHeader, aToken}
	for _, name := range []string{"save", "stop", "evaluate-every?steps=7"} {
		path := "/api/runs/r1/" + name
		s.failsWith(request("POST", path), 401, "the token is missing or wrong")
		s.failsWith(request("POST", path, TokenHeader, "x"+aToken), 401, "the token")
		s.failsWith(request("POST", path+"&token="+aToken), 401, "the token")
		s.failsWith(request("POST", path, append(token, "Sec-Fetch-Site", "cross-site")...), 403, "another site")
		s.failsWith(request("POST", path, append(token, "Origin", "http://evil.example")...), 403, "another site")
		s.failsWith(request("POST", path, append(token, "Origin", "null")...), 403, "another site")
		s.failsWith(request("POST", path, append(token, "Host", "evil.example")...), 403, "not a name of this server")
		s.failsWith(request("PUT", path, token...), 405, "the method")
		body := request("POST", path, token...)
		body.ContentLength = 5
		s.failsWith(body, 400, "has a body")
		if w := s.do(request("GET", path)); w.Code != 404 && w.Code != 405 {
			t.Errorf("GET %s: %d", path, w.Code)
		}
	}
	if n := own.saves.Load() + own.stops.Load() + own.evals.Load(); n != 0 {
		t.Fatalf("%d requests without the token were heard", n)
	}
	for _, path := range []string{"save", "stop", "evaluate-every?steps=7"} {
		w := s.do(request("POST", "/api/runs/r1/"+path, append(token, "Origin", "http://127.0.0.1:7077", "Sec-Fetch-Site",
			"same-origin")...))
		if w.Code != http.StatusNoContent || w.Body.Len() > 0 {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if own.saves.Load() != 1 || own.stops.Load() != 1 || own.evals.Load() != 1 || own.every.Load() != 7 {
		t.Error("what was asked is not heard once")
	}
	for _, steps := range []string{"", "?steps=0", "?steps=-1", "?steps=x", "?steps=10000000000"} {
		s.failsWith(request("POST", "/api/runs/r1/evaluate-every"+steps, token...), 400, "steps: ")
	}
	own.err = fmt.Errorf("the run is\nabout to end")
	s.failsWith(request("POST", "/api/runs/r1/save", token...), 409, "about to end")
	s.failsWith(request("POST", "/api/runs/r2/save", token...), 404, "there is no run")
	s.Server.runs[0].own = nil
	s.failsWith(request("POST", "/api/runs/r1/save", token...), 409, "of another process")

	s.Server.address, s.Server.open = "10.0.0.5:7077", true
	for _, path := range []string{"/api/runs", "/api/runs/r1/plan", "/api/events", "/metrics", "/api", "/api/x"} {
		s.failsWith(request("GET", path, "Host", "10.0.0.5:7077"), 401, "the token")
	}
	for _, header := range [][]string{token, {"Authorization", "Bearer " + aToken}} {
		if w := s.do(request("GET", "/api/runs", append(header, "Host", "10.0.0.5:7077")...)); w.Code != 200 {
			t.Errorf("with %v: %d %s", header, w.Code, w.Body)
		}
	}
	if w := s.do(request("GET", "/", "Host", "10.0.0.5:7077")); w.Code != 200 {
		t.Errorf("the page itself: %d", w.Code)
	}
}

// Ten thousand requests of wrong methods, paths, queries and headers are answered without a fault, and nothing is heard
// without the token.
func TestMalformedRequests(t *testing.T) {
	dir := t.TempDir()
	aRun(t, filepath.Join(dir, "a"), 30)
	own := &counted{}
	s := newSite(t, Options{Dirs: []string{filepath.Join(dir, "a")}, Own: own})
	s.Server.options.Warn = func(text string) { t.Errorf("a fault: %s", text) }
	random := rng.New(7, "malformed requests", 0, 0)
	below := func(n int) int { return int(random.Uint64N(uint64(n))) }
	pick := func(of ...string) string { return of[below(len(of))] }
	odd := []string{"", "/", "..", "%2e%2e", "%00", "\x00", "\xff", "r1", "r9", "api", "runs", "columns", "plan", "save",
		"stop", "events", "metrics", "evaluate-every", "samples", "timeline", "rows", "%", "a b", "<b>",
		strings.Repeat("x", 5000), "\n",
		"index.html", "app.js", "?", "#", "💧"}
	numbers := []string{"", "0", "-1", "1", "1e9", "9223372036854775807", "9223372036854775808", "NaN", "x", "0x10", "1,2"}
	headers := []string{TokenHeader, "Authorization", "Origin", "Sec-Fetch-Site", "Content-Type", "X-Forwarded-Host",
		"Cookie",
		"Range", "If-None-Match", "Accept-Encoding"}
	for i := range 10_000 {
		path := "/"
		for range below(6) {
			path += odd[below(len(odd))] + pick("/", "", "//")
		}
		if below(2) == 0 {
			path = "/api/runs/r1/" + odd[below(len(odd))]
		}
		query := ""
		for range below(4) {
			query += pick("names", "from", "to", "points", "after", "steps", "token", "") + pick("=", "", "==") +
				numbers[below(len(numbers))] + pick("&", "", ";", ",loss", "%zz")
		}
		q := request("GET", "/")
		q.Method = pick("GET", "GET", "GET", "POST", "POST", "HEAD", "PUT", "OPTIONS", "", "get", "G T")
		q.URL = &url.URL{Path: path, RawPath: pick("", path), RawQuery: query}
		q.RequestURI = path
		q.Host = pick("127.0.0.1:7077", "127.0.0.1:7077", "localhost", "", "evil.example", "[", "[::1", "::1", ":",
			"localhost:99999999", "\x00")
		for range below(3) {
			q.Header.Set(headers[below(len(headers))], pick("", "x", aToken[1:], "Bearer ", "Bearer x", "null",
				"http://127.0.0.1:7077", "same-origin", "cross-site", strings.Repeat("y", 9000), "bytes=0-,9-"))
		}
		q.ContentLength = int64([]int{0, 0, 0, -1, 5}[below(5)])
		ctx, cancel := context.WithCancel(q.Context())
		cancel() // events end at once
		w := s.do(q.WithContext(ctx))
		if w.Code < 200 || w.Code >= 500 || q.Method == "POST" && w.Code < 300 {
			t.Fatalf("request %d, %s %q?%q of %q: %d %s", i, q.Method, path, query, q.Host, w.Code, w.Body)
		}
	}
	if n := own.saves.Load() + own.stops.Load() + own.evals.Load(); n != 0 {
		t.Errorf("%d requests were heard", n)
	}
}

// Two hundred watchers hear of each change, cost the run no call, and leave nothing when the server ends. Each is a
// connection, of which one that is too much waits.
func TestWatchers(t *testing.T) {
	dir := t.TempDir()
	aRun(t, dir, 3)
	own := &counted{}
	s := New(Options{Dirs: []string{dir}, Own: own, Token: aToken})
	if err := s.Listen("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(s.URL(), "/#token="+aToken) || strings.Contains(s.URL(), ":0/") {
		t.Errorf("it is at %s", s.URL())
	}
	s.Start()
	base, _, _ := strings.Cut(s.URL(), "#")
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	var ready, done sync.WaitGroup
	heard := make(chan string, 400)
	for range 200 {
		ready.Add(1)
		done.Go(func() {
			r, err := client.Get(base + "api/events")
			if err != nil {
				t.Error(err)
				ready.Done()
				return
			}
			defer discard(r.Body)
			lines := bufio.NewScanner(r.Body)
			for n := 0; lines.Scan(); {
				if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
					if n++; n == 1 {
						ready.Done()
					} else if n == 2 {
						heard <- data
					}
				}
			}
		})
	}
	ready.Wait()
	appendTo(t, dir, "metrics.jsonl", record(4))
	for range 200 {
		if data := <-heard; !strings.HasPrefix(data, `{"r1":`) {
			t.Errorf("heard %s", data)
		}
	}
	if n := own.saves.Load() + own.stops.Load() + own.evals.Load(); n != 0 {
		t.Errorf("watchers have cost the run %d calls", n)
	}
	s.Close()
	done.Wait()
}

// Addresses are refused with a line that says how to fix it.
func TestAddresses(t *testing.T) {
	s := New(Options{Dirs: []string{t.TempDir()}})
	if err := s.Listen("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	taken := s.listener.Addr().String()
	for address, want := range map[string]string{
		taken:               "is in use by another program; choose another port, or 0 for a free one: 127.0.0.1:0",
		"127.0.0.1:99999":   "is not a port",
		"127.0.0.1:http":    "is not a port",
		"a:b:c":             "is not an address; write HOST:PORT",
		"http://127.0.0.1/": "is not an address",
		"7077":              "is not an address; write HOST:PORT",
		"192.0.2.1:0":       "use an address of this machine",
	} {
		if err := New(Options{}).Listen(address); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, without %q", address, err, want)
		}
	}
	for address, want := range map[string]string{"": "127.0.0.1:7077", ":80": ":80", "[::1]:1": "[::1]:1"} {
		if host, port, err := splitAddress(address); err != nil || net.JoinHostPort(host, port) != want {
			t.Errorf("%q: %s %s %v", address, host, port, err)
		}
	}
}

// A fault of a request ends neither the server nor the run, and is told once.
func TestFaultOfARequest(t *testing.T) {
	told := 0
	s := &Server{address: DefaultAddress, options: Options{Warn: func(text string) {
		if told++; !strings.Contains(text, "the wheel fell off") {
			t.Error(text)
		}
	}}}
	at := &site{t, s, s.guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("the wheel fell off") }))}
	for range 3 {
		at.failsWith(request("GET", "/"), 500, "a fault of the program")
	}
	if told != 1 {
		t.Errorf("it is told %d times", told)
	}
}

// No more connections are open at once than the limit: the next one is closed, until one has ended.
func TestConnectionsAreLimited(t *testing.T) {
	s := &http.Server{Handler: http.NotFoundHandler(), ConnState: limit(2)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	isAnswered := func(c net.Conn) bool {
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		line, err := bufio.NewReader(c).ReadString('\n')
		return err == nil && strings.Contains(line, "404")
	}
	var open []net.Conn
	for i := range 3 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if open = append(open, c); isAnswered(c) != (i < 2) {
			t.Errorf("connection %d is answered: %v", i+1, i >= 2)
		}
	}
	for _, c := range open {
		c.Close()
	}
	for n := 0; ; n++ { // the server learns of the ends by and by
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		is := isAnswered(c)
		c.Close()
		if is {
			break
		}
	}
	s.Close()
	serving.Wait()
}
