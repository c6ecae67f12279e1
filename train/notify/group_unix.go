//go:build unix

package notify

import (
	"os/exec"
	"syscall"
)

// inOwnGroup has a command lead a group of processes, all of which end with its context. A Ctrl-C at the terminal is
// for the run alone.
func inOwnGroup(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
}
