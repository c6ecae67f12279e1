//go:build unix

package main

import (
	"strings"
	"syscall"
	"testing"
)

// A named pipe in the place of a file that is read more than once is refused in a line. To open it would wait for ever.
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
