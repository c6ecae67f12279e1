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
// What is Here is on the device and stays there: a part whose state is here ([Placement].StateHere) is updated there,
// and its copy in the store is then stale. [Home] is the operation that brings it up to date, in schedules whose
// [Mode] says so, since the store is read after them: a checkpoint, an export, the end of a run. What
// passes ([Placement].StatePasses) comes for its update and is taken home behind it, in the same schedule. What a
// block keeps for its backward visit ([Placement].Keep) is here, too, or waits in host memory
// ([Placement].KeptOnHost) and passes through a ring of slots.
//
// A schedule is written in an order in which its operations could run one by one. What each waits for follows from what
// it reads and writes, in one place (builder.add), so that no dependency is written by hand.
package plan
