package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/millrace/millrace/internal/fault"
)

// watchName names the file of what nvidia-smi sees each second: power, utilization, clocks, memory. Without the clocks
// a rate cannot be judged.
const watchName = "dmon.txt"

// watch has nvidia-smi write watchName until stop is called. It also keeps the GPU initialised between the processes of
// the rows: without a persistence daemon the driver sets it up again for each, which takes a second or more. A machine
// without nvidia-smi is not watched.
func (c *check) watch() (stop func(), err error) {
	path, err := exec.LookPath("nvidia-smi")
	if err != nil {
		return func() {}, nil
	}
	file, err := os.Create(filepath.Join(c.out, watchName))
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, "dmon", "-s", "pucm", "-o", "T", "-d", "1")
	cmd.Stdout, cmd.Stderr = file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	ended := make(chan struct{})
	fault.Go(func() {
		_ = cmd.Wait() // it ends by a signal
		close(ended)
	})
	return func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // it may have ended
		<-ended
		if err := file.Close(); err != nil {
			c.say("gpucheck: %v\n", err)
		}
	}, nil
}
