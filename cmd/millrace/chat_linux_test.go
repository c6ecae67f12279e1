package main

import (
	"io"
	"os"
	"strings"
	"sync"
	"testing"
)

// impatient is a user who interrupts each answer when it begins.
type impatient struct {
	mu      sync.Mutex
	signals chan os.Signal
	waits   bool // for the first word after a prompt
	sent    int
	written int
}

// prompted is standard error.
func (i *impatient) prompted(text []byte) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.waits = i.waits || string(text) == "> "
}

// Write is standard output.
func (i *impatient) Write(text []byte) (int, error) {
	i.mu.Lock()
	interrupt := i.waits && len(text) > 0
	i.waits = i.waits && !interrupt
	i.written += len(text)
	i.mu.Unlock()
	if interrupt {
		i.sent++
		i.signals <- os.Interrupt
	}
	return len(text), nil
}

// Ctrl-C stops an answer that a user waits for, and the conversation continues: the next message has an answer, too.
// At the end of what is typed (Ctrl-D) the program ends well.
func TestChatInterrupted(t *testing.T) {
	_, flags := talkative(t)
	keyboard, screen := openTerminal(t)
	if _, err := io.WriteString(keyboard, "a\nb\n\x04"); err != nil {
		t.Fatal(err)
	}
	user := &impatient{signals: make(chan os.Signal)}
	status := run(append(flags, "--max-tokens", "4000"), screen, user, writerFunc(user.prompted), user.signals)
	if status != exitDone || user.sent != 2 || user.written > 6000 {
		t.Errorf("status %d, %d answers interrupted, %d bytes", status, user.sent, user.written)
	}
}

// A user who types is told at the start what can be typed, and a slip ends nothing.
func TestTypedChat(t *testing.T) {
	_, flags := talkative(t)
	keyboard, screen := openTerminal(t)
	if _, err := io.WriteString(keyboard, "/hlp\n/exit\na\n"); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr strings.Builder
	status := run(flags, screen, &stdout, &stderr, nil)
	first, rest, _ := strings.Cut(stderr.String(), "\n")
	if status != exitDone || stdout.String() != "" || !strings.HasPrefix(first, "Write a message. /help shows") ||
		!strings.Contains(rest, "there is no command /hlp: /help lists") || !strings.HasSuffix(rest, "\n> \n") {
		t.Errorf("status %d: %q, %q", status, stderr.String(), stdout.String())
	}
}
