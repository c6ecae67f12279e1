// Package train runs what a user asks for: it reads run.yaml, brings model, data, plan and engine together, and walks
// the steps.
//
//   - [runfile.Config] says what to do; [runfile.Read] reads it.
//   - [Env] has what the program gives: devices, memory accounts, a writer for messages. Only the program links
//     drivers.
//   - [Run] is a model in training: [Open] opens one for a loop that the caller writes.
//   - [Train] is the loop of a run file over a Run; [Evaluate], [Gradients], [Generate] and [Preview] are other verbs.
//   - [Event] tells what happens in a run.
//   - [Session] is shared by all of them and package bench: a planned model with its state and an engine.
//
// Files: open.go opens a run, and run.go and tensors.go have its methods. loop.go and step.go are Train;
// saver.go, health.go, evaluation.go, samples*.go, patience.go, records.go and wear.go are its policies, and resume.go
// says where it begins. Package rundir has the directory of a run. Package hosts decides what the
// hosts of a run do alike; arrive.go and same.go have their start. source.go, planning.go and
// session.go are shared with the verbs, which are verb_*.go; rehearse*.go run plans on devices that only count.
//
// Invariants: everything that a run needs is reserved before its first step; nothing is written to a directory before
// it is known that the run can start; an error that the request caused is marked with [blame.ErrRequest].
package train
