package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Each part of make test is a stage of .ci/run.
func TestPartsAreStages(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	makefile, script := read("Makefile"), read(".ci/run")
	_, list, _ := strings.Cut(makefile, "\nPARTS ?= ")
	list, _, _ = strings.Cut(list, "\n")
	parts := strings.Fields(list)
	if len(parts) == 0 || !strings.Contains(makefile, "\ntest: $(PARTS) ") {
		t.Fatalf("make test has the parts %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(script, "\nstage make test SHORT=-short PARTS="+part+"\n") {
			t.Errorf(".ci/run does not run %s", part)
		}
	}
}

// .ci/run leaves out the tests of code only if pages alone have changed since a commit that has passed.
func TestPagesAlone(t *testing.T) {
	for _, tool := range []string{"git", "bash"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the script needs %s: %v", tool, err)
		}
	}
	script, err := os.ReadFile("../../.ci/words")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(env string, command ...string) (string, error) {
		c := exec.Command(command[0], command[1:]...)
		c.Dir = dir
		c.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a",
			"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a", "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir), "CI_BASE="+env)
		out, err := c.Output()
		return strings.TrimSpace(string(out)), err
	}
	must := func(command ...string) string {
		t.Helper()
		out, err := run("", command...)
		if err != nil {
			t.Fatalf("%q: %v\n%s", command, err, out)
		}
		return out
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	commit := func() string {
		t.Helper()
		must("git", "add", "-A")
		must("git", "commit", "-qm", "a change")
		return must("git", "rev-parse", "HEAD")
	}
	// want is the pages that have changed, and empty where everything has to run.
	since := func(what, base, want string) {
		t.Helper()
		got, err := run(base, "bash", ".ci/words", "since")
		if (err == nil) != (want != "") || got != want {
			t.Errorf("%s: %q, %v, want %q", what, got, err, want)
		}
	}
	write(".ci/words", string(script))
	write("a.go", "package a\n\nfunc long() {}\n")
	write("page.md", "text\n")
	since("no repository", "", "")
	must("git", "init", "-q")
	first := commit()
	since("no commit has passed", "", "")
	must("bash", ".ci/words", "passed", first)
	since("nothing has changed", "", "")
	write("page.md", "other\n")
	since("a page", "", "page.md")
	write("docs/b.md", "new\n")
	since("a page that is in no commit", "", "page.md\ndocs/b.md")
	write("b.go", "package a\n")
	since("code that is in no commit", "", "")
	if _, err := run("", "bash", ".ci/words", "passed", first); err == nil {
		t.Error("a tree that is no commit has passed")
	}
	commit()
	since("code in a commit", "", "")
	write("page.md", "last\n")
	last := commit()
	since("code in the commit before the last", "", "")
	since("a base that the system names", "HEAD^", "page.md")
	since("a base that there is not", "0123456", "")
	if _, err := run("", "bash", ".ci/words", "passed", first); err == nil {
		t.Error("a tree that has changed since has passed")
	}
	must("bash", ".ci/words", "passed", last)
	must("git", "mv", "a.go", "a.md")
	since("code that became a page", "", "")
	must("git", "reset", "-q", "--hard")
	write("testdata/a.md", "read by a test\n")
	since("data of a test", "", "")
	must("git", "clean", "-qfd")
	must("chmod", "-x", "a.go")
	write("page.md", "more\n")
	since("a mode", "", "")
}
