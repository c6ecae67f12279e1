// Package runfile is run.yaml: its keys, their defaults, what values they may have, and how it is read and written.
//
//   - [Config] declares every key; [Read] reads and checks a run file; [Defaults] has the values of an empty one.
//   - [Bytes] and [Auto] are sizes and counts that may be left to the planner.
//   - [SettledBy] says which keys may have other values when a run is resumed, and [Config.Settings] what a checkpoint
//     records of them.
//
// Invariants: every key has a default but model and datasets; what is wrong with a file is reported at once, in one line,
// with the lines of the file; a key of another trainer is refused with the name that it has here. Nothing here opens a
// model, data or a device.
package runfile
