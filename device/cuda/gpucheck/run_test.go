// Package gpucheck has no code: its tests run run.sh with programs that only play their parts, so that the script itself is known to
// work before it is on a machine with a GPU.
package gpucheck

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// part is the environment variable that says how the programs play.
const part = "MILLRACE_TEST_PART"

// hanging is the environment variable that says where a run calls that hangs from then on.
const hanging = "MILLRACE_TEST_HANGING"

// timeout runs a command, whose time is up when a run in it hangs, however slow the machine is.
func timeout(args []string) int {
	for strings.HasPrefix(args[0], "-") {
		args = args[1:]
	}
	calls, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 125
	}
	cmd := exec.Command(args[1], args[2:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), hanging+"="+calls.Addr().String())
	var isUp atomic.Bool
	go func() {
		if _, err := calls.Accept(); err == nil { // which stays open until this process ends, and the run with it
			isUp.Store(true)
			cmd.Process.Kill()
		}
	}()
	cmd.Run()
	if isUp.Load() {
		return 124
	}
	return cmd.ProcessState.ExitCode()
}

// hang calls, and ends when nobody listens any more.
func hang() {
	if call, err := net.Dial("tcp", os.Getenv(hanging)); err == nil {
		io.Copy(io.Discard, call)
	}
}

// TestMain is millrace, cuda.test or timeout where this binary is called so.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "millrace":
		os.Exit(millrace(os.Args[1:]))
	case "cuda.test":
		os.Exit(cudaTest())
	case "timeout":
		os.Exit(timeout(os.Args[1:]))
	}
	os.Exit(m.Run())
}

func cudaTest() int {
	if os.Getenv("MILLRACE_GPU") != "1" {
		return 3
	}
	name := strings.Trim(strings.TrimPrefix(os.Args[len(os.Args)-1], "-test.run="), "^$")
	fmt.Printf("--- PASS: %s (0.01s)\n    --- SKIP: %s/cuBLASLt (0.00s)\n", name, name)
	if os.Getenv(part) == "a test fails" && name == "TestGPURepeats" {
		fmt.Println("    gpu_test.go:1: other bits")
		return 1
	}
	return 0
}

// millrace refuses what the program refuses, and trains by writing what training leaves.
func millrace(args []string) int {
	refuse := func(text string) int {
		fmt.Fprintln(os.Stderr, "millrace: "+text)
		return 2
	}
	set := map[string]string{"device": "cuda:0", "max_steps": "20"}
	for i, a := range args {
		if a == "--set" {
			key, value, _ := strings.Cut(args[i+1], "=")
			set[key] = value
		}
	}
	visible, limited := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	hidden := limited && visible == ""
	switch {
	case os.Getenv(part) == "no driver" && set["device"] != "cpu":
		return refuse("device cuda:0: there is no NVIDIA driver: libcuda.so.1 was not found; install it")
	case set["device"] == "cuda:77":
		return refuse("device cuda:77: there is no such GPU; there is only cuda:0")
	case set["device"] == "cuda:first":
		return refuse(`run.yaml: device: "cuda:first" is not the number of a GPU`)
	case set["memory.device"] == "1MiB":
		fmt.Fprintln(os.Stderr, "millrace: device cuda:0: matrix products run on this program's own kernels")
		return refuse("the model does not fit: raise memory.device")
	case hidden && strings.HasPrefix(set["device"], "cuda:"):
		return refuse(`device cuda:0: the driver shows no GPU, and CUDA_VISIBLE_DEVICES is ""`)
	}
	switch args[0] {
	case "plan":
		fmt.Println("the CPU computes, or the GPU")
		return 0
	case "probe":
		return 0
	}
	name := filepath.Base(set["output_dir"])
	if os.Getenv(part) == "a run hangs" && name == "halves" {
		hang()
		return 1
	}
	steps, err := strconv.Atoi(set["max_steps"])
	if err != nil {
		return refuse(err.Error())
	}
	var losses bytes.Buffer
	for i := range steps {
		loss := 6.0/(1+0.1*float64(i)) + 0.001*float64(len(name))
		if os.Getenv(part) == "other losses" && name == "gpu" {
			loss *= 1.02
		}
		fmt.Fprintf(&losses, "{\"step\":%d,\"loss\":%v,\"grad_norm\":1}\n", i+1, loss)
	}
	if slices.Contains([]string{"resident", "streamed"}, name) {
		losses.Reset()
		losses.WriteString("{\"step\":1,\"loss\":3}\n")
	}
	for file, content := range map[string]string{
		"metrics.jsonl": losses.String(), "plan.json": set["memory.device"], "model/model.safetensors": "bits",
	} {
		path := filepath.Join(set["output_dir"], file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return refuse(err.Error())
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return refuse(err.Error())
		}
	}
	return 0
}

// folder is what gpu-check.sh packs, with this binary as the programs.
func folder(t *testing.T) string {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for from, names := range map[string][]string{
		self: {"millrace", "cuda.test", "bin/timeout"}, "run.sh": {"run.sh"}, "README.md": {"README.md", "built-from.txt"},
	} {
		for _, name := range names {
			src, err := os.Open(from)
			if err != nil {
				t.Fatal(err)
			}
			defer src.Close()
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
				t.Fatal(err)
			}
			dst, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY, 0o700)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(dst, src); err != nil {
				t.Fatal(err)
			}
			if err := dst.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

var row = regexp.MustCompile(`^([a-z-]+) +(?:([0-9.]+) s)?  (.*)$`)

// rows is the table at the end of what the script prints.
func rows(t *testing.T, printed string) map[string]string {
	blocks := strings.Split(strings.TrimRight(printed, "\n"), "\n\n")
	all := map[string]string{}
	for line := range strings.Lines(blocks[len(blocks)-1]) {
		m := row.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			t.Fatalf("%q is no row of a table, and comes last:\n%s", line, printed)
		}
		all[m[1]] = m[3]
	}
	return all
}

func TestScript(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("needs bash")
	}
	const skipped = "pass (cuBLASLt is not installed)"
	whole := map[string]string{"bad-input": "pass", "driver-bad-input": skipped, "devicetest": skipped, "repeats": skipped, "laws": skipped,
		"parity": "pass", "streamed": "pass", "resumed": "pass", "train": "pass", "probe": "pass"}
	but := func(name, result string) map[string]string {
		changed := map[string]string{name: result}
		for n, r := range whole {
			if n != name {
				changed[n] = r
			}
		}
		return changed
	}
	dir := folder(t)
	for _, c := range []struct {
		part   string
		env    []string
		status int
		want   map[string]string // nil: there is no table
		logged map[string]string // what logs have
	}{
		{part: "all is well", want: whole, logged: map[string]string{"parity": "largest relative difference", "train": "->"}},
		{part: "some rows", env: []string{"ONLY=par* laws"}, want: map[string]string{"parity": "pass", "laws": skipped}},
		{part: "no rows", env: []string{"ONLY=nothing"}, status: 1},
		{part: "no driver", status: 1, want: map[string]string{
			"open": "FAIL: millrace: device cuda:0: there is no NVIDIA driver: libcuda.so.1 was not found; install it"}},
		{part: "other losses", status: 1, want: but("parity", "FAIL")},
		{part: "a test fails", status: 1, want: but("repeats", "FAIL"), logged: map[string]string{"repeats": "other bits"}},
		{part: "a run hangs", env: []string{"LIMIT=77", "PATH=" + filepath.Join(dir, "bin") + string(filepath.ListSeparator) + os.Getenv("PATH"), "ONLY=resumed probe"}, status: 1,
			want: map[string]string{"resumed": "FAIL: ended after 77 s", "probe": "pass"}},
	} {
		t.Run(c.part, func(t *testing.T) {
			t.Parallel()
			out := filepath.Join(t.TempDir(), "out")
			cmd := exec.Command(bash, filepath.Join(dir, "run.sh"))
			cmd.Dir = t.TempDir()
			cmd.Env = append(append(os.Environ(), part+"="+c.part, "OUT="+out), c.env...)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			if status := cmd.ProcessState.ExitCode(); status != c.status {
				t.Errorf("status %d (%v), want %d\n%s%s", status, err, c.status, &stderr, &stdout)
			}
			if c.want == nil {
				if n := strings.Count(stderr.String(), "\n"); n != 1 || stdout.Len() > 0 {
					t.Errorf("not one line:\n%s%s", &stderr, &stdout)
				}
				return
			}
			got := rows(t, stdout.String())
			for name, want := range c.want {
				if got[name] != want {
					t.Errorf("%s: %q, want %q\n%s", name, got[name], want, &stderr)
				}
			}
			if len(got) != len(c.want) {
				t.Errorf("%d rows, want %d:\n%s", len(got), len(c.want), &stdout)
			}
			for name, want := range c.logged {
				text, err := os.ReadFile(filepath.Join(out, name+".log"))
				if err != nil || !strings.Contains(string(text), want) {
					t.Errorf("%s.log has no %q (%v):\n%s", name, want, err, text)
				}
			}
		})
	}
}
