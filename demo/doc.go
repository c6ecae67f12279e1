// Package demo shows in about two minutes, with nothing but the program, what the program does: a small model learns
// to write like a book while weights, gradients and activations stream through a device budget of an eighth of its
// training state, part of which is on disk. The run is killed and resumed, and its state is compared with the state
// of a run that had all in memory.
//
// [Run] is the whole demo. It starts the program again for each part, with the arguments that a person would type, so
// a process that is killed is a real one, and each has the memory that its plan says. The book is in the program; a
// tokenizer is learned from it.
//
// Invariants: all files are written in [Options].Dir; the number of steps is decided once, from a measured step,
// before the runs that are compared begin; a difference of one bit between them is [ErrDiffers].
package demo
