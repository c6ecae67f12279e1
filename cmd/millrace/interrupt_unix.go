//go:build unix

package main

import (
	"os"
	"syscall"
)

// launcherSignals ask for an end as well where a launcher has started several processes: that of Open MPI passes
// SIGUSR1 on, and kills the processes soon after others.
var launcherSignals = []os.Signal{syscall.SIGUSR1}
