// Package train runs what a user asks for: it reads run.yaml, brings model, data, plan and engine together, and walks the
// steps.
//
//   - [runfile.Config] is what is asked for; [runfile.Read] reads it.
//   - [Env] is what the program gives: devices, memory accounts, where messages go. Only the program links drivers.
//   - [Train] is the loop; [Evaluate], [Gradients], [Generate] and [Preview] are other verbs.
//
// Invariants: everything that a run needs is reserved before its first step; nothing is written to a directory before
// it is known that the run can start; an error that the request caused is marked with [blame.ErrRequest].
package train
