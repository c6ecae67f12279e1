package main

import (
	"os"
	"strings"
	"testing"

	"github.com/millrace/millrace/hf/hub"
	"github.com/millrace/millrace/hf/hub/hubtest"
	"github.com/millrace/millrace/train/export"
)

// TestPush trains nothing: it pushes a model and a file, and runs into what can be wrong.
func TestPush(t *testing.T) {
	w := newWorkshop(t)
	s, _ := hubtest.Start(t)
	s.Token = "hf_secret"

	r := invoke(t, "push", w.path("model"), "me/tiny")
	if r.status != exitBadRequest || !strings.Contains(r.errorLine(), "HF_TOKEN") {
		t.Errorf("without a token: status %d, %s", r.status, r.stderr)
	}
	t.Setenv("HF_TOKEN", s.Token)
	r = invoke(t, "push", w.path("model"), "me/tiny", "--dry-run").must(t)
	if !strings.Contains(r.stdout, "config.json") || !strings.Contains(r.stdout,
		"2 files for me/tiny, branch main; nothing was sent") || len(s.Requests) > 0 {
		t.Errorf("%s, %d requests", r.stdout, len(s.Requests))
	}
	r = invoke(t, "push", w.path("model"), "me/tiny", "--private", "--message", "tiny", "--json").must(t)
	done := jsonOf[export.PushReport](t, r.stdout)
	if done.Visibility != hub.Absent || done.Files != 2 || done.Commit != hubtest.Commit || !s.Private["models/me/tiny"] ||
		s.Commits[0].Summary != "tiny" || done.DryRun {
		t.Errorf("%s; %+v", r.stdout, s.Commits)
	}
	if got := s.Repos["models/me/tiny"].Files["config.json"]; got != tinyConfig {
		t.Errorf("config.json arrived as %q", got)
	}
	r = invoke(t, "push", w.path("model"), "me/tiny").must(t)
	if want := "all 2 files are there already"; !strings.Contains(r.stdout, want) {
		t.Errorf("no %q in %q", want, r.stdout)
	}
	w.write("a.gguf", "GGUF")
	invoke(t, "push", w.path("a.gguf"), "me/tiny", "--revision", "gguf").must(t)
	if got := s.Repos["models/me/tiny"].Revisions["gguf"]["a.gguf"]; got != "GGUF" {
		t.Errorf("a.gguf arrived as %q", got)
	}
	// Other verbs load the pushed model from the hub.
	invoke(t, "export", "me/tiny", w.path("loaded")).must(t)

	s.ReadOnly = true
	if r = invoke(t, "push", w.path("a.gguf"), "me/tiny"); r.status != exitBadRequest || !strings.Contains(r.errorLine(),
		"may write") {
		t.Errorf("a token that may not write: status %d, %s", r.status, r.stderr)
	}
	t.Setenv("HF_ENDPOINT", "http://127.0.0.1:1")
	if r = invoke(t, "push", w.path("a.gguf"), "me/tiny"); r.status != exitFailed || !strings.Contains(r.errorLine(),
		"cannot be reached") {
		t.Errorf("a server that is down: status %d, %s", r.status, r.stderr)
	}
}

// A push has the files of a model, and others only if they are asked for. It says what it leaves out, what is a link,
// and who can see the repository.
func TestPushOfOtherFiles(t *testing.T) {
	w := newWorkshop(t)
	s, _ := hubtest.Start(t)
	s.Token = "hf_secret"
	t.Setenv("HF_TOKEN", s.Token)
	w.write("model/train.jsonl", "{}")
	w.write("model/data/more.jsonl", "{}")
	w.write("model/LICENSE", "free")
	w.link("LICENSE", "model/NOTICE")

	r := invoke(t, "push", w.path("model"), "me/tiny", "--dry-run").must(t)
	for _, want := range []string{"NOTICE  (a link to LICENSE)", "left out", "--all", "data/, train.jsonl",
		"4 files for me/tiny"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("no %q in %q", want, r.stdout)
		}
	}
	r = invoke(t, "push", w.path("model"), "me/tiny", "--dry-run", "--all", "--json").must(t)
	if done := jsonOf[export.PushReport](t, r.stdout); len(done.Named) != 6 || len(done.LeftOut) > 0 ||
		done.Visibility != "" {
		t.Errorf("%s", r.stdout)
	}
	if len(s.Requests) > 0 {
		t.Errorf("a dry run sent %v", s.Requests)
	}
	r = invoke(t, "push", w.path("model"), "me/tiny").must(t)
	if !strings.Contains(r.stderr, "a new repository, which is public") || !strings.Contains(r.stderr, "train.jsonl") ||
		s.Repos["models/me/tiny"].Files["train.jsonl"] != "" {
		t.Errorf("%s", r.stderr)
	}
	r = invoke(t, "push", w.path("model"), "me/tiny", "--all", "--private").must(t)
	if !strings.Contains(r.stderr, "a public repository: --private does not change") ||
		s.Repos["models/me/tiny"].Files["data/more.jsonl"] != "{}" {
		t.Errorf("%s", r.stderr)
	}
	s.Private["models/me/tiny"] = true
	r = invoke(t, "push", w.path("model"), "me/tiny", "--yes").must(t)
	if !strings.Contains(r.stderr, "a private repository") {
		t.Errorf("%s", r.stderr)
	}
}

// What belongs to a run is not pushed, however deep and with --all, too.
func TestPushOfARun(t *testing.T) {
	w := newWorkshop(t)
	s, _ := hubtest.Start(t)
	s.Token = "hf_secret"
	t.Setenv("HF_TOKEN", s.Token)
	for _, name := range []string{"metrics.jsonl", "checkpoints/step-000001/manifest.json"} {
		for _, at := range []string{"model/", "model/runs/a/"} {
			w := furnish(t, t.TempDir())
			w.write(at+name, "{}")
			if at != "model/" {
				invoke(t, "push", w.path("model"), "me/x", "--dry-run").must(t) // left out
			}
			r := invoke(t, "push", w.path("model"), "me/x", "--all")
			want := w.path(at + "model")
			if line := r.errorLine(); r.status != exitBadRequest ||
				!strings.Contains(line, "training run") || !strings.Contains(line, want) {
				t.Errorf("%s%s: status %d, no %s in %s", at, name, r.status, want, r.stderr)
			}
		}
	}
	w.write("sub/config.json", "{}")
	w.write("sub2/a.gguf", "GGUF")
	if r := invoke(t, "push", w.dir, "me/x", "--all"); r.status != exitBadRequest ||
		!strings.Contains(r.errorLine(), "config.json") {
		t.Errorf("a model that is not at the top: status %d, %s", r.status, r.stderr)
	}
	if len(s.Requests) > 0 {
		t.Errorf("sent: %v", s.Requests)
	}
}

// Names of files cannot act on the terminal, neither in lists nor in notes.
func TestPushOfEscapes(t *testing.T) {
	w := newWorkshop(t)
	s, _ := hubtest.Start(t)
	s.Token = "hf_secret"
	t.Setenv("HF_TOKEN", s.Token)
	const name = "a\x1b]0;title\x07.txt"
	w.write("model/"+name, "text")
	s.Ignore = name
	for _, args := range [][]string{{"--all"}, {"--all", "--dry-run"}, nil} {
		r := invoke(t, append([]string{"push", w.path("model"), "me/tiny"}, args...)...).must(t)
		if text := r.stdout + r.stderr; strings.ContainsAny(text, "\x1b\x07") ||
			!strings.Contains(text, `a\x1b]0;title\x07.txt`) {
			t.Errorf("%v: %q", args, text)
		}
	}
}

// A run stands for the model that it wrote. If its checkpoints are newer, nothing is sent.
func TestPushTakesTheModelOfARun(t *testing.T) {
	w := newWorkshop(t)
	invoke(t, "train", w.path("run.yaml")).must(t)
	r := invoke(t, "push", w.path("out"), "me/tiny", "--dry-run").must(t)
	if !strings.Contains(r.stderr, "using "+w.path("out/model")) || !strings.Contains(r.stdout, "README.md") ||
		strings.Contains(r.stdout, "metrics.jsonl") {
		t.Errorf("%s%s", r.stderr, r.stdout)
	}
	invoke(t, "train", w.path("run.yaml"), "max_steps=4", "resume_with=[max_steps]").must(t)
	if err := os.RemoveAll(w.path("out/model")); err != nil {
		t.Fatal(err)
	}
	if r := invoke(t, "push", w.path("out"), "me/tiny", "--dry-run"); r.status != exitBadRequest ||
		!strings.Contains(r.errorLine(), "training run") {
		t.Errorf("a run without a model: status %d, %s", r.status, r.stderr)
	}
}
