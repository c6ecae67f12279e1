package archtest

import (
	"bytes"
	"fmt"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Code grows where nothing says how large it may be. So each room of the program has a budget of lines: Go files
// without tests and without generated ones, as an editor counts them. A change that needs more edits the room's row,
// and says in its commit why the lines are worth it; one that makes a room smaller lowers the row.

// A room is one or more trees of packages with one budget.
type room struct {
	name  string
	trees []string // "x": the package x; "x/...": it and all below
	lines int      // at most
}

// rooms lists all that the program links, and each package of it is in one room.
var rooms = []room{
	{"plan + stream", []string{"plan", "stream"}, 18505},
	{"nn + model", []string{"nn", "model"}, 10635},
	{"train", []string{"train/..."}, 24500},
	{"data", []string{"data/..."}, 26142},
	{"gguf", []string{"gguf"}, 6140},
	{"hf", []string{"hf/..."}, 6250},
	{"device", []string{"device/..."}, 18340},
	{"cmd", []string{"cmd/..."}, 5670},
	{"runfile", []string{"runfile/..."}, 8655},
	{"checkpoint, store, optim", []string{"checkpoint", "store", "optim"}, 6170},
	{"objective", []string{"objective"}, 3450},
	{"floor", []string{"batch", "hostmem", "tensor", "trace/...", "vfs", "internal/..."}, 9500},
	{"around a run", []string{".", "bench", "demo", "probe", "rehearse", "report/...", "timeline"}, 5440},
	{"serve", []string{"serve"}, 2300},
}

// linkedLines bounds all rooms together.
const linkedLines = 151640

// The program, and the tags of what it is not built with.
const program = "cmd/millrace"

var otherTags = []string{"ignore", "standin", "onednn", "kernelfiles"}

// RoomLines is a room's size.
type RoomLines struct {
	Room          string
	Lines, Budget int
}

// source counts the lines and the imports that a package adds to the program.
type source struct {
	lines   int
	imports []string // of this module
}

// Budgets counts the lines of each room that the program links, and of all of them together, which come last. It also
// returns the violations, one line each.
func Budgets(root fs.FS) (sizes []RoomLines, found []string, err error) {
	packages, err := sourcesOf(root)
	if err != nil {
		return nil, nil, err
	}
	linked := linkedBy(packages)
	all := RoomLines{Room: "all", Budget: linkedLines}
	for _, r := range rooms {
		sizes = append(sizes, RoomLines{Room: r.name, Budget: r.lines})
	}
	for pkg := range linked {
		all.Lines += packages[pkg].lines
		switch i := slices.IndexFunc(rooms, func(r room) bool { return inTrees(pkg, r.trees) }); i {
		case -1:
			found = append(found, pkg+": the program links it, and no room has it: add it to one in internal/archtest/budget.go")
		default:
			sizes[i].Lines += packages[pkg].lines
		}
	}
	for _, s := range append(sizes, all) {
		if s.Lines > s.Budget {
			found = append(found, fmt.Sprintf("%s: %d lines, and the budget is %d: make it smaller, or raise the row in "+
				"internal/archtest/budget.go and say in the commit why", s.Room, s.Lines, s.Budget))
		}
	}
	slices.Sort(found)
	return append(sizes, all), found, nil
}

// linkedBy has the packages that the program links.
func linkedBy(packages map[string]source) map[string]bool {
	linked, todo := map[string]bool{}, []string{program}
	for len(todo) > 0 {
		pkg := todo[0]
		todo = todo[1:]
		if !linked[pkg] {
			linked[pkg] = true
			todo = append(todo, packages[pkg].imports...)
		}
	}
	return linked
}

// inTrees reports whether a package is one of those that a room names.
func inTrees(pkg string, trees []string) bool {
	return slices.ContainsFunc(trees, func(t string) bool {
		tree, whole := strings.CutSuffix(t, "/...")
		return pkg == tree || whole && within(pkg, tree)
	})
}

// sourcesOf reads the packages of a tree, of all systems that the program is built for.
func sourcesOf(root fs.FS) (map[string]source, error) {
	module, err := moduleOf(root)
	if err != nil {
		return nil, err
	}
	packages := map[string]source{}
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && isLeftOut(name):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly|parser.ParseComments)
		if err != nil || isOfAnotherBuild(text) {
			return err
		}
		pkg := packages[path.Dir(name)]
		if !isGenerated(text) {
			pkg.lines += bytes.Count(text, []byte("\n"))
		}
		for _, spec := range f.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if imported == module {
				pkg.imports = append(pkg.imports, rootPackage)
			} else if target, ours := strings.CutPrefix(imported, module+"/"); ours {
				pkg.imports = append(pkg.imports, target)
			}
		}
		packages[path.Dir(name)] = pkg
		return nil
	})
	return packages, err
}

// isGenerated reports whether a generator made a file: https://go.dev/s/generatedcode.
func isGenerated(text []byte) bool {
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		switch {
		case bytes.HasPrefix(line, []byte("// Code generated ")) && bytes.HasSuffix(line, []byte(" DO NOT EDIT.")):
			return true
		case bytes.HasPrefix(line, []byte("package ")):
			return false
		}
	}
	return false
}

// isOfAnotherBuild reports whether a file needs a tag that the program is not built with.
func isOfAnotherBuild(text []byte) bool {
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte("package ")) {
			break
		}
		if expr, err := constraint.Parse(strings.TrimSpace(string(line))); err == nil {
			return !expr.Eval(func(tag string) bool { return !slices.Contains(otherTags, tag) }) &&
				expr.Eval(func(string) bool { return true })
		}
	}
	return false
}
