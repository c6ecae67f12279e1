package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// sanitizers lists the paths at which NVIDIA's toolkits have the program that checks each access of a kernel.
var sanitizers = []string{"compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer",
	"/opt/nvidia/compute-sanitizer/compute-sanitizer"}

// sanitizedRuns names the runs of TestGPUKernels that a sanitizer looks at: it makes them tens of times slower, so the
// large ones are left to the row kernels.
const sanitizedRuns = "TestGPUKernels/code/runs/(Add|Norm|NormGrad|RotatedSum|" +
	"Sum|Loss|Fold|ScatterAdd|MatMul|Attention|GateGrad|Delta)"

// sanitize runs the kernels below a tool of compute-sanitizer, which finds what guards around operands cannot see:
// reads outside of them, and threads that race in shared memory. Each process of the test has a sanitizer of its own
// (kerneltest.WrapVariable).
func sanitize(tool string) func(c *check) (string, error) {
	return func(c *check) (string, error) {
		var program string
		for _, name := range sanitizers {
			if path, err := exec.LookPath(name); err == nil {
				program = path
				break
			}
		}
		if program == "" {
			return "", leftOut("there is no compute-sanitizer")
		}
		logs := filepath.Join(c.work, tool)
		if err := os.MkdirAll(logs, 0o777); err != nil {
			return "", err
		}
		wrap := strings.Join([]string{program, "--tool", tool, "--error-exitcode", "86",
			"--log-file", filepath.Join(logs, "%p.txt")}, " ")
		_, err := c.command([]string{"MILLRACE_GPU=1", "MILLRACE_GPU_WRAP=" + wrap}, "cuda.test",
			testArgs(c, sanitizedRuns)...)
		processes, found, readErr := sanitized(logs)
		note := fmt.Sprintf("%s found %d errors in %d processes", tool, found, processes)
		switch {
		case readErr != nil:
			return note, readErr
		case found > 0:
			return "", errors.New(note + "; runs.tar.gz has them")
		case c.ctx.Err() != nil:
			return "", leftOut(note + ", and did not end in time")
		case err == nil && processes == 0:
			return "", errors.New(tool + " said nothing of any process")
		}
		return note, err
	}
}

var sanitizerSummary = regexp.MustCompile(`(?m)^=+ (?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)`)

// sanitized counts the processes that a sanitizer has told of in a folder of logs, and what it found in them.
func sanitized(logs string) (processes, found int, err error) {
	entries, err := fs.ReadDir(os.DirFS(logs), ".")
	if err != nil {
		return 0, 0, err
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(logs, e.Name()))
		if err != nil {
			return 0, 0, err
		}
		m := sanitizerSummary.FindSubmatch(text)
		if m == nil {
			continue // of a process that used no GPU, or was ended
		}
		n, err := strconv.Atoi(string(m[1]) + string(m[2]))
		if err != nil {
			return 0, 0, err
		}
		processes, found = processes+1, found+n
	}
	return processes, found, nil
}
