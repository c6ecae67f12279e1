package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/fault"
)

// grace bounds the time that a process which was asked to end may take, and then the time that the system may take to
// end it. One that hangs in the GPU's driver may never end.
const grace = 3 * time.Second

// exitError reports that a program ended with another status than 0.
type exitError struct {
	status int
	text   string // the last lines that it wrote to standard error, or else to standard output
}

// crash matches what a Go program says when it ends itself, before it shows its goroutines.
var crash = regexp.MustCompile(`(?m)^(panic|fatal error): .*$`)

func (e *exitError) Error() string {
	said := e.text
	if why := crash.FindString(said); why != "" {
		said = why
	}
	return fmt.Sprintf("status %d: %s", e.status, oneLine(said))
}

// program finds a program in the folder, or else on PATH.
func (c *check) program(name string) string {
	here := filepath.Join(c.dir, name)
	if _, err := os.Stat(here); err == nil {
		return here
	}
	return name
}

// command runs a program until it ends or the row's time is up, and returns what it wrote to standard output. All
// that it starts ends with it. env has further variables, KEY=VALUE.
func (c *check) command(env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(c.program(name), args...)
	cmd.Dir = c.dir
	cmd.Env = append(append(os.Environ(), "MILLRACE_CACHE="+filepath.Join(c.work, "cache"), "PYTHONUNBUFFERED=1"), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = grace // of what keeps its output open
	var stdout, stderr bytes.Buffer
	log := logWriter{c}
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&stdout, log), io.MultiWriter(&stderr, log)
	c.logf("$ %s %s\n", name, strings.Join(args, " "))
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan struct{})
	var err error // once it has ended
	fault.Go(func() {
		defer close(ended)
		err = cmd.Wait()
	})
	group := -cmd.Process.Pid
	select {
	case <-ended:
	case <-c.ctx.Done():
		syscall.Kill(group, syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(grace):
		}
		syscall.Kill(group, syscall.SIGKILL)
		select {
		case <-ended:
		case <-time.After(2 * grace):
			return "", fmt.Errorf("%s cannot be ended: the driver holds it", name)
		}
		return stdout.String(), c.ctx.Err()
	}
	syscall.Kill(group, syscall.SIGKILL) // processes that it left running
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		text := stderr.String()
		if strings.TrimSpace(text) == "" {
			text = stdout.String()
		}
		return stdout.String(), &exitError{exit.ExitCode(), text}
	}
	return stdout.String(), err
}

// isStatus reports whether a program ended with a status.
func isStatus(err error, status int) bool {
	var exit *exitError
	return errors.As(err, &exit) && exit.status == status
}
