package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files of this package")

var allVerbs = []string{"train", "plan", "probe", "preview", "eval", "grad", "generate", "chat", "convert", "import",
	"export", "push", "checkpoint",
	"checkpoint list", "checkpoint verify", "bench", "trace", "serve", "report", "compare", "metrics", "sweep", "notify",
	"demo", "version", "completion", "man"}

// golden compares with a file below testdata, or writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got); after a change that is meant, run go test ./cmd/millrace -update\n%s", path, d)
	}
}

func TestHelp(t *testing.T) {
	useCache(t)
	t.Setenv("COLUMNS", "100")
	golden(t, "help.txt", invoke(t, "--help").must(t).stdout)
	if got := invoke(t).must(t).stdout; got != invoke(t, "--help").stdout {
		t.Errorf("without arguments: %s", got)
	}
	for _, verb := range allVerbs {
		r := invoke(t, append(strings.Fields(verb), "--help")...).must(t)
		golden(t, "help_"+strings.ReplaceAll(verb, " ", "_")+".txt", r.stdout)
		if !strings.Contains(r.stdout, "millrace "+verb) || r.stderr != "" {
			t.Errorf("%s: no example, or something on standard error: %q", verb, r.stderr)
		}
	}
	if all := invoke(t, "--help").stdout; strings.Count(all, "\n  ") < len(allVerbs) {
		t.Errorf("the list of verbs is not what this test knows:\n%s", all)
	}
}

// TestErrors has what is refused before anything is opened.
func TestErrors(t *testing.T) {
	useCache(t)
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	var all strings.Builder
	for _, args := range [][]string{
		{"tarin"},
		{"train", "--lr", "3"},
		{"train"},
		{"train", "no.yaml"},
		{"train", "a.yaml", "b.yaml"},
		{"plan"},
		{"plan", "--model", "no"},
		{"plan", "--model", "no", "--set", "nonsense"},
		{"plan", "--model", "no", "--set", "learning_rat=1"},
		{"plan", "--model", "no", "--set", "sequence_len=many"},
		{"plan", "--model", "no", "--set", "memory.device=20"},
		{"probe", "--device", "tpu"},
		{"probe", "--device", "cuda:0"},
		{"preview"},
		{"preview", "--limit=-1"},
		{"preview", "--json", "--html", "x.html"},
		{"preview", "--html", "no/x.html"},
		{"serve"},
		{"serve", ".", "--address", "x:y"},
		{"report"},
		{"report", "none"},
		{"report", "1", "2", "3", "4", "5", "6", "7"},
		{"report", "none", "--json", "--html", "x.html"},
		{"compare"},
		{"compare", "none"},
		{"compare", "none", "none"},
		{"sweep"},
		{"sweep", "seed=1,2"},
		{"sweep", "no.yaml", "seed=1,2"},
		{"notify", "no.yaml"},
		{"eval", "--model", "no"},
		{"eval", "--model", "no", "--data", "x", "--type", "csv"},
		{"eval", "--model", "no", "--data", "x", "--memory-device", "lots"},
		{"eval", "--model", "no", "--data", "x"},
		{"grad", "--model", "no", "--tokens", "x"},
		{"grad", "--model", "no", "--tokens", "x", "--out", "y", "--compute", "fp8"},
		{"generate", "--model", "no"},
		{"generate", "--model", "no", "--prompt", "x", "--max-tokens", "many"},
		{"import", "no.gguf"},
		{"import", "no.gguf", "out"},
		{"import", "no.gguf", "out", "--dtype", "int8"},
		{"export", "no", "out", "--dtype", "q8_0"},
		{"export", "no", "out"},
		{"export", "no"},
		{"export", "--checkpoint", "no", "--out", "out"},
		{"export", "--checkpoint", "no", "--model", "no", "--out", "out"},
		{"checkpoint", "list", "no"},
		{"checkpoint", "list", "."},
		{"checkpoint", "verify", "no/step-000001"},
		{"checkpoint", "prune", "no"},
		{"bench"},
		{"bench", "--model", "no", "--micro-batch=-1"},
		{"bench", "--model", "no"},
		{"bench", "--shape", "no"},
		{"bench", "--shape", "qwen2.5-7b", "--model", "no"},
		{"bench", "--shape", "qwen2.5-7b", "--stream", "never"},
		{"plan", "--shape", "qwen2.5-7b", "--trace", "no/trace.json"},
		{"trace"},
		{"trace", "no.json"},
		{"trace", "no.json", "--dark"},
		{"trace", "no.json", "--step=-1"},
	} {
		r := invoke(t, args...)
		name := "millrace " + strings.Join(args, " ")
		if r.status != exitBadRequest {
			t.Errorf("%s: exit status %d, want %d", name, r.status, exitBadRequest)
		}
		if r.stdout != "" || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%s: want one line on standard error and nothing on standard output: %q, %q", name, r.stderr, r.stdout)
		}
		fmt.Fprintf(&all, "$ %s\n%s", name, r.stderr)
	}
	if left, _ := os.ReadDir("."); len(left) != 0 {
		t.Errorf("something was written: %v", left)
	}
	t.Chdir(here)
	golden(t, "errors.txt", all.String())
}
