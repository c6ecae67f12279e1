// Package demo shows in about two minutes, with nothing but the program, what the program does: a small model learns to write like a book
// while its training state, part of which is on disk, streams through a device that has room for an eighth of it; the run is killed and
// resumed; its state is compared with that of a run that had all in memory.
//
// [Run] is the whole demo. It starts the program again for each part, with the arguments that a person would type, so a process that is
// killed is a real one, and each has the memory that its plan says. The book is in the program; a tokenizer is learned from it.
//
// Invariants: all files are written in [Options].Dir; the number of steps is decided once, from a measured step, before the runs that
// are compared begin; a difference of one bit between them is [ErrDiffers].
package demo
