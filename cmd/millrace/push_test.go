package main

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/hf/hub/hubtest"
	"github.com/millrace/millrace/train"
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
	done := jsonOf[train.PushReport](t, r.stdout)
	if done.Files != 2 || done.Commit != hubtest.Commit || !s.Private["models/me/tiny"] ||
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
