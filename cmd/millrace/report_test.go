package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	useCache(t)
	dir := t.TempDir()
	run, page := filepath.Join(dir, "run"), filepath.Join(dir, "page.html")
	records := `{"step":0,"loss":null,"eval_loss":5}` + "\n" + `{"step":1,"loss":4,"grad_norm":2,"learning_rate":0.001,` +
		`"tokens":100,"target_tokens":90,"step_sec":2,"host_peak_bytes":1073741824}
{"step":2,"loss":null,"grad_norm":null,"learning_rate":0.001,` +
		`"tokens":100,"target_tokens":90,"step_sec":2,"host_peak_bytes":1073741824,"eval_loss":3.5}
`
	if err := os.Mkdir(run, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(run, "metrics.jsonl"), []byte(records), 0o666); err != nil {
		t.Fatal(err)
	}
	text := invoke(t, "report", run).must(t).stdout
	for _, want := range []string{"1 to 2", "4.0000 -> NaN  4.0000        5.0000 -> 3.5000  3.5000 at step 2", "1.00 GiB"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in:\n%s", want, text)
		}
	}
	var all []struct {
		Steps   int64    `json:"last_step"`
		Last    *float64 `json:"last_loss"`
		Skipped int      `json:"skipped_steps"`
		Before  float64  `json:"eval_loss_before"`
	}
	if err := json.Unmarshal([]byte(invoke(t, "report", run, run, "--json").must(t).stdout), &all); err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 || all[1].Steps != 2 || all[1].Last != nil || all[1].Skipped != 1 || all[0].Before != 5 {
		t.Errorf("%+v", all)
	}
	invoke(t, "report", run, "--html", page).must(t)
	if html, err := os.ReadFile(page); err != nil || !strings.HasSuffix(string(html), "</html>\n") {
		t.Errorf("the page: %v, %s", err, html)
	}
}

// A page follows a run: it is written again while the run is going, asks to be loaded again, and no longer does when
// the run has ended, or the user ends the program.
func TestReportFollows(t *testing.T) {
	w := newWorkshop(t)
	w.write("out/x", "") // the run is about to begin
	page := func() (text string, refreshes bool) {
		text = w.read("live.html")
		return text, strings.Contains(text, `<meta http-equiv="refresh"`)
	}
	c := reportCmd{Runs: []string{w.path("out")}, HTML: w.path("live.html"), Follow: true}
	looks := 0
	err := c.follow(&program{ctx: t.Context()}, func(context.Context) error {
		text, refreshes := page()
		switch looks++; looks {
		case 1:
			if !refreshes || !strings.Contains(text, `"runs":[]`) {
				t.Errorf("before the first step: %s", text)
			}
			w.write("out/metrics.jsonl", `{"step":1,"loss":4}`+"\n")
		case 2:
			if !refreshes || !strings.Contains(text, `"first_step":1,"last_step":1,`) {
				t.Errorf("after a step: %s", text)
			}
			if err := os.RemoveAll(w.path("out")); err != nil {
				t.Fatal(err)
			}
			invoke(t, "train", w.path("run.yaml")).must(t)
		default:
			t.Fatalf("the run has ended, and the page is followed: %s", text)
		}
		return nil
	})
	if text, refreshes := page(); err != nil || refreshes || looks != 2 ||
		!strings.Contains(text, `"first_step":1,"last_step":3,`) {
		t.Errorf("after the end: error %v, %d looks, %s", err, looks, text)
	}

	w.write("gone/metrics.jsonl", `{"step":1,"loss":4}`+"\n")
	c.Runs = []string{w.path("gone/metrics.jsonl"), w.path("out")}
	err = c.follow(&program{ctx: t.Context()}, func(context.Context) error { return context.Canceled })
	if text, refreshes := page(); !errors.Is(err, context.Canceled) || refreshes ||
		strings.Count(text, `"first_step"`) != 4 {
		t.Errorf("interrupted: error %v, %s", err, text)
	}
	for _, args := range [][]string{{"report", w.path("out"), "--follow"},
		{"report", w.path("nowhere"), "--html", w.path("live.html"), "--follow"}} {
		if r := invoke(t, args...); r.status != exitBadRequest {
			t.Errorf("%v: status %d, %s", args, r.status, r.stderr)
		}
	}
}
