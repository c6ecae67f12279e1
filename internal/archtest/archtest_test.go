package archtest

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func TestThisModule(t *testing.T) {
	found, err := Check(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range found {
		t.Error(line)
	}
	for name := range useClocks {
		if _, err := os.Stat("../../" + name); err != nil {
			t.Errorf("internal/archtest/clocks.go: %v", err)
		}
	}
}

// Each law is broken once, in a tree of its own, and each exception is used once.
func TestChecker(t *testing.T) {
	const us = `"github.com/millrace/millrace/`
	for _, c := range []struct {
		what, file, text string
		want             string // a part of the only violation; empty for none
	}{
		{"downward", "model/a.go", us + `nn"`, ""},
		{"upward", "nn/a.go", us + `model"`, "level 3 imports only lower levels, and it is on 4"},
		{"sideways", "stream/a.go", us + `checkpoint"`, "both are on level 6"},
		{"sideways back", "checkpoint/a.go", us + `stream"`, "both are on level 6"},
		{"store and device", "store/a.go", us + `device"`, "both are on level 1"},
		{"trace is at the bottom", "trace/a.go", us + `tensor"`, "both are on level 0"},
		{"upward in a test", "nn/a_test.go", us + `model"`, ""},
		{"a driver's parts", "device/cpu/a.go", us + `device/cpu/isa"`, ""},
		{"a driver's parts among themselves", "device/cpu/attention/a.go", us + `device/cpu/kernels"`, ""},
		{"a driver's parts of another", "device/cuda/a.go", us + `device/cpu/isa"`, "both are on level 2"},
		{"a driver in plan", "plan/a.go", us + `device/cpu"`, "link drivers"},
		{"a driver's part in plan", "plan/a.go", us + `device/cpu/isa"`, "link drivers"},
		{"a driver in a test", "plan/a_test.go", us + `device/cpu"`, ""},
		{"a driver in cmd", "cmd/millrace/a.go", us + `device/cpu"`, ""},
		{"a driver in a benchmark", "benchmarks/gemm/main.go", us + `device/cpu"`, ""},
		{"a driver in train", "train/a.go", us + `device/null"`, "link drivers"},
		{"a driver in a rehearsal", "rehearse/a.go", us + `device/null"`, ""},
		{"a suite that uses the reference", "device/devicetest/a.go", us + `device/cpu"`, ""},
		{"a suite of its own level", "model/modeltest/a.go", us + `model"`, ""},
		{"a suite in the product", "store/a.go", us + `store/storetest"`, "it is for tests"},
		{"a stand-in in the product", "device/cuda/a.go", us + `workshop/cudatest/ptx"`,
			"only tests and files *_standin.go import the workshop"},
		{"a stand-in in a suite", "device/devicetest/a.go", us + `workshop/cudatest/ptx"`,
			"only tests and files *_standin.go import the workshop"},
		{"a stand-in in a test", "device/cuda/a_test.go", us + `workshop/cudatest/ptx"`, ""},
		{"the workshop in the workshop", "workshop/kerneltest/a.go", us + `workshop/cudatest/ptx"`, ""},
		{"a stand-in in its file", "cmd/millrace/drivers_standin.go", us + `workshop/cudatest/standin"`, ""},
		{"a stand-in of a driver", "workshop/cudatest/standin/a.go", us + `device/cuda/driver"`, ""},
		{"a suite in a test", "store/a_test.go", us + `store/storetest"`, ""},
		{"a program's part", "cmd/millrace/a.go", us + `cmd/millrace/bar"`, ""},
		{"two programs", "examples/x/a.go", us + `cmd/millrace"`, "programs do not import each other"},
		{"the product imports a program", "train/a.go", us + `cmd/millrace"`, fmt.Sprintf("on %d", programs)},
		{"the root", "train/a.go", `"github.com/millrace/millrace"`, "level 13 imports only lower levels, and it is on 15"},
		{"the root in a program", "cmd/millrace/a.go", `"github.com/millrace/millrace"`, ""},
		{"a driver in the root", "a.go", us + `device/cpu"`, "link drivers"},
		{"drivers by name in the root", "a.go", us + `internal/drivers"`, ""},
		{"drivers by name in train", "train/a.go", us + `internal/drivers"`,
			"only programs and the root package open devices by name"},
		{"the list of drivers", "internal/drivers/a.go", us + `device/cpu"`, ""},
		{"an unknown target", "train/a.go", us + `lora"`, "it has no level: add it to levels in internal/archtest/levels.go"},
		{"an unknown package", "lora/a.go", `"fmt"`, "lora: the package has no level: add it to levels in internal/archtest"},
		{"cgo", "device/cuda/a.go", `"C"`, "there is no cgo"},
		{"an unknown module", "data/a.go", `"github.com/stretchr/testify/assert"`, "lists what this project depends on"},
		{"an unknown module in a test", "data/a_test.go", `"github.com/stretchr/testify/assert"`, "depends on"},
		{"a module that only begins alike", "data/a.go", `"golang.org/x/system"`, "depends on"},
		{"a known module", "data/a.go", `"golang.org/x/text/unicode/norm"`, ""},
		{"a module for tests", "data/a.go", `"pgregory.net/rapid"`, "this module is for tests"},
		{"a module for tests in a test", "data/a_test.go", `"pgregory.net/rapid"`, ""},
		{"a module for tests in a suite", "device/devicetest/a.go", `"github.com/google/go-cmp/cmp"`, ""},
		{"a module out of its place", "device/cpu/a.go", `"github.com/ebitengine/purego"`,
			"only device/cuda, internal/mpi, benchmarks may"},
		{"a module in its place", "device/cuda/a.go", `"github.com/ebitengine/purego"`, ""},
		{"the bottom", "vfs/a.go", us + `internal/fault"`, ""},
		{"the bottom imports", "internal/fault/a.go", us + `vfs"`, "both are on level 0"},
		{"the bottom, of files", "data/tokenizer/a.go", us + `internal/below"`, ""},
		{"the bottom imports the bottom", "internal/below/a.go", us + `internal/fault"`, "both are on level 0"},
		{"a name that says nothing", "internal/fileutil/a.go", `"fmt"`, `"util"`},
	} {
		text := "// Package doc.\npackage x\n\nimport " + c.text + "\n"
		found := check(t, map[string]string{c.file: text})
		if strings.HasSuffix(c.file, "_test.go") {
			found = check(t, map[string]string{c.file: text, strings.TrimSuffix(c.file, "_test.go") + ".go": "// Doc.\npackage x"})
		}
		switch {
		case c.want == "" && len(found) > 0:
			t.Errorf("%s: %q", c.what, found)
		case c.want != "" && (len(found) != 1 || !strings.Contains(found[0], c.want)):
			t.Errorf("%s: found %q, want %q", c.what, found, c.want)
		}
	}
}

func TestCheckerOnSources(t *testing.T) {
	for what, c := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"init": {map[string]string{"nn/a.go": "// Package nn.\npackage nn\n\nfunc init() {}\n\nfunc (t T) init() {}\n\ntype T int"},
			[]string{"nn/a.go:4:1: init runs where the reader does not see it: call the function where it is needed"}},
		"init in a test": {map[string]string{"nn/a.go": "// Doc.\npackage nn", "nn/a_test.go": "package nn\nfunc init() {}"}, nil},
		"goroutines": {map[string]string{
			"nn/a.go":                   "// Doc.\npackage nn\n\nimport (\n\"sync\"\n\"time\"\n)\n\nfunc f() { go f(); time.AfterFunc(0, f) }\n\nvar g sync.WaitGroup",
			"nn/a_test.go":              "package nn\nfunc g() { go g() }",
			"internal/fault/a.go":       "// Doc.\npackage fault\nfunc g() { go g() }",
			"benchmarks/x/main.go":      "// Doc.\npackage main\nfunc g() { go g() }",
			"store/storetest/parade.go": "// Doc.\npackage storetest\nfunc g() { go g() }"},
			[]string{
				"nn/a.go:11:7: sync.WaitGroup: start goroutines by internal/fault: a panic on others ends the program with status 2",
				"nn/a.go:9:12: go: start goroutines by internal/fault: a panic on others ends the program with status 2",
				"nn/a.go:9:20: time.AfterFunc: start goroutines by internal/fault: a panic on others ends the program with status 2",
			}},
		"no doc comment": {map[string]string{"nn/a.go": "// A licence.\n\npackage nn", "nn/b.go": "package nn"},
			[]string{"nn: the package has no doc comment"}},
		"a doc comment in one file": {map[string]string{"nn/a.go": "package nn", "nn/b.go": "// Package nn.\npackage nn"}, nil},
		"two violations": {map[string]string{"nn/a.go": "package nn\nfunc init() {}"},
			[]string{"nn/a.go:2:1: init runs where the reader does not see it: call the function where it is needed",
				"nn: the package has no doc comment"}},
		"left alone": {map[string]string{
			"nn/testdata/a.go": "package x\nfunc init() {}", ".git/a.go": "package x", "_old/a.go": "package x",
			"nn/gen.go": "//go:build ignore\n\npackage main\n\nfunc init() {}\n"}, nil},
		"build tags are no excuse": {map[string]string{"nn/a.go": "//go:build windows\n\n// Doc.\npackage nn\n\nfunc init() {}\n"},
			[]string{"nn/a.go:6:1: init runs where the reader does not see it: call the function where it is needed"}},
		"a clock in a test": {map[string]string{"nn/a.go": "// Doc.\npackage nn", "nn/a_test.go": "package nn\n" +
			"import \"time\"\nvar t = time.Now\nvar d = time.Second"},
			[]string{"nn/a_test.go:3:9: time.Now in a test: count steps, wait for events, or give a reason in internal/archtest/clocks.go"}},
		"a clock under another name": {map[string]string{"nn/a.go": "// Doc.\npackage nn", "nn/a_test.go": "package nn\n" +
			"import c \"context\"\nvar x, y, z = c.WithTimeout(c.Background(), 1)"},
			[]string{"nn/a_test.go:3:15: c.WithTimeout in a test: count steps, wait for events, or give a reason in internal/archtest/clocks.go"}},
		"a clock in a suite": {map[string]string{"store/storetest/a.go": "// Doc.\npackage storetest\nimport \"time\"\nvar t = time.After"},
			[]string{"store/storetest/a.go:4:9: time.After in a test: count steps, wait for events, or give a reason in internal/archtest/clocks.go"}},
		"clocks that may be": {map[string]string{"nn/a.go": "// Doc.\npackage nn\nimport \"time\"\nvar t = time.Now",
			"benchmarks/a.go": "// Doc.\npackage main", "benchmarks/a_test.go": "package main\nimport \"time\"\nvar t = time.Now",
			"train/a.go": "// Doc.\npackage train", "train/kill_test.go": "package train\nimport \"time\"\nvar t = time.AfterFunc"}, nil},
		"a clock that is gone": {map[string]string{"train/a.go": "// Doc.\npackage train", "train/kill_test.go": "package train"},
			[]string{"train/kill_test.go: it uses no clock: take it off the list in internal/archtest/clocks.go"}},
	} {
		if d := cmp.Diff(c.want, check(t, c.files)); d != "" {
			t.Errorf("%s: %s", what, d)
		}
	}
}

func check(t *testing.T, files map[string]string) []string {
	t.Helper()
	tree := fstest.MapFS{"go.mod": {Data: []byte("module github.com/millrace/millrace\n\ngo 1.26\n")}}
	for name, text := range files {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	found, err := Check(tree)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestCheckerReportsBadTrees(t *testing.T) {
	for what, tree := range map[string]fstest.MapFS{
		"no go.mod":     {},
		"a bad go.mod":  {"go.mod": {Data: []byte("go 1.26\n")}},
		"a bad go file": {"go.mod": {Data: []byte("module m\n")}, "a.go": {Data: []byte("pakcage")}},
	} {
		if _, err := Check(tree); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// A name that belongs to one file is found in another one, also under a second selection, and left alone where it
// means something else.
func TestOwnedNames(t *testing.T) {
	for text, want := range map[string]int{
		"func f(p *plan.Part) bool { return p.Group > 0 }":            1,
		"func f(r *run) bool { return r.Plan.Placement == 0 }":        2, // of a plan, and a place
		"func f(r *run) any { return r.Plan.Placement.Where.Inputs }": 2,
		"func f(r *run) any { return r.Plan.NewQuestion() }":          1,
		"func f(r *run) any { return r.Plan.Numerics.MicroBatch }":    0,
		"var p = plan.Disk":                       1,
		"var d device.Device":                     0,
		"func f(e *Engine) any { return e.Host }": 0,
	} {
		text = "// Package stream is.\npackage stream\n\n" + text + "\n"
		if found := check(t, map[string]string{"stream/fetch.go": text}); len(found) != want {
			t.Errorf("%s: %q", text, found)
		}
		if found := check(t, map[string]string{"stream/operands.go": text}); len(found) != 0 &&
			!strings.Contains(text, "Group") && !strings.Contains(text, "r.Plan") {
			t.Errorf("in operands.go: %q", found)
		}
	}
}
