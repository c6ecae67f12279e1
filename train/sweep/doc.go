// Package sweep makes the runs of a sweep from settings with several values, and judges their results.
//
//   - [Parse] finds the keys that have several values, and [Runs] makes a [Run] of each combination.
//   - [Judge] compares the settings of a sweep, and says which difference seeds alone would make.
//
// Invariants: the same settings give the same runs in the same order with the same names, since a sweep that is started
// again finds its runs by them.
package sweep
