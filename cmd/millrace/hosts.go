package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/cores"
	"github.com/millrace/millrace/internal/mpi"
	"github.com/millrace/millrace/train"
)

// hosts is the program as one of several processes that a launcher such as mpiexec has started. The zero value is a
// program alone.
type hosts struct {
	part  int // of the GPUs of this machine, of the parts that its processes share
	parts int // 0: all of them are the program's
}

// launched reports whether a launcher has started the program, in one process or several.
func launched() bool {
	l, err := mpi.Detect(os.Getenv, os.Args)
	return err == nil && l.Launcher != mpi.None
}

func isSeveral(l mpi.Launch) bool { return l.Launcher != mpi.None && l.Size != 1 }

// severalVerbs are the verbs that a launcher may start several processes of: train, which makes them the hosts of a
// run, and those that say something of each machine.
var severalVerbs = []string{"train", "probe", "version"}

// checkLauncher refuses several processes of a verb that is for one.
func checkLauncher(verb string) error {
	l, err := mpi.Detect(os.Getenv, os.Args)
	if err != nil || !isSeveral(l) || slices.Contains(severalVerbs, verb) {
		return nil // train alone asks what is wrong with a launcher
	}
	return badFlag("%s started several processes, and %s is for one: run it without the launcher; in a shell that has "+
		"its variables, unset %s", l.Launcher, verb, mpi.Variables(os.Getenv))
}

// join makes the program a host of a run, where a launcher has started several processes. No wait for another one is
// longer than the timeout, unless steps are.
func (p *program) join(timeout time.Duration) error {
	l, err := mpi.Detect(os.Getenv, os.Args)
	if err != nil {
		return blame.BadRequest(err)
	}
	if !isSeveral(l) {
		return nil
	}
	w, err := mpi.Start(l, timeout)
	if err != nil {
		return err
	}
	p.world.Store(w)
	if w.Size == 1 {
		return nil
	}
	c := &train.Cluster{Host: w.Rank, Hosts: w.Size, Names: w.Hosts, Local: w.Local, Peers: mpi.Peers{World: w},
		WaitUpTo: w.WaitUpTo, TellBy: func(standing func() (string, int)) { w.TellBy(standing) }}
	p.env.Cluster = c
	if w.Rank > 0 {
		p.stderr.speakAs(c.Name(w.Rank))
	}
	p.note(fmt.Sprintf("%d processes on %s, started by %s, with %s", w.Size, machines(w.Hosts), l.Launcher, w.Library))
	return p.divide(c, l)
}

// machines names the machines of processes, each once, with the number of processes where it has several.
func machines(names []string) string {
	count := map[string]int{}
	var order []string
	for _, name := range names {
		if count[name] == 0 {
			order = append(order, name)
		}
		count[name]++
	}
	for i, name := range order {
		if count[name] > 1 {
			order[i] = fmt.Sprintf("%s (%d)", name, count[name])
		}
	}
	const most = 8
	if len(order) > most {
		order = append(order[:most], fmt.Sprintf("%d other machines", len(order)-most))
	}
	return strings.Join(order, ", ")
}

// divide gives the processes of a machine a share each of its cores and GPUs, unless the launcher has bound them to
// some of their own.
func (p *program) divide(c *train.Cluster, l mpi.Launch) error {
	processors, err := cores.Allowed(0)
	if err != nil {
		processors = nil // they are the system's to divide
	}
	all, err := c.Peers.Exchange(fmt.Appendf(nil, "%v\n%s", processors, os.Getenv("CUDA_VISIBLE_DEVICES")))
	if err != nil {
		return err
	}
	mine, gpus, _ := strings.Cut(string(all[c.Host]), "\n")
	sameCores := 0
	for _, host := range c.Local {
		theirs, theirGPUs, _ := strings.Cut(string(all[host]), "\n")
		if theirs == mine {
			sameCores++
		}
		if theirGPUs == gpus {
			if host == c.Host {
				p.hosts.part = p.hosts.parts
			}
			p.hosts.parts++
		}
	}
	if sameCores > 1 {
		runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0)/sameCores, 1))
		return nil
	}
	if launcher, err := cores.Allowed(os.Getppid()); err == nil && len(processors)*len(c.Local) < len(launcher) {
		p.stderr.line("millrace: warning: %s bound this process to %d of the %d processors that it has itself: start "+
			"with --bind-to none, or with srun --cpu-bind=none", l.Launcher, len(processors), len(launcher))
	}
	return nil
}

// leave ends the process with a status, in the way that the library and the launcher expect. It returns where the
// program is alone.
func (p *program) leave(status int, err error) {
	switch w := p.world.Load(); {
	case w == nil:
	case err == nil || isOfAll(err) || w.Size == 1:
		w.Leave(status)
	default:
		w.Abort(status)
	}
}

// quit ends the process at once, and those of the other hosts, which would wait for it.
func (p *program) quit(status int) {
	if w := p.world.Load(); w != nil && w.Size > 1 {
		w.Abort(status)
	}
	os.Exit(status)
}

// isOfAll reports whether all hosts end with an error.
func isOfAll(err error) bool {
	_, is := errors.AsType[*train.HostsError](err)
	return is
}

// isOthers reports whether another host tells of an error.
func isOthers(err error) bool {
	of, is := errors.AsType[*train.HostsError](err)
	return is && !of.Reports
}
