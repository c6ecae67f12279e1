package train

import (
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/train/session"
)

// Names of other rooms that a caller of this package needs.
type (
	// Env has the surroundings that the program gives to a run: see [session.Env].
	Env = session.Env
	// Devices are those of a run: see [session.Devices].
	Devices = session.Devices
	// Event is something that happens in a run: see [session.Event].
	Event = session.Event
	// Warning is a fault that the run survives.
	Warning = session.Warning
	// DriveHot warns of the heat of a drive.
	DriveHot = session.DriveHot
	// Note tells something that a user may want to know.
	Note = session.Note
	// Loss is the mean token loss over a data set: see [session.Loss].
	Loss = session.Loss
	// Cluster is this process among the hosts of a run: see [hosts.Cluster].
	Cluster = hosts.Cluster
	// Peers are the other hosts as this one reaches them.
	Peers = hosts.Peers
	// HostsError is an error that the hosts of a run have told each other: see [hosts.Error].
	HostsError = hosts.Error
)

// ErrInterrupted is in the error of a run that was asked to stop, or whose context ended, and that has lost nothing:
// exit status 130.
var ErrInterrupted = hosts.ErrInterrupted

// ErrStop ends a run early and well when Options.OnStep returns it: the run saves a checkpoint and writes its model.
// The same configuration, started again, continues with the steps that are left.
var ErrStop = hosts.ErrStop
