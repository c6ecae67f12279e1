package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPeersNote(t *testing.T) {
	path := filepath.Join(t.TempDir(), "peers.json")
	note := func(text string) (string, error) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return peersNote(path)
	}
	got, err := note(`{"a, 64 tokens: megatrain": [{"skipped": "it had made no step after 90 s", "stderr": "x"}],
		"a, 64 tokens: resident": [{"failed": "exit status 1: no"}],
		"b, 64 tokens: millrace": [{"step_sec": 3.05, "model_tflops": 479.6, "start_sec": {"import": 2}}],
		"b, 64 tokens: zero3-offload": [{"skipped": "left out: it takes 75 s"}]}`)
	want := "b, 64 tokens: millrace 3.050 s, 480 model TFLOP/s; " +
		"a, 64 tokens: megatrain: it had made no step after 90 s; " +
		"a, 64 tokens: resident: exit status 1: no; 1 rows left out"
	if err != nil || got != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	for _, text := range []string{`{`, `{"a": []}`, `[]`} {
		if got, err := note(text); err == nil {
			t.Errorf("%s: %q", text, got)
		}
	}
}

// The rows are told what this machine has, and a rehearsal takes a few of the table.
func TestPeersArgs(t *testing.T) {
	c := &check{config: &config{dir: "/d", gpu: "cuda:0", peers: "*7b* *3b*"}}
	c.hostBytes = 126 << 30
	got := strings.Join(c.peersArgs(), " ")
	want := "--plan /d/benchmarks/peers/one_call.json --device cuda --millrace /d/millrace --only *7b* *3b* " +
		"--memory-host 117"
	if got != want {
		t.Errorf("%s; want %s", got, want)
	}
	c.tiny = true
	rows, memory := c.peersArgs(), "--memory-host"
	if !slices.Equal(rows[len(rows)-len(tinyPeers):], tinyPeers) || slices.Contains(rows, memory) {
		t.Error(rows)
	}
}
