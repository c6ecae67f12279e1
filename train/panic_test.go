package train

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/millrace/millrace/device"
)

// panicking is a device whose streams panic when the engine's lanes use them.
type panicking struct{ device.Device }

func (p panicking) NewStream(name string) (device.Stream, error) {
	s, err := p.Device.NewStream(name)
	return panickingStream{s}, err
}

type panickingStream struct{ device.Stream }

func (panickingStream) Record(device.Event) { panic("the lane is blocked") }

// A panic on a lane, which is a goroutine of the engine, prints itself with its stack and ends the program with status 1.
func TestPanicOfALane(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	var said bytes.Buffer
	cmd.Env, cmd.Stderr = append(os.Environ(), victimEnv+"="+writeRun(t, smallConfig(t)), victimPanicsEnv+"=1"), &said
	cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != 1 {
		t.Errorf("status %d", got)
	}
	for _, part := range []string{"a fault of the program", "panic: the lane is blocked", "stream.(*execution).walk"} {
		if !strings.Contains(said.String(), part) {
			t.Errorf("no %q in %s", part, said.String())
		}
	}
}
