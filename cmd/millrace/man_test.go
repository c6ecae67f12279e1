package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Each page names each flag and each argument, and troff has nothing to say.
func TestManPages(t *testing.T) {
	useCache(t)
	dir := filepath.Join(t.TempDir(), "man1")
	invoke(t, "man", dir).must(t)
	parser, err := newParser(io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	_, noGroff := exec.LookPath("groff")
	if noGroff != nil {
		t.Log("groff is not installed, so troff is not asked about the pages")
	}
	for _, node := range nodes(parser.Model.Node) {
		path := filepath.Join(dir, pageOf(node)+".1")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, f := range node.Flags {
			if !strings.Contains(string(text), `\fB`+roff("--"+f.Name)+`\fR`) {
				t.Errorf("%s has no --%s", path, f.Name)
			}
		}
		for _, arg := range node.Positional {
			if !strings.Contains(string(text), "\n.I "+roff(arg.Name)+"\n") {
				t.Errorf("%s has no %s", path, arg.Name)
			}
		}
		for i, c := range text {
			if c >= 0x80 {
				t.Errorf("%s: byte %d is not ASCII, which old programs take for Latin-1", path, i)
				break
			}
		}
		if noGroff != nil {
			continue
		}
		cmd := exec.Command("groff", "-ww", "-b", "-man", "-Tascii", path)
		var said strings.Builder
		cmd.Stdout, cmd.Stderr = io.Discard, &said
		if err := cmd.Run(); err != nil || said.String() != "" {
			t.Errorf("groff %s: %v: %s", path, err, &said)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != len(nodes(parser.Model.Node)) {
		t.Errorf("%d pages: %v", len(left), err)
	}
}

// What troff would take for a request or an escape is shown as it is.
func TestRoff(t *testing.T) {
	useCache(t)
	for text, want := range map[string]string{
		".TH":        `\&.TH`,
		"a\n.b":      "a\n\\&.b",
		"'quoted'":   `\(aqquoted\(aq`,
		`a\nb`:       `a\enb`,
		"--set a=-1": `\-\-set a=\-1`,
	} {
		if got := roff(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if r := invoke(t, "man", "/dev/null/x"); r.status != exitBadRequest {
		t.Errorf("a directory that cannot be: status %d, %s", r.status, r.stderr)
	}
}
