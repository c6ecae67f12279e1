package mpi

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Error reports the failure of a message: a rank has ended or hangs, or the network between the hosts fails. The
// message may not fail the next time.
type Error struct{ error }

// OfMachine reports that the request is not to blame.
func (*Error) OfMachine() bool { return true }

func (e *Error) Unwrap() error { return e.error }

// messageError is an Error, unless a context has ended.
func messageError(err error) error {
	_, is := errors.AsType[*Error](err)
	if is || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &Error{err}
}

// notFound says that no library was found for a launch, or why those that are there are of no use.
func notFound(l Launch, names []string, reasons []error) error {
	if len(reasons) > 0 {
		return fmt.Errorf("the MPI library does not load: %w; %s names another one by its path", reasons[0], libraryEnv)
	}
	install := map[Launcher]string{OpenMPI: "Open MPI", Hydra: "MPICH"}[l.Launcher]
	if install == "" {
		install = "Open MPI or MPICH"
	}
	last := len(names) - 1
	return fmt.Errorf("%s started this process, and no MPI library was found: neither next to the launcher and "+
		"mpiexec nor in the linker's and the usual directories is %s or %s; install %s on this host, or name the "+
		"library's path in %s", l.Launcher, strings.Join(names[:last], ", "), names[last], install, libraryEnv)
}

// agrees compares what the library says with what the launcher said. Each process of a launcher that the library does
// not know is rank 0 of 1.
func agrees(l Launch, j joined) error {
	if (l.Size == 0 || j.size == l.Size) && j.rank == l.Rank {
		return nil
	}
	of := ""
	if l.Size > 0 {
		of = fmt.Sprintf(" of %d", l.Size)
	}
	return fmt.Errorf("%s started this process as rank %d%s, and %s takes it for rank %d of %d: launcher and "+
		"library are not of one MPI; use the mpiexec of that library, or name the launcher's library in %s",
		l.Launcher, l.Rank, of, j.version, j.rank, j.size, libraryEnv)
}

// who names ranks with their hosts, as far as these are known.
func who(ranks []int, hosts []string) string {
	words := make([]string, len(ranks))
	for i, r := range ranks {
		words[i] = fmt.Sprint(r)
		if r < len(hosts) {
			words[i] += " (host " + hosts[r] + ")"
		}
	}
	if len(words) == 1 {
		return "rank " + words[0]
	}
	last := len(words) - 1
	return "ranks " + strings.Join(words[:last], ", ") + " and " + words[last]
}
