//go:build unix

package main

import (
	"os"
	"syscall"
)

// launcherSignals ask for an end as well where a launcher has started the program: that of Open MPI passes SIGUSR1 on,
// and kills the processes soon after others, and jobs of Slurm ask for it before their time is up.
var launcherSignals = []os.Signal{syscall.SIGUSR1}
