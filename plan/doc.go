// Package plan decides, before the first step, where everything is, how large it is, in which order it moves, and how
// long that should take.
//
//   - [Numerics] sets the bits of a run: types, micro-batches, chunks. It never follows from memory.
//   - [Placement] says where everything is, and how many buffers there are for data that moves; it never changes a bit.
//   - [Plan] is both with all sizes. [New] makes one that fits the budgets or says in a line why no plan does.
//   - [Buffers] is the device's memory laid out: the plan counts with it, the engine computes in it.
//   - [Schedule] is one step as a printable list of operations ([Op]), each naming what it waits for.
//   - [Machine] and [Prediction] are measured rates and what the simulation makes of them.
//
// [Table] is the only author of places. For each part and kind of state, for each block's input and for its
// activations it names a [Place]: absent, in place, on the device, in host memory, on disk. Everything else follows
// from it: operations, sizes, times. State that is resident on the device is updated there, and the store's copy in
// host memory is then dirty; [WriteBack] writes it back, in schedules whose [Mode] says so, since the store is read
// after them: a checkpoint, an export, the end of a run. State that passes comes to the device for its update and is
// written back after it, in the same schedule. Activations that spill wait in host memory and pass through a ring of
// slots.
//
// A schedule is written in an order in which its operations could run one by one. What each waits for follows from what
// it reads and writes, in one place (builder.add), so that no dependency is written by hand.
package plan
