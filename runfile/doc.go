// Package runfile is run.yaml: its keys, their defaults, what values they may have, and how it is read and written.
//
//   - [Config] is a run file; [Read] reads and checks one; [Defaults] is what an empty one says.
//   - [Bytes] and [Auto] are sizes and counts that may be left to the planner.
//   - [SettledBy] says which keys may have other values when a run is resumed.
//
// Invariants: every key has a default but model and datasets; what is wrong with a file is reported at once, in one line,
// with the lines of the file; a key of another trainer is refused with the name that it has here. Nothing here opens a
// model, data or a device.
package runfile
