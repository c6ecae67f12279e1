package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/internal/surroundings"
)

// programEnv is set in a process that is the program itself, with the arguments that follow its name.
const programEnv = "MILLRACE_TEST_PROGRAM"

// peakEnv names the file to which such a process writes what the kernel says of it when it ends.
const peakEnv = "MILLRACE_TEST_PEAK"

// TestMain takes the GPUs of this machine away, for the tests and for the processes that they start.
func TestMain(m *testing.M) {
	loadDriver = func() (*driver.API, error) {
		return nil, fmt.Errorf("%w: libcuda.so.1 was not found; install it", driver.ErrMissing)
	}
	switch os.Getenv(programEnv) {
	case "":
		patience = 0 // a busy machine ends no test
		os.Exit(surroundings.Run(m))
	case "is impatient":
		patience = time.Millisecond
	case "panics":
		loadDriver = func() (*driver.API, error) { panic("the driver is upside down") }
	case "notes its peak":
		status := run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, listen(false))
		if text, err := os.ReadFile("/proc/self/status"); err == nil { // a process that has none says nothing
			_ = os.WriteFile(os.Getenv(peakEnv), text, 0o600)
		}
		os.Exit(status)
	case "lingers":
		os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, lingering{os.Stderr}, listen(false)))
	}
	main()
}

// inProcess is the program in a process of its own.
func inProcess(mode string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), programEnv+"="+mode)
	return cmd
}

// A panic is never silent and never a success: it prints itself and where it came from, and the status is 1.
func TestPanicOfTheMainGoroutine(t *testing.T) {
	w := newWorkshop(t)
	cmd := inProcess("panics", "plan", w.path("run.yaml"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != fault.Status || stdout.Len() > 0 {
		t.Errorf("status %d, output %q", got, stdout.String())
	}
	for _, part := range []string{"millrace: a fault of the program", "panic: the driver is upside down",
		"drivers.Opener.openGPU"} {
		if !strings.Contains(stderr.String(), part) {
			t.Errorf("no %q in %s", part, stderr.String())
		}
	}
}

// A disk that is full is no fault of the request: status 1, wherever it is found out.
func TestFullDisk(t *testing.T) {
	const full = "/dev/full" // a file on which nothing can be written
	if _, err := os.Stat(full); err != nil {
		t.Skip("this system has no file that is always full")
	}
	w := newWorkshop(t)
	stdout, err := os.OpenFile(full, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	for what, args := range map[string][]string{
		"a page":           {"preview", w.path("run.yaml"), "--html", full},
		"a result":         {"version"},
		"a result as JSON": {"plan", w.path("run.yaml"), "--json"},
	} {
		var stderr bytes.Buffer
		status := run(args, strings.NewReader(""), stdout, &stderr, nil)
		if status != exitFailed || !strings.Contains(stderr.String(), "no space left") {
			t.Errorf("%s: status %d: %s", what, status, stderr.String())
		}
	}
}
