// Package browsertest drives a browser in tests of the page that millrace serve shows.
//
//   - [Start] starts Chromium without a window, where it is installed.
//   - [Browser.Open] opens a page in a tab of its own, of a given width.
//   - [Page.Wait] waits until an expression is true on the page, [Page.Get] computes one, [Page.Press],
//     [Page.Click] and [Page.Drag] are a user, and [Page.Picture] is what the user sees.
//
// The browser is told over two pipes what to do, by the DevTools protocol
// (https://chromedevtools.github.io/devtools-protocol/): messages of JSON, each ended by a zero byte. So there is
// no port, and no library. A message that is awaited is read by the caller, so there is no goroutine either.
//
// Invariants: a page keeps every error that its console had and every address that it asked for, so a test can say that
// there was no error and that no request left the machine. The browser itself can reach no host but this one.
package browsertest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// names lists the programs that are Chromium.
var names = []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}

// Browser is a running Chromium.
type Browser struct {
	to     *os.File
	from   *bufio.Reader
	number int              // of the last command
	pages  map[string]*Page // by session
}

// Start starts Chromium for a test, which ends it. The test is skipped where no Chromium is installed.
func Start(t testing.TB) *Browser {
	t.Helper()
	program := ""
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		t.Skipf("no Chromium is installed: none of %s is in the PATH", strings.Join(names, ", "))
	}
	toRead, toWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fromRead, fromWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c := exec.Command(program, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
		"--no-first-run",
		"--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--disable-extensions", "--disable-default-apps", "--mute-audio", "--force-color-profile=srgb",
		"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--user-data-dir="+filepath.Join(dir,
			"profile"), "about:blank")
	c.ExtraFiles = []*os.File{toRead, fromWrite} // descriptors 3 and 4
	c.Env = append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_CACHE_HOME="+dir)
	said, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	c.Stderr = said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	toRead.Close()
	fromWrite.Close()
	b := &Browser{to: toWrite, from: bufio.NewReaderSize(fromRead, 1<<20), pages: map[string]*Page{}}
	t.Cleanup(func() {
		b.send("", "Browser.close", nil)
		toWrite.Close()
		c.Wait()
		fromRead.Close()
		said.Close()
	})
	return b
}

// message is a command, its answer, or an event.
type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  any             `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

func (b *Browser) send(session, method string, params any) error {
	b.number++
	text, err := json.Marshal(message{ID: b.number, Session: session, Method: method, Params: params})
	if err != nil {
		return err
	}
	_, err = b.to.Write(append(text, 0))
	return err
}

// ask sends a command and reads until its answer, whose fields result gets. Events that come before are noted.
func (b *Browser) ask(session, method string, params, result any) error {
	if err := b.send(session, method, params); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	for number := b.number; ; {
		text, err := b.from.ReadBytes(0)
		if err != nil {
			return fmt.Errorf("%s: the browser has ended: %w", method, err)
		}
		var m struct {
			message
			Params json.RawMessage `json:"params"`
		}
		if err := json.Unmarshal(text[:len(text)-1], &m); err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
		switch {
		case m.ID == 0:
			if p := b.pages[m.Session]; p != nil {
				p.note(m.Method, m.Params)
			}
		case m.ID == number && m.Error != nil:
			return fmt.Errorf("%s: %s", method, m.Error.Message)
		case m.ID == number && result != nil:
			return json.Unmarshal(m.Result, result)
		case m.ID == number:
			return nil
		}
	}
}
