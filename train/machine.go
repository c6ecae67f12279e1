package train

import (
	"path/filepath"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
)

// machine is what `millrace probe` measured of this machine and device, or a guess that says so in its name.
func (e *Env) machine(dev device.Info) plan.Machine {
	if e.CacheDir != "" {
		if m, err := plan.ReadMachine(filepath.Join(e.CacheDir, machineFile)); err == nil && m.Name == dev.Name {
			return m
		}
	}
	return guess(dev)
}

// machineFile is where Probe keeps its result, in the cache directory.
const machineFile = "machine.json"

// guess are rates of one core of a current server CPU, times the workers; of memory, of one socket.
func guess(dev device.Info) plan.Machine {
	w := float64(max(dev.Workers, 1))
	return plan.Machine{Name: "not measured: a guess; run `millrace probe`",
		F32FLOPsPerSec: 80e9 * w, BF16FLOPsPerSec: 150e9 * w, AttentionFLOPsPerSec: 30e9 * w,
		DeviceBytesPerSec: 20e9, UploadBytesPerSec: 10e9, DownloadBytesPerSec: 10e9,
		AdamWBytesPerSec: 20e9, HostBytesPerSec: 20e9}
}
