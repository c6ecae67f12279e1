package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// tree is a module with a package of each kind.
func tree() fstest.MapFS {
	const ours = "import \"" + module + "/"
	long := "package main\nfunc TestLong(t *testing.T) { few() }\nfunc TestLongToo(t *testing.T) { testing.Short() }\n" +
		"func few() int { if testing.Short() { return 1 }; return few() }"
	files := map[string]string{
		"README.md": "", "docs/cli.md": "", "sub/go.mod": "module sub",
		"sub/a_test.go": "package sub\nfunc TestSub(t *testing.T) {}",
		"store/a.go":    "package store\nimport \"sync\"\nvar lock sync.Mutex",
		"store/a_test.go": "package store\nfunc TestStore(t *testing.T) {}\nfunc TestMain(m *testing.M) {}\nfunc " +
			"Tests() {}",
		"store/storetest/a.go":      "package storetest\nimport \"sync\"\nvar lock sync.Mutex",
		"store/storetest/a_test.go": "package storetest\nfunc TestSuite(t *testing.T) {}",
		"nn/a.go":                   "package nn\nimport \"internal/fault\"\nvar f = fault.Share",
		"nn/a_test.go":              "package nn\nfunc TestLayer(t *testing.T) {}",
		"plan/a.go":                 "package plan\nvar found chan int",
		"plan/plan_test.go":         "package plan\nfunc TestPlan(t *testing.T) {}",
		"stream/a.go": "package stream\n" + ours + "plan\"\n" + ours + "internal/fault\"\nvar lanes " +
			"fault.Group",
		"stream/a_test.go":  "package stream\nfunc TestLanes(t *testing.T) {}",
		"train/a.go":        "package train\n" + ours + "plan\"\n",
		"train/own_test.go": "package train\nfunc TestOwn(t *testing.T) { go f() }",
		"train/a_test.go":   "package train\n",
		"cmd/cli_test.go": "package main\nfunc TestFlags(t *testing.T) { read(\"../docs/cli.md\") }\n" +
			"func ExampleFlags() {}",
		"cmd/long_test.go":          long,
		"cmd/root_test.go":          "package main\nfunc TestAll(t *testing.T) { os.DirFS(\"..\") }",
		"cmd/other_test.go":         "package main\nfunc TestRest(t *testing.T) { os.DirFS(\".\"); read(\"out/README.md\") }",
		"cmd/readme_test.go":        "package main\nfunc FuzzReadme(f *testing.F) { read(\"../README.md\") }",
		"cmd/testdata/none_test.go": "package none\nfunc TestNone(t *testing.T) { read(\"cli.md\") }",
	}
	for i := range 20 {
		files["train/a_test.go"] += fmt.Sprintf("func TestTrain%d(t *testing.T) {}\n", i)
	}
	root := fstest.MapFS{}
	for name, text := range files {
		root[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return root
}

func TestWords(t *testing.T) {
	got, err := pick(tree(), "words", 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"-run=^(ExampleFlags|FuzzReadme|TestAll|TestFlags)$", "./cmd"}, got); d != "" {
		t.Error(d)
	}
}

func TestRace(t *testing.T) {
	const packages = "./plan ./store ./stream ./train"
	times := map[string]int{}
	const turns = 18
	// Their package plans, and for the first their files start goroutines; their package plans nothing; it always runs.
	want := map[string]int{"TestOwn": 2, "TestPlan": 1, "TestStore": 6, "TestLanes": 3}
	for i := range 20 {
		want[fmt.Sprintf("TestTrain%d", i)] = 1
	}
	for turn := range turns {
		got, err := pick(tree(), "race", turns, turn)
		if err != nil {
			t.Fatal(err)
		}
		named, left := got, []string(nil)
		if len(got) > 0 && strings.HasPrefix(got[0], "-skip=") {
			left, named = strings.Split(strings.TrimSuffix(strings.TrimPrefix(got[0], "-skip=^("), ")$"), "|"), got[1:]
		}
		var with []string // packages that are named, with a test that runs
		dirs := map[string]string{"TestStore": "./store", "TestPlan": "./plan", "TestLanes": "./stream"}
		for name := range want {
			dir, other := dirs[name]
			if !other {
				dir = "./train"
			}
			if slices.Contains(named, dir) && !slices.Contains(left, name) {
				times[name]++
				with = append(with, dir)
			}
		}
		slices.Sort(with)
		with = slices.Compact(with)
		slices.Sort(named)
		if d := cmp.Diff(with, named, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("packages of turn %d: %s", turn, d)
		}
	}
	if d := cmp.Diff(want, times); d != "" {
		t.Errorf("turns of tests: %s", d)
	}
	all, err := pick(tree(), "race", 1, 0)
	slices.Sort(all)
	if err != nil || strings.Join(all, " ") != packages {
		t.Errorf("one turn has %q, %v", all, err)
	}
	all, err = pick(tree(), "long", 1, 0)
	if err != nil || strings.Join(all, " ") != "-run=^(TestLong|TestLongToo)$ ./cmd" {
		t.Errorf("long tests: %q, %v", all, err)
	}
	if all, err := pick(tree(), "fuzz", 1, 0); err != nil || strings.Join(all, " ") != "./cmd:FuzzReadme" {
		t.Errorf("fuzzers: %q, %v", all, err)
	}
	if _, err := pick(tree(), "races", 1, 0); err == nil {
		t.Error("another stage is accepted")
	}
}

// The stages find what they are about in this module.
func TestThisModule(t *testing.T) {
	root := os.DirFS("../..")
	for stage, want := range map[string][]string{
		"words": {"./internal/archtest", "./cmd/millrace", "./runfile", "./model"},
		"race":  {"./train", "./stream", "./store", "./device/cpu", "./checkpoint", "./hf/hub", "./internal/mpi"},
	} {
		args, err := pick(root, stage, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range want {
			if !slices.Contains(args, p) {
				t.Errorf("%s: %s is not among %q", stage, p, args[1:])
			}
		}
	}
}
