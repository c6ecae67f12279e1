package hub

import (
	"compress/gzip"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
)

// answering is the hub of a server that answers every request for a listing in this way.
func answering(t *testing.T, answer http.HandlerFunc) *Hub {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return &Hub{Endpoint: server.URL, Cache: t.TempDir()}
}

// textOf answers with a text.
func textOf(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }
}

// allocated returns the bytes that f takes of the Go heap, with garbage.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Small answers do not become large: those that are compressed are refused, and lists are read by element, with a limit
// over all pages.
func TestListingBombs(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	many := "[" + strings.Repeat("{},", 2*maxFiles) + "{}]"
	pages := 0
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
		bytes  uint64 // at most
	}{
		"gzip": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = z.Write([]byte(many))
			z.Close()
		}, "compressed", 10 << 20},
		"one page": {textOf(many), "more than 1000000", 400 << 20},
		"pages without files": {func(w http.ResponseWriter, r *http.Request) {
			pages++
			w.Header().Set("Link", fmt.Sprintf("<%s?page=%d>; rel=next", r.URL.Path, pages))
			_, _ = w.Write([]byte("[" + strings.Repeat("{},", maxFiles/10) + "{}]"))
		}, "more than 1000000", 400 << 20},
		"not a list":  {textOf("{}"), "list", 10 << 20},
		"more":        {textOf("[] []"), "more", 10 << 20},
		"cut":         {textOf("[{}"), "did not answer", 10 << 20},
		"other types": {textOf(`[{"path": 7}]`), "did not answer", 10 << 20},
	} {
		h := answering(t, c.answer)
		var err error
		took := allocated(func() { _, err = h.askFiles(context.Background(), gsm8k, commit) })
		wantLine(t, err, "did not answer as a hub does", c.want)
		if took > c.bytes {
			t.Errorf("%s: %d bytes of heap", name, took)
		}
	}
	if pages > 11 {
		t.Errorf("%d pages were asked for", pages)
	}
}

// Other answers have few values, and few bytes.
func TestAnswerBombs(t *testing.T) {
	for name, text := range map[string]string{"values": `{"sha": [` + strings.Repeat("{},", maxAnswerValues+1) + "{}]}",
		"bytes": `{"sha": "` + strings.Repeat("a", maxAnswerBytes) + `"}`} {
		h := answering(t, textOf(text))
		var err error
		took := allocated(func() { _, err = h.askCommit(context.Background(), gsm8k) })
		wantLine(t, err, "did not answer as a hub does", "more than")
		if took > 150<<20 {
			t.Errorf("%s: %d bytes of heap", name, took)
		}
	}
}
