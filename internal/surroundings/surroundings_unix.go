//go:build unix

package surroundings

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// closeForChildren marks each descriptor but the standard ones, so that no process that is started has it. Those that this process
// has opened by Go are marked already.
func closeForChildren() {
	open, err := os.ReadDir("/dev/fd")
	if err != nil {
		return // there is no such list: what is inherited stays open
	}
	for _, f := range open {
		if n, err := strconv.Atoi(f.Name()); err == nil && n > 2 {
			unix.CloseOnExec(n)
		}
	}
}

func usualUmask() { unix.Umask(0o022) }
