// Package report has the records of runs, and a few numbers of them for people and programs.
//
//   - [Totals] takes records one after the other, and makes the [Summary] of a run.
//   - [Run] is the records of one run; [Read] takes them from an output directory or a metrics.jsonl.
//   - [Compare] puts the numbers of several runs next to each other, and [Sparks] draws curves as lines of text.
//
// Invariant: the memory of totals is bounded, whatever the number of records. The page that shows runs is package
// report/page.
package report
