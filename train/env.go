package train

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
	// Stop is closed to have a run end after its step, with a checkpoint. A run that has not done a step is ended by its
	// context.
	Stop     <-chan struct{}
	finishes atomic.Pointer[string]
	// program is memory of the process that is not planned, in tests with small budgets; 0: plan.ProgramBytes.
	program int64
	memory  func() (left, total int64) // of the host, in bytes, for tests; nil: the machine's
	// MemoryGrows says that this machine gets memory as it uses it, so that what it has available now limits nothing.
	MemoryGrows bool
	growthNoted bool   // that memory.host: auto cannot know
	CacheDir    string // for token caches and the machine file; empty: none are kept
	// FS is the file system of what runs write: checkpoints, state on disk, metrics. Nil is the operating system's;
	// tests make it fail.
	FS vfs.FS

	// Cluster is this process among those that share the run of Train; nil: it is alone. Other verbs are for one
	// process.
	Cluster *hosts.Cluster

	// Families are kinds of models in addition to those of package model.
	Families []model.Family

	clock hosts.Clock // nil: the machine's; in tests one that they move
	watch hosts.Clock // of progress; nil: the machine's
}

// errNoEnv is the error of options without surroundings, which only package millrace fills in.
var errNoEnv = blame.BadRequest(errors.New("the options have no Env: set it to that of millrace.NewEnv"))

// files is FS, or the operating system's.
func (e *Env) files() vfs.FS {
	if e.FS == nil {
		return vfs.OS{}
	}
	return e.FS
}

// Runs has the directories of runs, and tells what is found in them.
func (e *Env) Runs() rundir.Files { return rundir.Files{FS: e.files(), Note: e.note, Warn: e.warn} }

// together has each host do f, and agrees on the error: see hosts.Work.
func (e *Env) together(ctx context.Context, f func(context.Context) error) error {
	return hosts.Work{Cluster: e.Cluster, Clock: e.time(), Warn: e.warn}.Together(ctx, f)
}

// out takes the messages of a run, of the host that leads.
func (e *Env) out() console.Out {
	if !e.Cluster.Leads() {
		return console.Out{Writer: io.Discard, Now: e.watchClock().Now}
	}
	return console.Out{Writer: e.Progress, Terminal: e.Terminal, Now: e.watchClock().Now}
}

// tell has the listener hear an event, and writes its line for people. A host that does not lead tells warnings alone.
func (e *Env) tell(event Event) {
	if !e.Cluster.Leads() {
		if _, warns := event.(Warning); warns {
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

// note tells something that a user may want to know.
func (e *Env) note(format string, args ...any) { e.tell(Note{fmt.Sprintf(format, args...)}) }

// warn tells of a fault that the run survives.
func (e *Env) warn(format string, args ...any) { e.tell(Warning{fmt.Sprintf(format, args...)}) }

// warnOf is warn with an error.
func (e *Env) warnOf(err error) { e.warn("%s", console.OneLine(err)) }

// bar shows how far a long task is.
func (e *Env) bar(what string) *console.Bar { return e.out().Bar(what) }

// Devices are those of a run: the ones that compute, alike, and the host's, which may be the first of them.
type Devices struct {
	Computes []device.Device
	Host     device.Device
}

// Info is that of each device that computes: of memory, what each has at least, and of several its kind for a name, and
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

// openDevice opens devices for a verb that computes on one of them.
func (e *Env) openDevice(value string) (*Devices, error) {
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
