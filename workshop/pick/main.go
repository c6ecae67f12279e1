// Command pick names the tests of this module that a stage of .ci/run needs, as arguments of go test.
//
//	go run ./workshop/pick words           tests that read pages
//	go run ./workshop/pick race            tests of packages whose goroutines share memory
//	go run ./workshop/pick -turns 18 race  one package in 3, and of those that plan or call what plans one test in 18
//	go run ./workshop/pick -turns 3 long   one in three of the tests that do more without -short
//	go run ./workshop/pick fuzz            fuzzers, as package:name, not as arguments
//
// It reads the sources, so no list names tests, and a new test is chosen by what its file and its package do.
package main

import (
	"flag"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"os/exec"
	"strings"
)

func main() {
	turns := flag.Int("turns", 1, "a commit has one in `N` of the tests that may take turns")
	flag.Parse()
	number, err := ofCommit()
	if err != nil {
		*turns = 1
	}
	args, err := pick(os.DirFS("."), flag.Arg(0), *turns, int(number%uint32(*turns)))
	if err != nil {
		fmt.Fprintln(os.Stderr, "pick:", err)
		os.Exit(1)
	}
	fmt.Println(strings.Join(args, " "))
}

// ofCommit is a number that the commit chooses. Without one all turns run at once.
func ofCommit() (uint32, error) {
	commit, err := exec.Command("git", "rev-parse", "HEAD").Output()
	return crc32.ChecksumIEEE(commit), err
}

// turnOf is the turn of a test, by its name, so that a test keeps it.
func turnOf(name string, turns int) int { return int(crc32.ChecksumIEEE([]byte(name)) % uint32(turns)) }

// pick chooses the tests of a stage.
func pick(root fs.FS, stage string, turns, turn int) ([]string, error) {
	packages, pages, err := load(root)
	if err != nil {
		return nil, err
	}
	switch stage {
	case "words":
		return words(packages, pages), nil
	case "race":
		return race(packages, turns, turn), nil
	case "long":
		return long(packages, turns, turn), nil
	case "fuzz":
		return fuzzers(packages), nil
	}
	return nil, fmt.Errorf("%q is no stage: words, long, race or fuzz", stage)
}
