package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/device/cuda"
	"github.com/millrace/millrace/device/null"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train"
	"github.com/millrace/millrace/train/verbs"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

// said gives a device another description of itself.
type said struct {
	device.Device
	info device.Info
}

func (d said) Info() device.Info { return d.info }

// plans runs `millrace plan RUN --json --set KEY=VALUE...` on the null device, with what the CUDA device says of itself
// on a card like an H200: its memory, and what it takes of that whatever it is asked to do.
func plans(args []string) int {
	err := func() error {
		gpu, err := standin.Load()
		if err != nil {
			return err
		}
		d, err := cuda.Open(cuda.Options{API: gpu, OwnProducts: true})
		if err != nil {
			return err
		}
		info := d.Info()
		if err := d.Close(); err != nil {
			return err
		}
		accounts := hostmem.New()
		env := &train.Env{Accounts: accounts, Progress: io.Discard, Open: func(string, *hostmem.Accounts) (
			[]device.Device, device.Device, error,
		) {
			host, err := cpu.New(cpu.Options{Workers: 2, Accounts: accounts})
			return []device.Device{said{null.New(null.Options{}), info}}, host, err
		}}
		var set []string
		for i, a := range args {
			if a == "--set" {
				set = append(set, args[i+1])
			}
		}
		config, err := runfile.Read(args[1], set)
		if err != nil {
			return err
		}
		p, err := verbs.PlanFor(context.Background(), config, verbs.PlanOptions{Env: env})
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(p.Plan)
	}()
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, blame.ErrRequest) || strings.Contains(err.Error(), "memory.device"):
		fmt.Fprintln(os.Stderr, "millrace:", err)
		return exitRequest
	}
	fmt.Fprintln(os.Stderr, "millrace:", err)
	return exitFailed
}

// The planner accepts the budget of the row streamed, although the CUDA device takes memory for itself. In that budget
// it streams weights that it otherwise does not. Both hold in a rehearsal as well.
func TestStreamedIsPossible(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out searches for plans of large models; make test runs them")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{nil, {"--tiny"}} {
		dir := t.TempDir()
		if err := os.Symlink(self, filepath.Join(dir, "millrace")); err != nil {
			t.Fatal(err)
		}
		t.Setenv(part, "plans")
		var budget string
		status, printed, _ := checked(t, []row{{name: "streamed", most: time.Hour, run: func(c *check) (string, error) {
			if err := errors.Join(os.MkdirAll(filepath.Join(c.dir, "data"), 0o777),
				os.WriteFile(filepath.Join(c.dir, "data/text.txt"), []byte("text"), 0o666)); err != nil {
				return "", err
			}
			var err error
			budget, err = c.streamedBudget()
			return budget, err
		}}}, append(args, "--budget", "100000", "--dir", dir)...)
		if status != exitDone || !strings.HasPrefix(budget, "memory.device=") {
			t.Errorf("%v: status %d, %q\n%s", args, status, budget, printed)
		}
	}
}
