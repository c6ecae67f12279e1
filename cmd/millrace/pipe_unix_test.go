//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Work that does not hear its context, here the reading of a run file that no process writes, is abandoned after a
// while.
func TestInterruptOfWhatHangs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.yaml")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := inProcess("is impatient", "train", path)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(path, os.O_WRONLY, 0) // until the program has opened it, to read it
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if cmd.ProcessState.ExitCode() != exitInterrupted || !strings.HasSuffix(stderr.String(), "was left as it was; nothing is lost\n") {
		t.Errorf("%v: %s", cmd.ProcessState, stderr.String())
	}
}

// A named pipe instead of a file that is read more than once is refused in a line. Opening it would wait forever.
func TestNamedPipes(t *testing.T) {
	for name, file := range map[string]string{"weights": "model/model.safetensors", "configuration": "model/config.json",
		"tokenizer": "model/tokenizer.json", "data": "data/a.txt"} {
		t.Run(name, func(t *testing.T) {
			w := newWorkshop(t)
			syscall.Unlink(w.path(file))
			if err := syscall.Mkfifo(w.path(file), 0o600); err != nil {
				t.Fatal(err)
			}
			args := []string{"train", w.path("run.yaml")}
			if name == "tokenizer" {
				args = append(args, "--set", "tokenizer=auto")
			}
			r := invoke(t, args...)
			if r.status != exitBadRequest || !strings.Contains(r.errorLine(), w.path(file)) || !strings.Contains(r.errorLine(), "regular file") {
				t.Errorf("status %d: %s", r.status, r.stderr)
			}
		})
	}
}
