// Package checkpoint keeps the training state of a run on disk, so that a run that was killed goes on to the bit, here or
// on another machine.
//
// A checkpoint of step n is a directory step-000100 with a manifest and one file per extent, or one per piece of an
// extent. Nothing in it depends on where the run had placed its state: it can be copied, and resumed under any plan. The
// types are few:
//
//   - [Directory] is where the checkpoints of one run lie. Who holds it holds its lock, and alone may write.
//   - [Writer] is one save. Pieces from host memory are added, pieces that a store has on disk are linked, and Commit makes
//     the checkpoint appear as a whole.
//   - [Manifest] says what a checkpoint is of, and where each piece lies with which checksum.
//   - [Checkpoint] is one that was opened. It gives no byte whose checksum it has not compared.
//
// Invariants:
//
//   - A directory called step-... was complete, and durable in every byte and name, before it got that name. All that is
//     not complete has a hidden name (.step-000100.tmp); it is never read, and removed by the next run.
//   - A save changes nothing in earlier checkpoints, whether it fails or the machine does. Pruning takes a checkpoint's
//     name away before the first of its files.
//   - Files of a checkpoint are never changed. One that is linked from a store must be one that the store does not write
//     again.
//
// The format is described in docs/checkpoints.md.
package checkpoint
