package train

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/session"
)

// devicesEnv is newEnv with a number of devices that compute.
func devicesEnv(t *testing.T, n int) *session.Env {
	env := newEnv(t)
	env.Open = func(_ string, a *hostmem.Accounts) (all []device.Device, host device.Device, err error) {
		for range n {
			d, err := cpu.New(cpu.Options{Workers: 1, Accounts: a})
			if err != nil {
				return nil, nil, err
			}
			all = append(all, d)
		}
		return all, all[0], nil
	}
	return env
}

// A run on two devices, streamed or not, one that moves from three to one, and one on one device end with the same
// model, to the bit. Metrics have the times of each device.
func TestDevicesChangeNoBit(t *testing.T) {
	model := func(c *runfile.Config) []byte {
		t.Helper()
		weights, err := os.ReadFile(filepath.Join(c.OutputDir, "model", "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		return weights
	}
	train := func(c *runfile.Config, env *session.Env) {
		t.Helper()
		if _, err := Train(context.Background(), c, Options{Env: env}); err != nil {
			t.Fatal(err)
		}
	}
	of := smallConfig(t)
	of.MaxSteps, of.Numerics.MicroBatch = 4, 1
	run := func(name string) *runfile.Config {
		c := *of
		c.OutputDir = filepath.Join(t.TempDir(), name)
		return &c
	}
	one := run("one")
	train(one, devicesEnv(t, 1))
	want := model(one)

	two := run("two")
	train(two, devicesEnv(t, 2))
	if !bytes.Equal(model(two), want) {
		t.Error("two devices end with other weights")
	}
	for _, m := range metricsOf(t, two.OutputDir) {
		if len(m.Devices) != 2 || m.Devices[1].Compute <= 0 || m.Devices[0].Exchange+m.Devices[1].Exchange <= 0 {
			t.Errorf("step %d: devices are busy for %+v", m.Step, m.Devices)
		}
	}
	streamed := run("streamed")
	streamed.Memory.Device.N = 4 << 20
	train(streamed, devicesEnv(t, 2))
	if !bytes.Equal(model(streamed), want) {
		t.Error("two devices to which weights are streamed end with other weights")
	}

	moves := run("moves")
	env, stop := devicesEnv(t, 3), make(chan struct{})
	env.Stop, env.Progress = stop, &stopper{"step 2/4", stop}
	if _, err := Train(context.Background(), moves, Options{Env: env}); !errors.Is(err, ErrInterrupted) {
		t.Fatal(err)
	}
	train(moves, devicesEnv(t, 1))
	if !bytes.Equal(model(moves), want) {
		t.Error("a run that moves from three devices to one ends with other weights")
	}
}
