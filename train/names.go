package train

import "github.com/millrace/millrace/train/hosts"

// Cluster is this process among the hosts of a run: see [hosts.Cluster].
type Cluster = hosts.Cluster

// Peers are the other hosts as this one reaches them.
type Peers = hosts.Peers

// HostsError is an error that the hosts of a run have told each other: see [hosts.Error].
type HostsError = hosts.Error

// ErrInterrupted is in the error of a run that was asked to stop, or whose context ended, and that has lost nothing:
// exit status 130.
var ErrInterrupted = hosts.ErrInterrupted

// ErrStop ends a run early and well when Options.OnStep returns it: the run saves a checkpoint and writes its model.
// The same configuration, started again, continues with the steps that are left.
var ErrStop = hosts.ErrStop
