package main

import (
	"go/ast"
	"slices"
	"strings"
)

// starting has the names that start goroutines which share memory. fault.Share is not one: its goroutines have a range
// each.
var starting = map[string][]string{
	"sync":              {"WaitGroup"},
	"internal/fault":    {"Go", "Group", "AfterFunc"},
	"testing/synctest":  {"Test"},
	"stream/streamtest": {"New"}, // hosts of one process
}

// ordering has the names that put goroutines in order.
var ordering = map[string][]string{"sync": {"Mutex", "RWMutex", "Cond", "Map"}}

// starts reports whether code starts goroutines.
func starts(x ast.Node, imports map[string]string) bool {
	_, isGo := x.(*ast.GoStmt)
	return isGo || selects(x, imports, starting)
}

// shares reports whether code starts goroutines, or orders them by a lock or a channel.
func shares(x ast.Node, imports map[string]string) bool {
	_, isChan := x.(*ast.ChanType)
	return isChan || starts(x, imports) || selects(x, imports, ordering)
}

// selects reports whether code selects one of some names of packages.
func selects(x ast.Node, imports map[string]string, names map[string][]string) bool {
	s, ok := x.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	of, ok := s.X.(*ast.Ident)
	return ok && slices.Contains(names[strings.TrimPrefix(imports[of.Name], module+"/")], s.Sel.Name)
}

// Turns of packages, and of tests of packages that always run. To compile and link a package for the detector takes
// longer than most tests of it, so packages take turns, and within them tests.
const (
	packageTurns = 3
	everyTurns   = 6
)

// every has the packages that always run: the engine and the driver whose goroutines all others use. All of their tests
// at once would take longer than those of all others.
var every = []string{"stream", "device/cuda"}

// race chooses the packages that share memory between goroutines and those that plan or call what plans. A package runs
// in one of three turns, and all its tests do, by its name and theirs, so that each keeps its turn. Nearly all tests of
// packages that plan run goroutines of the engine and of lower packages, which have their own tests: within the
// package's turn they have turns of their own, so that each runs in one of that number; tests whose files start
// goroutines have three. Tests of a package that always runs have six. Suites like devicetest are left out: packages
// with goroutines run them. A package without a test in this turn is left out, too: it would be compiled and linked in
// vain.
func race(packages []*pkg, turns, turn int) []string {
	var chosen []*pkg
	var whole, left []string // tests: that run, and that do not
	ofPackages := min(turns, packageTurns)
	for _, p := range packages {
		if strings.HasSuffix(p.dir, "test") || !p.has(shares) && !p.plans() {
			continue
		}
		always := slices.Contains(every, p.dir)
		if !always && turnOf(p.dir, ofPackages) != turn%ofPackages {
			continue
		}
		chosen = append(chosen, p)
		for _, f := range p.tests {
			for _, name := range f.names {
				own, at := turns/ofPackages, turn/ofPackages
				switch {
				case always:
					own, at = min(turns, everyTurns), turn
				case !p.plans():
					own = 1
				case f.has(starts):
					own = min(own, 3)
				}
				if turnOf(name, own) == at%own {
					whole = append(whole, name)
				} else {
					left = append(left, name)
				}
			}
		}
	}
	left = slices.DeleteFunc(left, func(name string) bool { return slices.Contains(whole, name) })
	var args []string
	if len(left) > 0 {
		args = append(args, "-skip="+pattern(left))
	}
	for _, p := range chosen {
		if p.hasOther(left) {
			args = append(args, "./"+p.dir)
		}
	}
	return args
}

// hasOther reports whether a package has tests that are not among some.
func (p *pkg) hasOther(some []string) bool {
	return slices.ContainsFunc(p.tests, func(f *file) bool {
		return slices.ContainsFunc(f.names, func(name string) bool { return !slices.Contains(some, name) })
	})
}

// plans reports whether a package plans, or calls what plans.
func (p *pkg) plans() bool {
	return p.dir == "plan" || slices.ContainsFunc(p.sources, func(f *file) bool {
		for _, from := range f.imports {
			if from == module+"/plan" || strings.HasPrefix(from+"/", module+"/train/") {
				return true
			}
		}
		return false
	})
}
