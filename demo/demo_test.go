package demo

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/blame"
)

// The book is ASCII, and no paragraph to speak of is both trained on and held out.
func TestBook(t *testing.T) {
	train, heldOut := readBook()
	if len(train) < 400_000 || len(heldOut) < 10_000 {
		t.Fatalf("%d bytes to train on, %d held out", len(train), len(heldOut))
	}
	for line := range strings.Lines(heldOut) {
		if len(line) > 80 && strings.Contains(train, line) {
			t.Errorf("also to train on: %s", line)
		}
	}
	for _, r := range train + heldOut {
		if r != '\n' && (r < ' ' || r > '~') {
			t.Fatalf("%q", r)
		}
	}
	if !strings.Contains(train, Prompt) {
		t.Error("the prompt has no words of the book")
	}
}

// Only a directory that is empty or marked is taken, and by one demo at a time.
func TestClaim(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "demo")
	held, err := claim(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := write(filepath.Join(dir, "run", "x"), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := claim(dir); err == nil || !strings.Contains(err.Error(), "another demo is writing there") {
		t.Errorf("claimed twice: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "run", "x")); err != nil {
		t.Errorf("a demo lost a file to one that was refused: %v", err)
	}
	if err := record(dir); err != nil {
		t.Fatal(err)
	}
	held.Close()
	held, err = claim(dir)
	if err != nil {
		t.Fatal(err)
	}
	held.Close()
	if _, err := os.Stat(filepath.Join(dir, "run")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the earlier demo is still there: %v", err)
	}

	mine := t.TempDir()
	if err := write(filepath.Join(mine, "thesis.txt"), []byte("years of work")); err != nil {
		t.Fatal(err)
	}
	if _, err := claim(mine); !errors.Is(err, blame.ErrRequest) {
		t.Errorf("a directory with other files: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(mine, "thesis.txt")); string(text) != "years of work" {
		t.Errorf("%q, %v", text, err)
	}
}

// TestClaimRemovesWhatADemoWrote: a file or a directory that someone else has put into the directory of a demo, or has
// changed there, stays, and so does all of the demo.
func TestClaimRemovesWhatADemoWrote(t *testing.T) {
	for name, put := range map[string]func(dir string) error{
		"a file":                func(dir string) error { return write(filepath.Join(dir, "notes.txt"), []byte("x")) },
		"a file in a directory": func(dir string) error { return write(filepath.Join(dir, "run", "notes"), []byte("x")) },
		"a model":               func(dir string) error { return write(filepath.Join(dir, "mine", "model.safetensors"), nil) },
		"an empty directory":    func(dir string) error { return os.Mkdir(filepath.Join(dir, "mine"), 0o777) },
		"a link":                func(dir string) error { return os.Symlink(t.TempDir(), filepath.Join(dir, "data")) },
		"a change":              func(dir string) error { return write(filepath.Join(dir, "run.yaml"), []byte("seed: 2, mine")) },
		"no list":               func(dir string) error { return os.WriteFile(filepath.Join(dir, marker), nil, 0o666) },
	} {
		dir := t.TempDir()
		held, err := claim(dir)
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(write(filepath.Join(dir, "run.yaml"), []byte("seed: 1")),
			write(filepath.Join(dir, "run", "checkpoints", "a"), []byte("weights")), record(dir), held.Close(), put(dir))
		if err != nil {
			t.Fatal(err)
		}
		before, _, err := filesIn(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := claim(dir); !errors.Is(err, blame.ErrRequest) {
			t.Errorf("%s: %v", name, err)
		}
		if after, _, err := filesIn(dir); err != nil || !slices.Equal(after, before) {
			t.Errorf("%s: %v are left of %v, %v", name, after, before, err)
		}
	}
}

// Wrapped lines have the words of the text in order, and the width at most.
func TestWrap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text, width := rapid.StringMatching(`[abé \n]{0,80}`).Draw(t, "text"), rapid.IntRange(1, 20).Draw(t, "width")
		lines := wrap(text, width)
		for _, line := range lines {
			if n := len([]rune(line)); n == 0 || n > width {
				t.Errorf("a line of %d characters: %q", n, line)
			}
		}
		plain := func(s string) string { return strings.Join(strings.Fields(s), "") }
		if got := plain(strings.Join(lines, "")); got != plain(text) {
			t.Errorf("%q became %q", text, lines)
		}
	})
}

// Lines of a run are shown in nats per byte, some of them where progress is not drawn; others are not about steps.
func TestProgress(t *testing.T) {
	var out, bars strings.Builder
	s := &stage{out: &output{w: &out}}
	p := s.progress(12, 0.25)
	for _, line := range []string{"resuming after step 6 from run/checkpoints/step-000006",
		"step  7/100  loss 6.0000  norm 1.449  lr 2.82e-03  636 tokens/s  1m06s left",
		"step  8/100  loss 4.0000  norm 1.449  lr 2.82e-03  636 tokens/s  1m05s left  eval loss 3.2"} {
		if step, ok := p.show(line); ok != strings.HasPrefix(line, "step") || ok && step != 7 && step != 8 {
			t.Errorf("step %d, %v of %s", step, ok, line)
		}
	}
	if got := out.String(); got != "step   8 of 100   loss 1.00 nats per byte   636 tokens/s   1m05s left\n" {
		t.Errorf("shown: %q", got)
	}
	s.bars = &bars
	p.show("step  9/100  loss 4.0000  norm 1.449  lr 2.82e-03  636 tokens/s  1m05s left")
	p.end()
	if !strings.HasPrefix(bars.String(), "\r\x1b[Kstep   9 of 100") || !strings.HasSuffix(bars.String(), "\r\x1b[K") {
		t.Errorf("drawn: %q", bars.String())
	}
}

// A text that a model wrote cannot act on a terminal, and colors are the stage's own.
func TestQuote(t *testing.T) {
	for _, color := range []bool{false, true} {
		var out strings.Builder
		s := &stage{out: &output{w: &out}, color: color}
		s.quote("The", " Sun\x1b[2J is")
		text := out.String()
		if !strings.Contains(text, `Sun\x1b[2J is`) || strings.Contains(text, "\x1b[2J") ||
			strings.Contains(text, "\x1b") != color {
			t.Errorf("color %v: %q", color, text)
		}
	}
}
