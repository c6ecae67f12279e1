package main

import (
	"context"
	"fmt"
	"io"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/plan"
)

// planShape tells whether a published shape can be trained on a machine, and how fast. It downloads nothing.
func planShape(ctx context.Context, shape, machine string, out io.Writer) error {
	planned, err := millrace.PlanShape(ctx, shape, machine, "sequence_len=4096")
	if err != nil {
		return err // it does not fit, and the error names the number to change
	}
	p := planned.Plan
	fmt.Fprintf(out, "%s on %s: %s of device memory, %s of host memory, %s of disk\n", shape, machine,
		plan.FormatBytes(p.DeviceTotalBytes()), plan.FormatBytes(p.HostBytes), plan.FormatBytes(p.DiskBytes))
	fmt.Fprintf(out, "%.0f tokens per second; %s\n", planned.Forecast.TokensPerSec, planned.Forecast.Limit)
	return nil
}
