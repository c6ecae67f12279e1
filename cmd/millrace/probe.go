package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/train"
)

type probeCmd struct {
	Device string `default:"auto" help:"Device to measure: auto or cpu."`
	JSON   bool   `help:"Print the rates as JSON."`
}

func (*probeCmd) Help() string {
	return `Measures matrix products, attention, memory and the optimizer for some seconds, on this machine and a device of it.
The result is kept in the cache directory ($MILLRACE_CACHE), where "millrace plan" and "millrace train" find it. Close other
programs first: what they take is missing in the result.

Example:

  millrace probe && millrace plan run.yaml`
}

// Run measures.
func (c *probeCmd) Run(p *program) error {
	m, err := train.Probe(p.ctx, p.env, c.Device)
	if err != nil {
		return err
	}
	if c.JSON {
		return p.printJSON(m)
	}
	return p.printf("%s", machineText(m))
}

// machineText is a table of rates.
func machineText(m *plan.Machine) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", m.Name)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, r := range []struct {
		name, unit string
		rate, per  float64
	}{
		{"matrix products, f32", "GFLOP/s", m.F32FLOPsPerSec, 1e9},
		{"matrix products, bf16", "GFLOP/s", m.BF16FLOPsPerSec, 1e9},
		{"attention", "GFLOP/s", m.AttentionFLOPsPerSec, 1e9},
		{"device memory", "GB/s", m.DeviceBytesPerSec, 1e9},
		{"to the device", "GB/s", m.UploadBytesPerSec, 1e9},
		{"from the device", "GB/s", m.DownloadBytesPerSec, 1e9},
		{"host memory", "GB/s", m.HostBytesPerSec, 1e9},
		{"optimizer (AdamW)", "GB/s", m.AdamWBytesPerSec, 1e9},
	} {
		fmt.Fprintf(w, "%s\t%.1f\t %s\n", r.name, r.rate/r.per, r.unit)
	}
	w.Flush()
	return b.String()
}
