//go:build unix

package fault

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// faultEnv names the case that a process of its own is there for.
const faultEnv = "MILLRACE_TEST_FAULT"

// started are the ways to start a goroutine. The function does not return.
var started = map[string]func(f func()){
	"Go":        func(f func()) { Go(f); select {} },
	"Group":     func(f func()) { var g Group; g.Go(f); g.Wait(); select {} },
	"AfterFunc": func(f func()) { AfterFunc(time.Microsecond, f); select {} },
}

func TestMain(m *testing.M) {
	how, what, _ := strings.Cut(os.Getenv(faultEnv), " ")
	switch what {
	case "":
		os.Exit(m.Run())
	case "panic":
		started[how](func() { panic("the wheel fell off") })
	case "cut":
		started[how](readWhatWasCut)
	}
}

// readWhatWasCut reads a mapped file beyond its end.
func readWhatWasCut() {
	f, err := os.CreateTemp("", "cut")
	if err != nil {
		panic(err)
	}
	defer f.Close()
	os.Remove(f.Name())
	if err := f.Truncate(1 << 20); err != nil {
		panic(err)
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, 1<<20, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	if err := f.Truncate(0); err != nil {
		panic(err)
	}
	fmt.Print(b[1<<19])
}

// A panic on a goroutine prints itself, where it came from and whose fault it is, and ends the program with status 1:
// not with Go's 2, which says that the request is wrong. So does memory that cannot be read.
func TestPanicEndsTheProgram(t *testing.T) {
	for how := range started {
		for what, want := range map[string][]string{
			"panic": {"a fault of the program", "panic: the wheel fell off", "fault.TestMain"},
			"cut":   {"memory cannot be read", "fault.readWhatWasCut"},
		} {
			cmd := exec.Command(os.Args[0])
			var said bytes.Buffer
			cmd.Env, cmd.Stderr = append(os.Environ(), faultEnv+"="+how+" "+what), &said
			cmd.Run()
			if got := cmd.ProcessState.ExitCode(); got != Status {
				t.Errorf("%s, %s: status %d: %s", how, what, got, said.String())
			}
			for _, part := range want {
				if !strings.Contains(said.String(), part) {
					t.Errorf("%s, %s: no %q in %s", how, what, part, said.String())
				}
			}
		}
	}
}
