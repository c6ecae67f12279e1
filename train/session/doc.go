// Package session opens what a run and the verbs compute with.
//
//   - [Env] has what the program gives: devices, memory accounts, a file system, a writer for messages. Only the
//     program links drivers.
//   - planning.go makes plans for the budgets of a run file, with sizes that follow from the machine and never from
//     what is left of it now. space.go has the disk space of a run.
//   - [Session] is a planned model with its state in a store and an engine: training, evaluation, gradients, texts and
//     package bench share it. state.go takes its state to a checkpoint and back.
//   - algorithms.go keeps the algorithms of matrix products that devices have chosen, since they decide the last bits.
//
// All that the steps of a plan take is reserved before the first of them. The package knows no model's directory: its
// caller fills the store, as package source does.
package session
