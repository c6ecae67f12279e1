package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/cores"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/probe"
)

type probeCmd struct {
	Device string `complete:"auto|cpu|cuda" default:"auto" help:"Device to measure: auto, cpu, cuda or cuda:N."`
	Force  bool   `help:"Keep the rates, even if those that are kept were measured while the machine was less busy."`
	JSON   bool   `help:"Print the rates as JSON."`

	Path []string `sep:"none" complete:"none|DIR" default:"." placeholder:"DIR" help:"A directory on the drive to measure, where memory.path or output_dir will be; or none. May be repeated, for several drives at once."`
}

func (*probeCmd) Help() string {
	return `Measures matrix products, attention, other operations that plans take apart, memory, the optimizer and a drive, on
this machine and a device of it, for about half a minute, with random numbers: zeros take a chip less power, and are
faster than any training. The drive is read and written as the disk tier does it, 1 GiB at a time in a directory that
is removed again. The result is kept in the cache directory ($MILLRACE_CACHE), where "millrace plan" and "millrace
train" find it. Close other programs first: what they take is missing in the result. Rates of a busy machine do not
take the place of better ones without --force. With several --path each drive is measured alone, and then all at once.

Example:

  millrace probe --path /mnt/nvme && millrace plan run.yaml`
}

// Run measures.
func (c *probeCmd) Run(p *program) error {
	paths := c.Path
	if slices.Equal(paths, []string{"none"}) {
		paths = nil
	}
	m, err := probe.Measure(p.ctx, probe.Options{Open: p.env.Open, Accounts: p.env.Accounts,
		Progress: p.env.Progress, Terminal: p.env.Terminal, CacheDir: p.env.CacheDir, Device: c.Device,
		Paths: paths, Force: c.Force})
	switch {
	case m == nil:
		return err
	case c.JSON:
		return cmp.Or(err, p.printJSON(probeResult{m, fasterType(m)}))
	}
	host := "host: " + cores.Divide(1).String()
	if off := hostmem.HugePagesOff(); off != "" {
		host += "\nmemory: " + off
	}
	return cmp.Or(err, p.printf("%s%s\n", machineText(m), host))
}

// probeResult is the rates as JSON.
type probeResult struct {
	*plan.Machine
	// Faster is the precision.compute whose products are faster; empty where the types hardly differ.
	Faster string `json:"faster_compute,omitempty"`
}

// fasterType names the faster type of a device that computes on the host's memory.
func fasterType(m *plan.Machine) string {
	if t, _, _, ok := m.FasterType(); ok && m.DuplexUploadBytesPerSec == 0 {
		return t.String()
	}
	return ""
}

// machineText is a table of rates.
func machineText(m *plan.Machine) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", m.Name)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	type row struct {
		name, unit string
		rate, per  float64
	}
	rows := []row{
		{"matrix products, f32", "GFLOP/s", m.F32FLOPsPerSec, 1e9},
		{"matrix products, bf16", "GFLOP/s", m.BF16FLOPsPerSec, 1e9},
	}
	attention := func(of string, one float64, rates []plan.AttentionRate) {
		for _, r := range rates {
			name := fmt.Sprintf("attention%s, sequences of %d", of, r.SequenceLen)
			rows = append(rows, row{name, "GFLOP/s", r.FLOPsPerSec, 1e9})
		}
		if len(rates) == 0 {
			rows = append(rows, row{"attention" + of, "GFLOP/s", one, 1e9})
		}
	}
	if m.F32AttentionFLOPsPerSec > 0 {
		attention(", f32", m.F32AttentionFLOPsPerSec, m.F32AttentionByLength)
		attention(", bf16", m.AttentionFLOPsPerSec, m.AttentionByLength)
	} else {
		attention("", m.AttentionFLOPsPerSec, m.AttentionByLength)
	}
	ofBF16 := ""
	if m.F32DeviceBytesPerSec > 0 {
		ofBF16 = ", bf16"
	}
	for _, r := range m.Operations {
		name, unit := r.Operation.String(), "GB/s"
		if r.HeadDim > 0 {
			name += fmt.Sprintf(", heads of %d", r.HeadDim)
		}
		if r.Rows > 0 {
			name += fmt.Sprintf(", %d rows each", r.Rows)
		}
		if r.Operation.IsFLOPs() {
			unit = "GFLOP/s"
		}
		rows = append(rows, row{name + ", " + r.Compute, unit, r.PerSec(), 1e9})
	}
	for _, r := range append(rows, []row{
		{"operations without work", "thousand/s", m.DeviceOpsPerSec, 1e3},
		{"device memory, f32", "GB/s", m.F32DeviceBytesPerSec, 1e9},
		{"device memory" + ofBF16, "GB/s", m.DeviceBytesPerSec, 1e9},
		{"device memory, copied", "GB/s", m.DeviceCopyBytesPerSec, 1e9},
		{"to the device", "GB/s", m.UploadBytesPerSec, 1e9},
		{"from the device", "GB/s", m.DownloadBytesPerSec, 1e9},
		{"to it, both ways at once", "GB/s", m.DuplexUploadBytesPerSec, 1e9},
		{"from it, both ways at once", "GB/s", m.DuplexDownloadBytesPerSec, 1e9},
		{"from device to device", "GB/s", m.PeerCopyBytesPerSec, 1e9},
		{"host memory", "GB/s", m.HostBytesPerSec, 1e9},
		{"optimizer (AdamW)", "GB/s", m.AdamWBytesPerSec, 1e9},
		{"optimizer, moments in 8 bits", "GB/s", m.AdamW8BytesPerSec, 1e9},
		{"optimizer under copies both ways", "GB/s", m.AdamWUnderCopiesBytesPerSec, 1e9},
		{"to the device, under the optimizer", "GB/s", m.UploadUnderAdamWBytesPerSec, 1e9},
		{"from the device, under it", "GB/s", m.DownloadUnderAdamWBytesPerSec, 1e9},
		{"disk, read", "GB/s", m.DiskReadBytesPerSec, 1e9},
		{"disk, written", "GB/s", m.DiskWriteBytesPerSec, 1e9},
		{"checkpoint, copied", "GB/s", m.SaveBytesPerSec, 1e9},
		{"checkpoint, linked", "ms/file", m.SaveLinkSeconds, 1e-3},
	}...) {
		if r.rate > 0 {
			fmt.Fprintf(w, "%s\t%.2f\t %s\n", r.name, r.rate/r.per, r.unit)
		}
	}
	w.Flush()
	if m.DuplexUploadBytesPerSec == 0 {
		b.WriteString("not measured, since this device computes on the host's memory: a link both ways at once, and the optimizer during copies\n")
	}
	if faster := fasterType(m); faster != "" {
		_, products, attention, _ := m.FasterType()
		fmt.Fprintf(&b, "precision.compute: %s is the faster type here, %.2f times as fast as the other in products and "+
			"%.2f times in attention\n", faster, products, attention)
	}
	if m.DiskPath != "" {
		fmt.Fprintf(&b, "disk: the file system of %s\n", m.DiskPath)
	}
	for i, d := range m.Drives {
		fmt.Fprintf(&b, "drive %d of %d: the file system of %s alone, %.2f GB/s read and %.2f GB/s written\n", i+1,
			len(m.Drives), d.Path, d.ReadBytesPerSec/1e9, d.WriteBytesPerSec/1e9)
	}
	return b.String()
}
