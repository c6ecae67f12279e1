//go:build unix

package outside

import (
	"os"
	"os/exec"
	"syscall"
)

// InOwnGroup has a command lead a group of processes, all of which end with its context. A Ctrl-C at the terminal is
// for the run alone.
func InOwnGroup(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return EndGroup(c.Process) }
}

// EndGroup ends a process that leads a group, and all others of the group, also where it has ended itself.
func EndGroup(p *os.Process) error { return syscall.Kill(-p.Pid, syscall.SIGKILL) }
