// Program mutants measures what the tests of packages notice: it makes small faults in the code, one at a time, and counts
// those with which all tests still pass.
//
//	go run ./tools/mutants [-n 200] [-seed 1] [-run REGEXP] PACKAGE...
//
// (from the root: go -C tools run ./mutants -root .. ./optim ./nn)
//
// A fault is one of: a comparison that is turned round or moved by one, + for - and * for /, && for ||, a condition that is
// negated, ++ for --, an integer constant that is one more, and a statement that is left out. Of all faults in a package n are
// drawn. Each is compiled with go test -overlay, so that no file changes, and the package's own tests run with -short. A fault
// that does not compile, or that only changes a text, is not counted; one with which tests fail, panic or do not end is killed.
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
	only := flag.String("only", "", "only the faults that a file lists, one place (file:line:column kind) a line")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "mutants: name packages, such as ./optim")
		os.Exit(2)
	}
	for _, pkg := range flag.Args() {
		if err := mutate(*root, pkg, *n, *seed, *run, *only); err != nil {
			fmt.Fprintln(os.Stderr, "mutants:", err)
			os.Exit(1)
		}
	}
}

// mutate tries faults in a package and prints those that survive, and the counts.
func mutate(root, pkg string, n int, seed uint64, run, only string) error {
	dir, err := filepath.Abs(filepath.Join(root, pkg))
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
			if strings.Contains(string(list), f.String()+"\n") {
				kept = append(kept, f)
			}
		}
		faults = kept
	}
	begin := time.Now()
	if out, err := test(root, pkg, run, "", time.Hour); err != nil {
		return fmt.Errorf("%s: its tests fail without a fault: %s", pkg, out)
	}
	limit := 5*time.Since(begin) + 30*time.Second
	killed, survived, invalid := 0, 0, 0
	for i, f := range faults {
		if killed+survived == n {
			break
		}
		switch alive, err := try(root, pkg, run, &f, limit); {
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
			fmt.Fprintf(os.Stderr, "%s: %d killed, %d survived\n", pkg, killed, survived)
		}
	}
	fmt.Printf("%s: %d of %d killed (%.2f); drawn from %d, %d did not compile\n", pkg, killed, killed+survived,
		float64(killed)/float64(max(killed+survived, 1)), len(faults), invalid)
	return nil
}

// errInvalid is the error of a fault that does not compile.
var errInvalid = errors.New("does not compile")

// try runs the tests with a fault, and reports whether all pass.
func try(root, pkg, run string, f *fault, limit time.Duration) (alive bool, err error) {
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
	out, err := test(root, pkg, run, overlay, limit)
	if err != nil && (bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]"))) {
		return false, errInvalid
	}
	return err == nil, nil
}

// test runs the tests of a package, with the files of an overlay.
func test(root, pkg, run, overlay string, limit time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit+time.Minute)
	defer cancel()
	args := []string{"test", "-short", "-failfast", "-vet=off", "-count=1", "-timeout", limit.String()}
	if run != "" {
		args = append(args, "-run", run)
	}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = root
	cmd.WaitDelay = time.Second
	return cmd.CombinedOutput()
}
