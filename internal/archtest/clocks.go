package archtest

import (
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strconv"
)

// clocks are the functions that read or set a clock, by the package that has them.
var clocks = map[string][]string{
	"time":                  {"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "NewTimer", "NewTicker", "Tick"},
	"context":               {"WithTimeout", "WithTimeoutCause", "WithDeadline", "WithDeadlineCause"},
	"testing":               {"Benchmark"},
	"syscall":               {"Getrusage"},
	"golang.org/x/sys/unix": {"Getrusage", "ClockGettime", "Nanosleep"},
}

// useClocks are the files of tests that use a clock, and why no result of theirs depends on how quick the machine is.
var useClocks = map[string]string{
	"checkpoint/system_test.go":              "processes are killed at random moments, and judged by their saved files",
	"train/kill_test.go":                     "processes are killed at random moments, and judged by the results of the processes that resume",
	"device/cpu/race_test.go":                "a delay stands for a wait: the race detector sees no order in it",
	"workshop/cudatest/standin/race_test.go": "a delay stands for a wait: the race detector sees no order in it",
	"device/devicetest/faulty.go":            "operations are made late, and their events say when they were",
	"device/devicetest/reference.go":         "its events say when they were",
	"train/rl/reward/timeout_test.go":        "the clock is that of a testing/synctest bubble",
	"hf/hub/slow_test.go":                    "the clock is that of a testing/synctest bubble",
	"stream/finish_test.go":                  "the clock is that of a testing/synctest bubble",
	"train/hosts_hear_test.go":               "the clock is that of a testing/synctest bubble",
	"train/hosts/together_test.go":           "the clock is that of a testing/synctest bubble",
	"internal/mpi/signs_test.go":             "the clock is that of a testing/synctest bubble",
	"store/disk_lanes_test.go":               "the clock is that of a testing/synctest bubble",
	"store/disk_rate_test.go":                "the clock is that of a testing/synctest bubble",
	"store/drives_test.go":                   "the clock is that of a testing/synctest bubble",
}

// refuseClocks reports each use of a clock in a file of tests: what judges by time fails on a busy machine.
func (c *checker) refuseClocks(name string, f *ast.File, files *token.FileSet) {
	if within(name, "benchmarks") {
		return
	}
	known := map[string][]string{} // by the name that the file has for a package
	for _, spec := range f.Imports {
		from, err := strconv.Unquote(spec.Path.Value)
		if err != nil || clocks[from] == nil {
			continue
		}
		as := path.Base(from)
		if spec.Name != nil {
			as = spec.Name.Name
		}
		known[as] = clocks[from]
	}
	uses := false
	ast.Inspect(f, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		from, ok := s.X.(*ast.Ident)
		if !ok || !slices.Contains(known[from.Name], s.Sel.Name) {
			return true
		}
		uses = true
		if useClocks[name] == "" {
			c.report("%s: %s.%s in a test: count steps, wait for events, or give a reason in internal/archtest/clocks.go",
				files.Position(s.Pos()), from.Name, s.Sel.Name)
		}
		return true
	})
	if !uses && useClocks[name] != "" {
		c.report("%s: it uses no clock: take it off the list in internal/archtest/clocks.go", name)
	}
}
