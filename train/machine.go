package train

import (
	"path/filepath"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
)

// machine is what `millrace probe` measured of this machine and device, or a guess that says so in its name. The disk's rates
// are those of the drive with diskPath, or a guess as well.
func (e *Env) machine(dev device.Info, diskPath string) plan.Machine {
	if e.CacheDir == "" {
		return guess(dev)
	}
	m, err := plan.ReadMachine(filepath.Join(e.CacheDir, machineFile))
	if err != nil || m.Name != dev.Name {
		return guess(dev)
	}
	if m.DiskPath == "" || diskPath != "" && !sameDrive(m.DiskPath, diskPath) {
		g := guess(dev)
		m.DiskReadBytesPerSec, m.DiskWriteBytesPerSec, m.DiskPath = g.DiskReadBytesPerSec, g.DiskWriteBytesPerSec, ""
		m.SaveBytesPerSec, m.SaveLinkSeconds = 0, 0
		m.Name += " (measured, but for the disk, whose rates are a guess; run `millrace probe --path DIR`, with a directory on it)"
	}
	return m
}

// machineFile is where Probe keeps its result, in the cache directory.
const machineFile = "machine.json"

// guess are rates of one core of a current server CPU, times the workers; of memory, of one socket; of the disk, of a drive
// on PCIe 3.0.
func guess(dev device.Info) plan.Machine {
	w := float64(max(dev.Workers, 1))
	return plan.Machine{Name: "not measured: a guess; run `millrace probe`",
		F32FLOPsPerSec: 80e9 * w, BF16FLOPsPerSec: 150e9 * w, AttentionFLOPsPerSec: 30e9 * w,
		DeviceBytesPerSec: 20e9, UploadBytesPerSec: 10e9, DownloadBytesPerSec: 10e9,
		AdamWBytesPerSec: 20e9, HostBytesPerSec: 20e9, DiskReadBytesPerSec: 3e9, DiskWriteBytesPerSec: 1.5e9}
}
