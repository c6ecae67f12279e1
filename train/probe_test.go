package train

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/device/null"
	"github.com/millrace/millrace/internal/hostmem"
	"github.com/millrace/millrace/internal/vfs"
	"github.com/millrace/millrace/plan"
)

func smallProbeFor(device.Info) probeSizes { return smallProbe }

var smallProbe = probeSizes{positions: 64, hidden: 128, bytes: 1 << 20, pieceElems: 1 << 12, diskBytes: 1 << 20}

func TestProbe(t *testing.T) {
	env, dir := newEnv(t), t.TempDir()
	m, err := probe(context.Background(), env, ProbeOptions{Device: "cpu", Path: dir}, smallProbeFor, 0.02)
	if err != nil {
		t.Fatal(err)
	}
	if m.DuplexUploadBytesPerSec != 0 || m.DeviceCopyBytesPerSec != 0 || m.AdamWUnderCopiesBytesPerSec != 0 {
		t.Errorf("a link that there is not: %+v", m)
	}
	if err := m.Check(); err != nil || m.DiskReadBytesPerSec <= 0 || m.DiskWriteBytesPerSec <= 0 || m.DiskPath != dir {
		t.Errorf("%+v: %v", m, err)
	}
	if left := files(t, dir); len(left) != 1 {
		t.Errorf("the probe has left %v", left)
	}
	if m, err := probe(context.Background(), env, ProbeOptions{Device: "cpu"}, smallProbeFor, 0.02); err != nil || m.DiskReadBytesPerSec != 0 {
		t.Errorf("without a path: %+v, %v", m, err)
	}
	_, err = probe(context.Background(), env, ProbeOptions{Device: "cpu", Path: filepath.Join(dir, "none")}, smallProbeFor, 0.02)
	refused(t, err, "--path")
}

// Of a device with memory of its own, the link is measured both ways at once, and the optimizer beside it.
func TestProbeOfALink(t *testing.T) {
	env := newEnv(t)
	env.Open = func(_ string, a *hostmem.Accounts) (device.Device, device.Device, error) {
		host, err := cpu.New(cpu.Options{Workers: 2, Accounts: a})
		return null.New(null.Options{}), host, err
	}
	m, err := probe(context.Background(), env, ProbeOptions{}, smallProbeFor, 0.02)
	if err != nil {
		t.Fatal(err)
	}
	if m.Check() != nil || m.DuplexUploadBytesPerSec <= 0 || m.DuplexDownloadBytesPerSec <= 0 || m.DeviceCopyBytesPerSec <= 0 ||
		m.AdamWUnderCopiesBytesPerSec <= 0 {
		t.Errorf("%+v", m)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p := &prober{probeSizes: smallProbe, ctx: ctx, seconds: 1}
	d := null.New(null.Options{})
	s, err := d.NewStream("cancelled")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := p.together(task{s, 1, func() {}}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// A probe that is cancelled leaves nothing, wherever it is; one that was killed leaves files, and the next one takes them away.
func TestProbeStops(t *testing.T) {
	env, dir := newEnv(t), t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := probe(ctx, env, ProbeOptions{Device: "cpu", Path: dir}, smallProbeFor, 0.02); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, probeDir), 0o777); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, probeDir, "free-000001.extent"), "left by a probe that was killed")
	p := &prober{probeSizes: smallProbe, ctx: ctx, env: env, path: dir}
	if err := p.disk(&plan.Machine{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if left := files(t, dir); len(left) != 1 {
		t.Errorf("the probe has left %v", left)
	}
}

// A drive without room is not measured, and has no directory of the probe's afterwards.
func TestProbeOfAFullDrive(t *testing.T) {
	env, dir := newEnv(t), t.TempDir()
	free, err := vfs.OS{}.FreeBytes(dir)
	if err != nil || free > 1<<44 {
		t.Skip("how much is free cannot be told, or is more than can be asked for: ", err)
	}
	p := &prober{probeSizes: smallProbe, ctx: t.Context(), env: env, path: dir}
	p.pieceElems, p.diskBytes = plan.DefaultPieceElems, 2*free
	if err := p.disk(&plan.Machine{}); !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrRequest) || strings.Contains(err.Error(), "memory.path") {
		t.Errorf("%v", err)
	}
	if left := files(t, dir); len(left) != 1 {
		t.Errorf("the probe has left %v", left)
	}
}

// Plans take the disk's rates where they were measured on the drive in question, and say where they were not.
func TestMachineOfADrive(t *testing.T) {
	env, dir := newEnv(t), t.TempDir()
	env.CacheDir = t.TempDir()
	kept := guess(device.Info{})
	kept.Name, kept.DiskReadBytesPerSec, kept.DiskWriteBytesPerSec, kept.DiskPath = "cpu", 7e9, 5e9, dir
	if err := plan.WriteMachine(filepath.Join(env.CacheDir, machineFile), kept); err != nil {
		t.Fatal(err)
	}
	dev := device.Info{Name: "cpu"}
	for _, path := range []string{"", dir, filepath.Join(dir, "not", "there", "yet")} {
		if m := env.machine(dev, path); m != kept {
			t.Errorf("%q: %+v", path, m)
		}
	}
	if !sameDrive("/proc", "/proc/self") || sameDrive("/proc", dir) {
		t.Skip("no second file system to compare with")
	}
	if m := env.machine(dev, "/proc"); m.DiskReadBytesPerSec == 7e9 || m.AdamWBytesPerSec != kept.AdamWBytesPerSec || !strings.Contains(m.Name, "--path") {
		t.Errorf("another drive: %+v", m)
	}
	if m := env.machine(device.Info{Name: "another"}, dir); !strings.Contains(m.Name, "guess") || m.Check() != nil {
		t.Errorf("another device: %+v", m)
	}
}

// The load of the last minute tells a probe that other programs are at work.
func TestOtherWork(t *testing.T) {
	for text, want := range map[string]bool{"0.20 1.00 9.00 1/100 5": false, "0.50 0 0": false, "0.51 0 0": true, "7.25 0 0 2/3 4": true, "": false, "busy": false} {
		if _, isBusy := otherWork(text, 2); isBusy != want {
			t.Errorf("%q: busy is %v", text, isBusy)
		}
	}
}
