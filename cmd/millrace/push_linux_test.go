package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/millrace/millrace/hf/hub/hubtest"
)

// On a terminal a push asks, unless it is told not to.
func TestPushAsks(t *testing.T) {
	w := newWorkshop(t)
	s, _ := hubtest.Start(t)
	s.Token = "hf_secret"
	t.Setenv("HF_TOKEN", s.Token)
	for _, c := range []struct {
		typed  string
		args   []string
		status int
	}{{"\n", nil, exitBadRequest}, {"no\n", nil, exitBadRequest}, {"\x04", nil, exitBadRequest},
		{"yess\n", nil, exitBadRequest},
		{"Y\n", nil, exitDone}, {"", []string{"--yes"}, exitDone}, {"", []string{"-y"}, exitDone}} {
		keyboard, screen := openTerminal(t)
		if _, err := keyboard.WriteString(c.typed); err != nil {
			t.Fatal(err)
		}
		s.Commits, s.Repos = nil, map[string]*hubtest.Repo{}
		var stdout, stderr bytes.Buffer
		status := run(append([]string{"push", w.path("model"), "me/tiny"}, c.args...), screen, &stdout, &stderr, nil)
		if status != c.status || len(s.Commits) != map[int]int{exitDone: 1, exitBadRequest: 0}[status] {
			t.Errorf("%q %v: status %d, commits %+v: %s", c.typed, c.args, status, s.Commits, stderr.String())
		}
		if asked := strings.Contains(stderr.String(), "[y/N]"); asked != (c.args == nil) {
			t.Errorf("%q %v: asked is %v: %s", c.typed, c.args, asked, stderr.String())
		}
		if c.status != exitDone && !strings.Contains(stderr.String(), "--yes") {
			t.Errorf("%s", stderr.String())
		}
	}
}
