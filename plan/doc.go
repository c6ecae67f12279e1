// Package plan decides, before the first step, where everything is, how large it is, in which order it moves, and how long
// that should take.
//
//   - [Numerics] is what sets the bits of a run: types, micro-batches, chunks. It never follows from memory.
//   - [Placement] is where everything is; it never changes a bit.
//   - [Plan] is both with all sizes. [New] makes one that fits the budgets or says in a line why there is none.
//   - [Buffers] is the device's memory laid out: the plan counts with it, the engine computes in it.
//   - [Schedule] is one step as a printable list of operations ([Op]), each naming what it waits for.
//   - [Machine] and [Prediction] are measured rates and what the simulation makes of them.
//
// A schedule is written in an order in which its operations could run one by one. What each waits for follows from what
// it reads and writes, in one place (builder.add), so that no dependency is written by hand.
package plan
