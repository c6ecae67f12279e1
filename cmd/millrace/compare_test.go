package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCompare(t *testing.T) {
	w := newWorkshop(t)
	held := "eval.datasets=[{path: " + w.path("data/b.txt") + ", type: text}]"
	for run, settings := range map[string][]string{"runs/a": {held},
		"runs/b": {held, "learning_rate=1e-2", "save.every=2"}} {
		invoke(t, append([]string{"train", w.path("run.yaml"), "output_dir=" + w.path(run)}, settings...)...).must(t)
	}
	t.Setenv("LC_ALL", "C.UTF-8")
	text := invoke(t, "compare", w.path("runs/a"), w.path("runs/b")+"/").must(t).stdout
	for _, want := range []string{"in " + w.path("runs") + "\n", "run               a  ", "steps             1 to 3",
		"\n* the best\n", "\nloss, steps 1 to 3\n  a  █", "\neval loss, steps 1 to 3\n  a  ",
		"settings that differ  a      b\n", "learning_rate         0.001  0.01\n", "save.every            -      2\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in:\n%s", want, text)
		}
	}
	if strings.Contains(text, "output_dir") || strings.Contains(text, "\x1b") || !strings.Contains(text, " *") {
		t.Errorf("it names output_dir, acts on the terminal, or has no best:\n%s", text)
	}
	t.Setenv("LC_ALL", "C")
	if text := invoke(t, "compare", w.path("runs/a"), w.path("runs/b")).must(t).stdout; strings.ContainsFunc(text,
		func(r rune) bool { return r > 127 }) {
		t.Errorf("not plain ASCII:\n%s", text)
	}
	type object struct {
		Runs []struct {
			Steps int64 `json:"last_step"`
		}
		Best     map[string][]int
		Settings []differentKey
		Notes    []string
	}
	got := jsonOf[object](t, invoke(t, "compare", w.path("runs/a"), w.path("runs/b"), "--json").must(t).stdout)
	if len(got.Runs) != 2 || got.Runs[1].Steps != 3 || len(got.Best["least_eval_loss"]) != 1 || len(got.Settings) != 2 ||
		got.Settings[1].Key != "save.every" || got.Settings[1].Values[0] != nil || *got.Settings[1].Values[1] != "2" {
		t.Errorf("%+v", got)
	}

	// A run in progress has its records alone, the last one half written; nothing tells its settings.
	w.write("runs/c/metrics.jsonl", `{"step":1,"loss":4,"step_sec":1}`+"\n"+`{"step":2,"lo`)
	text = invoke(t, "compare", w.path("runs/a"), w.path("runs/c/metrics.jsonl")).must(t).stdout
	if !strings.Contains(text, "1 to 1") || !strings.Contains(text, "the settings of "+w.path("runs/c/metrics.jsonl")+
		" are not known") || strings.Contains(text, "settings that differ") {
		t.Errorf("of a run in progress:\n%s", text)
	}
	if err := os.Mkdir(w.path("runs/d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{w.path("runs/a"), w.path("runs/d")}, {w.path("runs/a"), w.path("none")}} {
		if r := invoke(t, append([]string{"compare"}, args...)...); r.status != exitBadRequest ||
			!strings.Contains(r.errorLine(), "name ") || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%v: status %d, %s", args, r.status, r.stderr)
		}
	}
}

// Losses of other tokens are not compared, and a line says so.
func TestCompareOtherTokens(t *testing.T) {
	w := newWorkshop(t)
	for run, seed := range map[string]string{"a": "42", "b": "1"} {
		invoke(t, "train", w.path("run.yaml"), "output_dir="+w.path(run), "val_size=4", "seed="+seed,
			"datasets=[{path: "+w.path("data/a.txt")+", type: text, lines: true}]").must(t)
	}
	text := invoke(t, "compare", w.path("a"), w.path("b")).must(t).stdout
	if want := "losses of evaluations are of other tokens (seed)"; !strings.Contains(text, want) ||
		strings.Contains(text, "training losses are") {
		t.Errorf("%q is not in:\n%s", want, text)
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, "eval loss") && strings.Contains(line, "*") {
			t.Errorf("an evaluation is called the best: %s", line)
		}
	}
}

func TestColumns(t *testing.T) {
	head, rows := []string{"run", "a", "bb", "c"}, [][]string{{"x", "1", "2", "33"}, {"long", "", "4", "5"}}
	for width, want := range map[int]string{
		0:  "run   a  bb  c\nx     1  2   33\nlong     4   5\n",
		15: "run   a  bb  c\nx     1  2   33\nlong     4   5\n",
		14: "run   a  bb\nx     1  2\nlong     4\n\nrun   c\nx     33\nlong  5\n",
		1:  "run   a\nx     1\nlong\n\nrun   bb\nx     2\nlong  4\n\nrun   c\nx     33\nlong  5\n",
	} {
		if d := cmp.Diff(want, columns(head, rows, width)); d != "" {
			t.Errorf("in %d: %s", width, d)
		}
	}
	short, within := shortNames([]string{"runs/lr/a", "runs/lr/b/c/", "runs/lr/d"})
	if d := cmp.Diff([]string{"a", "b/c", "d"}, short); d != "" || within != "runs/lr" {
		t.Errorf("%s, %q", d, within)
	}
	if short, within = shortNames([]string{"a", "/b"}); within != "" || short[1] != "/b" {
		t.Errorf("%q in %q", short, within)
	}
}
