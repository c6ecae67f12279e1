package main

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// openTerminal makes a pseudo-terminal: what the test writes to keyboard, the program reads from screen.
func openTerminal(t *testing.T) (keyboard, screen *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("this system (a sandbox, as a rule) does not give pseudo-terminals, which the test types into: %v", err)
	}
	t.Cleanup(func() { keyboard.Close() })
	number := 0
	control, err := keyboard.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = control.Control(func(fd uintptr) {
		if err := unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err != nil {
			t.Error(err)
		}
		n, err := unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		if err != nil {
			t.Error(err)
		}
		number = n
	})
	if err != nil {
		t.Fatal(err)
	}
	if screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Skipf("this system (a sandbox, as a rule) does not give pseudo-terminals, which the test types into: %v", err)
	}
	t.Cleanup(func() { screen.Close() })
	return keyboard, screen
}
