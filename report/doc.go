// Package report draws the records of runs: curves of loss, gradient norm, learning rate, speed and lanes on a page
// of HTML, and a few numbers for people and programs.
//
//   - [Run] is the records of one run; [Read] takes them from an output directory or a metrics.jsonl.
//   - [Summary] has the numbers of a run.
//   - [WritePage] draws runs over each other, so that two settings can be compared.
//
// Invariants: a page stands alone: it has no script and loads nothing. Its size does not grow with the number of
// steps. The same records give the same bytes.
package report
