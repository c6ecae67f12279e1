// Package train runs what a user asks for: it reads run.yaml, brings model, data, plan and engine together, and walks the
// steps.
//
//   - [runfile.Config] says what to do; [runfile.Read] reads it.
//   - [Env] has what the program gives: devices, memory accounts, a writer for messages. Only the program links
//     drivers.
//   - [Train] is the loop; [Evaluate], [Gradients], [Generate] and [Preview] are other verbs.
//   - [Session] is what all of them and package bench share: a planned model with its state and an engine.
//
// Files: run.go, step.go, saver.go and resume.go are the loop; source.go, planning.go and session.go are what it shares with
// the verbs, which are verb_*.go; rehearse*.go run plans on devices that only count.
//
// Invariants: everything that a run needs is reserved before its first step; nothing is written to a directory before
// it is known that the run can start; an error that the request caused is marked with [blame.ErrRequest].
package train
