package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	useCache(t)
	dir := t.TempDir()
	run, page := filepath.Join(dir, "run"), filepath.Join(dir, "page.html")
	records := `{"step":1,"loss":4,"grad_norm":2,"learning_rate":0.001,` +
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
	for _, want := range []string{"1 to 2", "4.0000 -> 4.0000", "3.5000 at step 2", "1.00 GiB"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in:\n%s", want, text)
		}
	}
	var all []struct {
		Steps   int64    `json:"last_step"`
		Last    *float64 `json:"last_loss"`
		Skipped int      `json:"skipped_steps"`
	}
	if err := json.Unmarshal([]byte(invoke(t, "report", run, run, "--json").must(t).stdout), &all); err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 || all[1].Steps != 2 || all[1].Last != nil || all[1].Skipped != 1 {
		t.Errorf("%+v", all)
	}
	invoke(t, "report", run, "--html", page).must(t)
	if html, err := os.ReadFile(page); err != nil || !strings.HasSuffix(string(html), "</html>\n") {
		t.Errorf("the page: %v, %s", err, html)
	}
}
