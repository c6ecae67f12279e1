package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestNotify(t *testing.T) {
	w := newWorkshop(t)
	status, heard := http.StatusOK, map[string]any{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(body, &heard); err != nil {
			t.Error(err)
		}
		w.WriteHeader(status)
	}))
	defer server.Close()
	t.Setenv("HOOK", server.URL+"/s3cret")
	file := w.read("run.yaml")
	w.write("run.yaml", file+"notify:\n- {on: [slow], url: $HOOK}\n- {command: [\"true\"]}\n")
	r := invoke(t, "notify", w.path("run.yaml")).must(t)
	host := strings.TrimPrefix(server.URL, "http://")
	if want := "notify[0] (" + host + "): delivered\nnotify[1] (true): delivered\n"; r.stdout != want {
		t.Errorf("%q, want %q", r.stdout, want)
	}
	if heard["event"] != "test" || heard["run"] != w.path("out") || !strings.Contains(heard["text"].(string), "a test") {
		t.Errorf("%v", heard)
	}
	status = http.StatusForbidden
	r = invoke(t, "notify", w.path("run.yaml"))
	if r.status != exitFailed || !strings.Contains(r.stdout, "not delivered: the server answered 403 Forbidden") ||
		!strings.Contains(r.errorLine(), "1 of 2 notices not delivered") || strings.Contains(r.stdout+r.stderr, "s3cret") {
		t.Errorf("status %d: %s%s", r.status, r.stdout, r.stderr)
	}
	t.Setenv("HOOK", "")
	if r = invoke(t, "notify", w.path("run.yaml")); r.status != exitBadRequest ||
		!strings.Contains(r.errorLine(), "$HOOK") {
		t.Errorf("status %d: %s", r.status, r.stderr)
	}
	w.write("run.yaml", file)
	if r = invoke(t, "notify", w.path("run.yaml")); r.status != exitBadRequest ||
		!strings.Contains(r.errorLine(), "has no notices") {
		t.Errorf("status %d: %s", r.status, r.stderr)
	}
	if left := w.files("out"); len(left) > 0 {
		t.Errorf("it has made %v", left)
	}
}

// The card of a model shows no notices, even those of a file that the user has put where the run writes its own.
func TestCardsHaveNoNotices(t *testing.T) {
	w := newWorkshop(t)
	invoke(t, "train", w.path("run.yaml"), "notify=[{command: [\"true\", s3cret]}]").must(t)
	if text := w.read("out/run.yaml"); strings.Contains(text, "notify") {
		t.Errorf("the run's own file has notices:\n%s", text)
	}
	w.write("out/run.yaml", w.read("out/run.yaml")+"notify: [{url: \"https://example.com/s3cret\"}]\n")
	invoke(t, "export", "--checkpoint", w.path("out/checkpoints/step-000003"), "--model", w.path("model"), "--out",
		w.path("exported")).must(t)
	card := w.read("exported/README.md")
	if !strings.Contains(card, "learning_rate: 0.001") || strings.Contains(card, "s3cret") {
		t.Errorf("the card:\n%s", card)
	}
}
