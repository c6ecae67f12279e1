// Program mutants measures what the tests of packages notice: it makes small faults in the code, one at a time, and counts
// those with which all tests still pass.
//
//	go run ./mutants [-n 200] [-seed 1] [-run REGEXP] PACKAGE...
//
// (from the root: go -C workshop/tools run ./mutants -root ../.. ./optim ./nn)
//
// A fault is one of: a comparison that is turned round or moved by one, + for - and * for /, && for ||, a condition that is
// negated, ++ for --, an integer constant that is one more, and a statement that is left out. Of all faults in a package n are
// drawn. Each is compiled with go test -overlay, so that no file changes, and the package's own tests run with -short. A fault
// that does not compile, or that only changes a text, is not counted; one with which tests fail, panic or do not end is killed.
// With -also the tests of other packages run too, and with -only a list of survivors is tried again.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	n := flag.Int("n", 200, "draw `N` faults from each package")
	seed := flag.Uint64("seed", 1, "of the draw")
	root := flag.String("root", ".", "directory of the module")
	run := flag.String("run", "", "only tests that match, as for go test")
	also := flag.String("also", "", "run the tests of these `PACKAGES` too, separated by commas")
	only := flag.String("only", "", "only faults at the places (file:line:column) that the lines of a `FILE` begin with")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "mutants: name packages, such as ./optim")
		os.Exit(2)
	}
	for _, pkg := range flag.Args() {
		if err := (&trial{*root, pkg, *run, *also}).mutate(*n, *seed, *only); err != nil {
			fmt.Fprintln(os.Stderr, "mutants:", err)
			os.Exit(1)
		}
	}
}

// trial says what to change and which tests to run.
type trial struct{ root, pkg, run, also string }

// mutate tries faults in a package and prints those that survive, and the counts.
func (t *trial) mutate(n int, seed uint64, only string) error {
	dir, err := filepath.Abs(filepath.Join(t.root, t.pkg))
	if err != nil {
		return err
	}
	faults, err := faultsIn(dir)
	if err != nil {
		return err
	}
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	if only != "" {
		list, err := os.ReadFile(only)
		if err != nil {
			return err
		}
		var kept []fault
		for _, f := range faults {
			if strings.Contains("\n"+string(list), "\n"+f.String()+":") {
				kept = append(kept, f)
			}
		}
		faults = kept
	}
	begin := time.Now()
	if out, err := t.test("", time.Hour); err != nil {
		return fmt.Errorf("%s: its tests fail without a fault: %s", t.pkg, out)
	}
	limit := 5*time.Since(begin) + 30*time.Second
	killed, survived, invalid := 0, 0, 0
	for i, f := range faults {
		if killed+survived == n {
			break
		}
		switch alive, err := t.try(&f, limit); {
		case errors.Is(err, errInvalid):
			invalid++
		case err != nil:
			return err
		case alive:
			survived++
			fmt.Printf("%v: survives: %s\n", f, f.change)
		default:
			killed++
		}
		if i%20 == 19 {
			fmt.Fprintf(os.Stderr, "%s: %d killed, %d survived\n", t.pkg, killed, survived)
		}
	}
	fmt.Printf("%s: %d of %d killed (%.2f); drawn from %d, %d did not compile\n", t.pkg, killed, killed+survived,
		float64(killed)/float64(max(killed+survived, 1)), len(faults), invalid)
	return nil
}

// errInvalid is the error of a fault that does not compile.
var errInvalid = errors.New("does not compile")

// try runs the tests with a fault, and reports whether all pass.
func (t *trial) try(f *fault, limit time.Duration) (alive bool, err error) {
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	changed, overlay := filepath.Join(dir, filepath.Base(f.file)), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(changed, f.apply(), 0o600); err != nil {
		return false, err
	}
	doc, err := json.Marshal(map[string]any{"Replace": map[string]string{f.file: changed}})
	if err != nil {
		return false, err
	}
	if err := os.WriteFile(overlay, doc, 0o600); err != nil {
		return false, err
	}
	out, err := t.test(overlay, limit)
	if err != nil && (bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]"))) {
		return false, errInvalid
	}
	return err == nil, nil
}

// test runs the tests, with the files of an overlay.
func (t *trial) test(overlay string, limit time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit+time.Minute)
	defer cancel()
	args := []string{"test", "-short", "-failfast", "-vet=off", "-count=1", "-timeout", limit.String()}
	if t.run != "" {
		args = append(args, "-run", t.run)
	}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	packages := []string{t.pkg}
	if t.also != "" {
		packages = append(packages, strings.Split(t.also, ",")...)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, packages...)...)
	cmd.Dir = t.root
	cmd.WaitDelay = time.Second
	return cmd.CombinedOutput()
}
