// Package train trains: it walks the steps of a run file, or gives them to a loop that the caller writes.
//
//   - [runfile.Config] says what to do; [runfile.Read] reads it.
//   - [Env] has what the program gives: devices, memory accounts, a writer for messages.
//   - [Run] is a model in training: [Open] opens one for a loop that the caller writes.
//   - [Train] is the loop of a run file over a Run.
//   - [Event] tells what happens in a run.
//
// Files: open.go opens a run, and run.go and tensors.go have its methods. loop.go and step.go are Train; saver.go,
// health.go, evaluations.go, samples.go, records.go and wear.go are its policies. arrive.go, same.go, resume.go and
// ending.go say where a run begins and whether it has ended.
//
// Rooms below: rundir has the directory of a run, hosts decides what the hosts of a run do alike, session has plan,
// store and engine, source the model that the run begins with, export writes models, and generate texts. Package verbs
// is next to this one.
//
// Invariants: everything that a run needs is reserved before its first step; nothing is written to a directory before
// it is known that the run can start; an error that the request caused is marked with [blame.ErrRequest].
package train
