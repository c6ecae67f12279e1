package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// Env has the surroundings that the program gives to a run.
type Env struct {
	// Open opens the devices that the value in run.yaml stands for, a name or several with commas between them: those
	// that compute, and the host's, which updates state in host memory. On the CPU it is the first of them. Verbs that
	// compute on one device ask for "first" where they are told auto, and a run for "auto": all GPUs of a kind.
	Open     func(name string, accounts *hostmem.Accounts) (computes []device.Device, host device.Device, err error)
	Accounts *hostmem.Accounts
	Progress io.Writer // messages and progress for people; io.Discard for silence
	Terminal bool      // Progress is a terminal: bars instead of lines
	// Events hears what happens in a run, in addition to the lines that Progress gets; nil: nothing does. Of several
	// hosts that of host 0 hears.
	Events func(Event)
	// Stop is closed to have a run end after its step, with a checkpoint. A run that has not done a step is ended by
	// its context.
	Stop     <-chan struct{}
	finishes atomic.Pointer[string]
	// MemoryGrows says that this machine gets memory as it uses it, so that what it has available now limits nothing.
	MemoryGrows bool
	growthNoted bool // that memory.host: auto cannot know
	// Guest is the key of the memory that models have here besides a run, as plan.Request has it; empty: there is a run.
	Guest    string
	CacheDir string // for token caches and the machine file; empty: none are kept
	// FS is the file system of what runs write: checkpoints, state on disk, metrics. Nil is the operating system's;
	// tests make it fail.
	FS vfs.FS

	// Cluster is this process among those that share the run of Train; nil: it is alone. Other verbs are for one
	// process.
	Cluster *hosts.Cluster

	// Families are kinds of models in addition to those of package model.
	Families []model.Family

	// Tests is for tests, which replace what is the machine's; its zero value changes nothing.
	Tests InTests
}

// InTests holds the replacements that tests make for parts of the machine: zero values keep the machine's.
type InTests struct {
	ProgramBytes int64                      // memory of the process that is not planned, where budgets are small
	Memory       func() (left, total int64) // of the host, in bytes
	Clock        hosts.Clock                // that the test moves
	Watch        hosts.Clock                // of progress
	SysFS        string                     // where drives are looked for, in place of /sys
	Answers      int                        // that grow together in a round of a loop, at most; 0: as many as usual
	Reached      func(where string) error   // is told where a round of a loop is; an error ends it there
}

// ErrNoEnv is the error of options without surroundings, which only package millrace fills in.
var ErrNoEnv = blame.BadRequest(errors.New("the options have no Env: set it to that of millrace.NewEnv"))

// Files is FS, or the operating system's.
func (e *Env) Files() vfs.FS {
	if e.FS == nil {
		return vfs.OS{}
	}
	return e.FS
}

// Alone returns the surroundings for what this process does without the other hosts of its run.
func (e *Env) Alone() *Env {
	own := &Env{Open: e.Open, Accounts: e.Accounts, Progress: e.Progress, Terminal: e.Terminal, Events: e.Events,
		Stop: e.Stop, MemoryGrows: e.MemoryGrows, growthNoted: true, CacheDir: e.CacheDir, FS: e.FS, Families: e.Families,
		Tests: e.Tests}
	if !e.Cluster.Leads() {
		own.Progress, own.Events = io.Discard, nil
	}
	return own
}

// Runs has the directories of runs, and tells what is found in them.
func (e *Env) Runs() rundir.Files { return rundir.Files{FS: e.Files(), Note: e.Note, Warn: e.Warn} }

// Together has each host do f, and agrees on the error: see hosts.Work.
func (e *Env) Together(ctx context.Context, f func(context.Context) error) error {
	return hosts.Work{Cluster: e.Cluster, Clock: e.Time(), Warn: e.Warn}.Together(ctx, f)
}

// out takes the messages of a run, of the host that leads.
func (e *Env) out() console.Out {
	if !e.Cluster.Leads() {
		return console.Out{Writer: io.Discard, Now: e.watchClock().Now}
	}
	return console.Out{Writer: e.Progress, Terminal: e.Terminal, Now: e.watchClock().Now}
}

// Tell has the listener hear an event, and writes its line for people. A host that does not lead tells warnings alone.
func (e *Env) Tell(event Event) {
	if !e.Cluster.Leads() {
		switch event.(type) {
		case Warning, DriveHot:
			console.Out{Writer: e.Progress, Now: e.watchClock().Now}.Say("%s", event)
		}
		return
	}
	if e.Events != nil {
		e.Events(event)
	}
	if line := event.String(); line != "" {
		e.out().Say("%s", line)
	}
}

// Note tells something that a user may want to know.
func (e *Env) Note(format string, args ...any) { e.Tell(Note{fmt.Sprintf(format, args...)}) }

// Warn tells of a fault that the run survives.
func (e *Env) Warn(format string, args ...any) { e.Tell(Warning{fmt.Sprintf(format, args...)}) }

// WarnOf is warn with an error.
func (e *Env) WarnOf(err error) { e.Warn("%s", console.OneLine(err)) }

// Bar shows how far a task is: that so much of a total is done, or a share of it and where it is, until its end.
type Bar interface {
	Set(done, total int64)
	Show(share float64, where string)
	End()
}

// Bar shows how far a long task is.
func (e *Env) Bar(what string) Bar { return e.out().Bar(what) }

// SlowBar shows how far a pass over the layers is, once it has taken long.
func (e *Env) SlowBar(what string) Bar { return e.out().SlowBar(what, linePassAfter) }

// Devices holds the devices of a run: the ones that compute, alike, and the host's, which may be the first of them.
type Devices struct {
	Computes []device.Device
	Host     device.Device
}

// Info describes each device that computes: of memory, what each has at least, and of several its kind for a name, and
// whether they copy from each other.
func (d *Devices) Info() device.Info {
	i := d.Computes[0].Info()
	for _, of := range d.Computes[1:] {
		other := of.Info()
		i.Name = cmp.Or(i.Kind, i.Name)
		i.MemoryBytes, i.TotalBytes = min(i.MemoryBytes, other.MemoryBytes), min(i.TotalBytes, other.TotalBytes)
		i.OverheadBytes = max(i.OverheadBytes, other.OverheadBytes)
	}
	i.PeerCopies = device.Peers(d.Computes)
	return i
}

// OpenDevices opens the devices that a value of `device` stands for; an empty one is auto.
func (e *Env) OpenDevices(value string) (*Devices, error) { return e.open(cmp.Or(value, "auto")) }

// OpenFirst opens devices for a verb that computes on one of them.
func (e *Env) OpenFirst(value string) (*Devices, error) {
	if value == "" || value == "auto" {
		value = "first"
	}
	return e.open(value)
}

func (e *Env) open(value string) (*Devices, error) {
	c, h, err := e.Open(value, e.Accounts)
	if err != nil {
		return nil, err
	}
	return &Devices{c, h}, nil
}

// Close gives all back.
func (d *Devices) Close() (err error) {
	for _, of := range d.Computes {
		err = errors.Join(err, of.Close())
	}
	if d.Host != d.Computes[0] {
		err = errors.Join(err, d.Host.Close())
	}
	return err
}

// Time is the clock that the run goes by.
func (e *Env) Time() hosts.Clock {
	if e.Tests.Clock == nil {
		return hosts.MachineClock{}
	}
	return e.Tests.Clock
}

// Stopped reports whether the run has been asked to end.
func (e *Env) Stopped() bool {
	select {
	case <-e.Stop:
		return true
	default:
		return false
	}
}

// UntilStopped is a context that also ends when the run is asked to end: its cause is hosts.ErrInterrupted then. It is
// for waits for others. A pass does not get it: to end one would break the engine, which has a state to save.
func (e *Env) UntilStopped(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	fault.Go(func() {
		select {
		case <-e.Stop: // nil: never
			cancel(hosts.ErrInterrupted)
		case <-ctx.Done():
		}
	})
	return ctx, func() { cancel(nil) }
}

// Finishes says what a run does before it ends when it is asked to stop, such as "finishing step 5 and saving". It is
// empty while the run has nothing to lose, on one host, and for all that is no run: end their context. Any goroutine
// may ask.
func (e *Env) Finishes() string {
	if what := e.finishes.Load(); what != nil {
		return *what
	}
	return ""
}

// WillFinish has Finishes say that.
func (e *Env) WillFinish(what string) { e.finishes.Store(&what) }

// StopsAnywhere reports whether any host has been asked to end. All hosts call it. The context of one that ends before
// it has a step to finish asks all of them; a process that is alone finds that out by itself.
func (e *Env) StopsAnywhere(ctx context.Context) (bool, error) {
	d := hosts.Decide(e.Cluster, hosts.Report[struct{}]{Stop: e.Stopped() || e.Cluster != nil && ctx.Err() != nil})
	return d.Stop, d.Err
}

// watchClock is the clock of the progress of passes.
func (e *Env) watchClock() hosts.Clock {
	if e.Tests.Watch == nil {
		return hosts.MachineClock{}
	}
	return e.Tests.Watch
}

// Event is something that happens in a run: a value of one of the types here and in package train. String is its line
// for people, empty where it has none. [Env.Events] hears all events, in their order, from the goroutine of the run,
// which waits for it.
type Event interface{ String() string }

// Warning is a fault that the run survives.
type Warning struct{ Text string }

func (e Warning) String() string { return "warning: " + e.Text }

// Note tells something that a user may want to know.
type Note struct{ Text string }

func (e Note) String() string { return e.Text }
