// Package checkpoint keeps the training state of a run on disk, so that a killed run resumes to the bit, on this
// machine or on another one.
//
// A checkpoint of step n is a directory step-000100 with a manifest and one file per extent, or one per piece of an
// extent. Nothing in it depends on where the run had placed its state: it can be copied, and resumed under any plan.
// The types are few:
//
//   - [Directory] holds the checkpoints of one run. Its holder has its lock, and is the only writer.
//   - [Writer] is one save. Pieces from host memory are added, pieces that a store has on disk are linked, and Commit makes
//     the checkpoint appear as a whole.
//   - [Hosts] are the processes that save together, where the state of a run is spread over several hosts.
//   - [Manifest] says which run a checkpoint belongs to, and the place and checksum of each piece.
//   - [Checkpoint] is open for reading. It gives no byte whose checksum it has not compared.
//
// Invariants:
//
//   - A directory called step-... was complete, and durable in every byte and name, before it got that name. An
//     incomplete one has a hidden name (.step-000100.tmp); it is never read, and the next run removes it.
//   - A save changes nothing in earlier checkpoints, whether it fails or the machine does. Pruning takes a checkpoint's
//     name away before the first of its files.
//   - Files of a checkpoint are never changed. One that is linked from a store must be one that the store does not write
//     again.
//
// The format is described in docs/checkpoints.md.
package checkpoint
