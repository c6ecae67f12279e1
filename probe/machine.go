package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/vfs"
)

// Rates returns what `millrace probe` measured of this machine and device, as kept in cacheDir, or a guess that
// says so in its name. The disk's rates are those of the drive with diskPath, or a guess as well.
func Rates(cacheDir string, dev device.Info, diskPath string) plan.Machine {
	m, _ := Measured(cacheDir, dev, diskPath)
	return m
}

// Measured returns Rates and the reason why they are a guess; empty if they are measured.
func Measured(cacheDir string, dev device.Info, diskPath string) (m plan.Machine, why string) {
	if cacheDir == "" {
		return Guess(dev), "there is no cache directory with what a probe measured"
	}
	m, err := plan.ReadMachine(filepath.Join(cacheDir, MachineFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Guess(dev), "this machine was not measured"
	case err != nil:
		return Guess(dev), err.Error()
	case m.Name != dev.Name && (m.Kind == "" || m.Kind != dev.Kind):
		return Guess(dev), fmt.Sprintf("what was measured is %q, and this device is %q", m.Name, dev.Name)
	}
	if isBusy(m.ProbeLoad) {
		m.Name += fmt.Sprintf(" (measured %s, which makes plans too slow; run `millrace probe` while nothing else runs)", atLoad(m.ProbeLoad))
	}
	if m.DiskPath == "" || diskPath != "" && !vfs.SameDrive(m.DiskPath, diskPath) {
		g := Guess(dev)
		m.DiskReadBytesPerSec, m.DiskWriteBytesPerSec, m.DiskPath = g.DiskReadBytesPerSec, g.DiskWriteBytesPerSec, ""
		m.SaveBytesPerSec, m.SaveLinkSeconds = 0, 0
		m.Name += " (measured, except the disk, whose rates are a guess; run `millrace probe --path DIR`, with a directory on it)"
	}
	return m, ""
}

// MachineFile keeps the result of Measure, in the cache directory.
const MachineFile = "machine.json"

// Guess are rates of one core of a current server CPU, times the workers; of memory, of one socket; of the disk, of a
// drive on PCIe 3.0. Of a GPU they are those of an RTX 3090 on PCIe 4.0 x16 (plan.Machines), times the share of its
// 82 multiprocessors.
func Guess(dev device.Info) plan.Machine {
	w := float64(max(dev.Workers, 1))
	m := plan.Machine{Name: "not measured: a guess; run `millrace probe`",
		F32FLOPsPerSec: 80e9 * w, BF16FLOPsPerSec: 150e9 * w, AttentionFLOPsPerSec: 30e9 * w,
		DeviceBytesPerSec: 20e9, UploadBytesPerSec: 10e9, DownloadBytesPerSec: 10e9,
		AdamWBytesPerSec: 20e9, HostBytesPerSec: 20e9, DiskReadBytesPerSec: 3e9, DiskWriteBytesPerSec: 1.5e9}
	if !dev.Unified {
		m.F32FLOPsPerSec, m.BF16FLOPsPerSec, m.AttentionFLOPsPerSec = 300e9*w, 600e9*w, 300e9*w
		m.DeviceOpsPerSec, m.DeviceBytesPerSec, m.UploadBytesPerSec, m.DownloadBytesPerSec = 250e3, 750e9, 25e9, 25e9
	}
	return m
}
