package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/vfs"
)

// Rates returns what `millrace probe` measured of this machine and device, as kept in cacheDir, or a guess that
// says so in its name. The disk's rates are those of the drives with the directories of paths, or a guess as well.
// Without paths any drive will do.
func Rates(cacheDir string, dev device.Info, paths []string) plan.Machine {
	m, _ := Measured(cacheDir, dev, paths)
	return m
}

// Measured returns Rates and the reason why they are a guess; empty if they are measured.
func Measured(cacheDir string, dev device.Info, paths []string) (m plan.Machine, why string) {
	m, why = kept(cacheDir, dev)
	if text := ofDrives(&m, Guess(dev), paths); text != "" && why == "" {
		m.Name += " (measured, except " + text + ")"
	}
	return m, why
}

// kept returns the rates that are kept of this machine and device, or a guess, and why.
func kept(cacheDir string, dev device.Info) (m plan.Machine, why string) {
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
	return m, ""
}

// ofDrives leaves a machine the rates of the drives with the directories of paths, in their order, as it has measured
// them; it says what of them it has not measured, and takes that from a guess.
func ofDrives(m *plan.Machine, guess plan.Machine, paths []string) (missing string) {
	known := m.Drives // as measured
	if len(known) == 0 && m.DiskPath != "" {
		known = []plan.DriveRates{{Path: m.DiskPath, ReadBytesPerSec: m.DiskReadBytesPerSec,
			WriteBytesPerSec: m.DiskWriteBytesPerSec}}
	}
	if len(paths) == 0 && len(known) > 0 {
		paths = []string{known[0].Path}
	}
	if len(paths) == 0 {
		paths = []string{""}
	}
	var drives []plan.DriveRates
	guessed, used := false, map[string]bool{}
	for _, path := range paths {
		i := slices.IndexFunc(known, func(d plan.DriveRates) bool { return d.Path != "" && vfs.SameDrive(d.Path, path) })
		if i >= 0 {
			drives, used[known[i].Path] = append(drives, known[i]), true
			continue
		}
		guessed = true
		drives = append(drives, plan.DriveRates{Path: path, ReadBytesPerSec: guess.DiskReadBytesPerSec,
			WriteBytesPerSec: guess.DiskWriteBytesPerSec})
	}
	asMeasured := !guessed && len(paths) == len(known) && len(used) == len(known)
	if !asMeasured || len(paths) == 1 {
		m.DiskReadBytesPerSec, m.DiskWriteBytesPerSec = 0, 0
		for _, d := range drives {
			m.DiskReadBytesPerSec += d.ReadBytesPerSec
			m.DiskWriteBytesPerSec += d.WriteBytesPerSec
		}
	}
	m.Drives, m.DiskPath = nil, ""
	switch {
	case len(paths) > 1:
		m.Drives = drives
	case !guessed:
		m.DiskPath = drives[0].Path
	}
	var flags strings.Builder
	for _, path := range paths {
		fmt.Fprintf(&flags, " --path %s", path)
	}
	switch {
	case guessed:
		m.SaveBytesPerSec, m.SaveLinkSeconds = 0, 0
		if len(paths) == 1 {
			return "the disk, whose rates are a guess; run `millrace probe --path DIR`, with a directory on it"
		}
		return fmt.Sprintf("drives, whose rates are a guess; run `millrace probe%s`", flags.String())
	case !asMeasured && len(paths) > 1:
		return fmt.Sprintf("drives at once, whose rates are added up; run `millrace probe%s`", flags.String())
	}
	return ""
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
