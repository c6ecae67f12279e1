// Package outside has what runs share that ask other programs and servers: groups of processes that end together, the
// end of what a process writes, and errors of calls without the address that was called, which may be a secret.
package outside

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/terminal"
)

// TailBytes bounds what is kept of a process's output: its end.
const TailBytes = 400

// Tail keeps the end of an output. Any goroutine may use it.
type Tail struct {
	mu   sync.Mutex
	text []byte
}

// Write takes all of it.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p[max(len(p)-TailBytes, 0):]...)
	t.text = t.text[max(len(t.text)-TailBytes, 0):]
	return len(p), nil
}

// String is the output in a part of a line, with a colon before it.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	words := strings.Join(strings.Fields(strings.ToValidUTF8(string(t.text), "?")), " ")
	if words == "" {
		return ""
	}
	return ": " + terminal.Text(words)
}

// CallError is an error of an HTTP client without the address of the call, after a wait of that length at most.
func CallError(err error, patience time.Duration) error {
	if of := (*url.Error)(nil); errors.As(err, &of) { // which begins with the address
		if err = of.Err; of.Timeout() {
			err = fmt.Errorf("the server has not answered in %v", patience)
		}
	}
	return err
}
