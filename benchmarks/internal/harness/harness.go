// Package harness has what the benchmark programs share: figures by turn, tables in markdown, CPU time, levels of
// instructions by name, the product's program in a directory of its own ([Program]), and plans of named shapes
// ([Step]).
//
// Contenders take turns in one run, and ratios are taken turn by turn, so that a machine which slows down does so for
// all. Programs that time arithmetic can take CPU time, which other work on the machine changes little.
package harness

import (
	"fmt"
	"log"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/trace"
)

// Series has one figure for each turn.
type Series []float64

// Median returns the middle figure, or the mean of the two in the middle.
func (s Series) Median() float64 {
	return trace.Median(slices.Sorted(slices.Values(s)))
}

// Quartiles returns the figures below which a quarter of the turns are, and above which a quarter are.
func (s Series) Quartiles() (low, high float64) {
	sorted := slices.Sorted(slices.Values(s))
	quarter := (len(sorted) - 1) / 4
	return sorted[quarter], sorted[len(sorted)-1-quarter]
}

// Over returns the quotients of s and of a series with as many figures, turn by turn.
func (s Series) Over(other Series) Series {
	quotients := make(Series, len(s))
	for i := range s {
		quotients[i] = s[i] / other[i]
	}
	return quotients
}

// Head prints the first line of a table, such as "| name | GB/s |", and the line that has to follow it.
func Head(line string) {
	fmt.Printf("%s\n|%s\n", line, strings.Repeat("---|", strings.Count(line, "|")-1))
}

// MiB writes bytes with a number of decimals, and 0 as a dash.
func MiB(bytes int64, decimals int) string {
	if bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%.*f MiB", decimals, float64(bytes)/(1<<20))
}

// Must returns a value without its error, which ends the program with status 1.
func Must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

// ThreadTime returns the CPU time of this thread. The caller's goroutine has to be locked to it.
func ThreadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// ProcessTime returns the CPU time of all threads of the process.
func ProcessTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Level finds the level of instructions that a flag names, such as avx512bf16, among those that can be measured. An
// unknown name ends the program.
func Level[L fmt.Stringer](option, name string, among []L) L {
	for _, level := range among {
		if name == strings.NewReplacer("-", "", " go", "", " ", "").Replace(strings.ToLower(level.String())) {
			return level
		}
	}
	log.Fatalf("%s %s: this machine has no such instructions; it has %v", option, name, among)
	panic("not reached")
}
