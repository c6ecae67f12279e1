package main

import (
	"context"
	"fmt"
	"io"

	"example.com/library/plain"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train"
)

// trainOnPlainDevice trains on a device whose driver is not in Millrace's tree. The engine streams layers to it, and
// the CPU's driver updates the state that stays in host memory.
func trainOnPlainDevice(ctx context.Context, config *runfile.Config, out io.Writer) (*train.Summary, error) {
	env, dev := millrace.NewEnv(out), plain.New(64<<20, 0)
	env.Open = func(_ string, accounts *hostmem.Accounts) (computes []device.Device, host device.Device,
		err error) {
		host, err = cpu.New(cpu.Options{Accounts: accounts})
		return []device.Device{dev}, host, err
	}
	return millrace.Train(ctx, config, millrace.TrainOptions{Env: env, OnStep: func(m trace.Metrics) error {
		fmt.Fprintf(out, "step %d: loss %.2f, %d MFLOP in products so far\n", m.Step, m.Loss, dev.FLOPs()/1e6)
		return nil
	}})
}
