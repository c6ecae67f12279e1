package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/verbs"
	"github.com/millrace/millrace/vfs"
)

// onDisk is a run that needs a disk if it has little memory.
func onDisk(t *testing.T) *runfile.Config {
	c := smallConfig(t)
	c.Model = writeModel(t, map[string]any{"num_hidden_layers": 9})
	c.Precision, c.Numerics = runfile.Defaults().Precision, runfile.Sizes{MicroBatch: 2, HeadChunk: 32}
	c.Save = runfile.Save{Every: 3, Keep: 2, AtEnd: true}
	return c
}

// anotherDrive makes a directory in another file system than that of one; empty: there is one file system.
func anotherDrive(t *testing.T, dir string) string {
	for _, at := range []string{"/dev/shm", os.TempDir(), "/var/tmp"} {
		made, err := os.MkdirTemp(at, "millrace-test-")
		if err != nil {
			continue
		}
		t.Cleanup(func() { os.RemoveAll(made) })
		if !vfs.SameDrive(made, dir) {
			return made
		}
	}
	return ""
}

// latestPlan is the plan of a run's latest start.
func latestPlan(t *testing.T, c *runfile.Config) (p plan.Plan) {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join(c.OutputDir, rundir.PlanName))
	if err == nil {
		err = json.Unmarshal(doc, &p)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A run that is stopped again and again, and continues each time with its state on other drives, ends with the bits of
// one that was in memory and was never stopped. Pieces on the drive of output_dir are linked to checkpoints, and those
// on another one are copied. Nothing is left on the drives.
func TestDrivesChangeNoBit(t *testing.T) {
	base := onDisk(t)
	whole := *base
	want, err := Train(context.Background(), &whole, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	run := *base
	run.OutputDir = filepath.Join(t.TempDir(), "run")
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	if at := anotherDrive(t, run.OutputDir); at != "" {
		dirs = append(dirs, at)
	}
	last := dirs[len(dirs)-1]
	for i, paths := range [][]string{{dirs[0], last}, {last, dirs[2], dirs[0]}, {dirs[1]}} {
		run.Memory = tightMemory(t, base, nil, paths...)
		untilOn(t, &run, fmt.Sprintf("step %2d/12", 2+3*i), "")
		p := latestPlan(t, &run)
		if drives := len(p.ByDrive); p.DiskBytes == 0 || drives != len(paths) && (drives > 0 || len(paths) > 1) ||
			slices.Contains(p.ByDrive, 0) {
			t.Errorf("%d bytes on disk, dealt to %d directories as %v", p.DiskBytes, len(paths), p.ByDrive)
		}
		resolved, err := os.ReadFile(filepath.Join(run.OutputDir, rundir.ResolvedName))
		if err != nil || !strings.Contains(string(resolved), paths[0]) || !strings.Contains(string(resolved),
			paths[len(paths)-1]) {
			t.Errorf("the resolved run file does not list %v: %v", paths, err)
		}
	}
	run.Memory = tightMemory(t, base, nil, dirs[0], dirs[1])
	env := newEnv(t)
	env.Tests.ProgramBytes = 1
	got, err := Train(context.Background(), &run, Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	if all := got.DiskWrittenBytes; got.DriveWrittenBytes < all/2 || got.DriveWrittenBytes >= all ||
		got.WrittenShare != got.ShareOf(got.DriveWrittenBytes) {
		t.Errorf("of %d bytes one of two drives got %d, %v of its rating", all, got.DriveWrittenBytes, got.WrittenShare)
	}
	sameModel(t, got.Model, want.Model)
	if a, b := losses(t, run.OutputDir), losses(t, base.OutputDir); len(a) != 12 || fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("losses of the resumed run %v, of the whole one %v", a, b)
	}
	for _, dir := range dirs {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%v is left in %s, %v", left, dir, err)
		}
	}
}

// A directory that is not there, and two names of one, are wrong requests before anything is made.
func TestBadPaths(t *testing.T) {
	c := onDisk(t)
	a, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(a, link); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		paths []string
		want  string
	}{{[]string{a, filepath.Join(a, "none")}, "there is no directory " + filepath.Join(a, "none")},
		{[]string{a, link}, "are the same directory"}, {[]string{a, a}, "are the same directory"}} {
		run := *c
		run.OutputDir = filepath.Join(t.TempDir(), "run")
		run.Memory = runfile.Memory{Disk: budget(t, "auto").Device, Path: x.paths}
		_, err := Train(context.Background(), &run, Options{Env: newEnv(t)})
		_, errPlan := verbs.PlanFor(context.Background(), &run, verbs.PlanOptions{Env: newEnv(t)})
		for _, err := range []error{err, errPlan} {
			if !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), x.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v: %v", x.paths, err)
			}
		}
		if vfs.Exists(run.OutputDir) {
			t.Errorf("%v: output_dir was made", x.paths)
		}
		run.Memory.Disk = runfile.Bytes{} // then nothing is there
		if _, err := verbs.PlanFor(context.Background(), &run, verbs.PlanOptions{Env: newEnv(t)}); err != nil {
			t.Errorf("%v without a disk: %v", x.paths, err)
		}
	}
}

// smallDrive is the system's files, of which one directory is on a drive with little room.
type smallDrive struct {
	vfs.OS
	dir  string
	free int64
}

func (f smallDrive) FreeBytes(dir string) (int64, error) {
	if strings.HasPrefix(dir, f.dir) {
		return f.free, nil
	}
	return f.OS.FreeBytes(dir)
}

// A drive that has too little room for its share has what there is room for, or less, and the other has the rest.
func TestASmallDriveIsFilled(t *testing.T) {
	c := onDisk(t)
	a, b := t.TempDir(), t.TempDir()
	// With next to no host memory nearly all state goes to disk.
	c.Memory = runfile.Memory{Host: budget(t, "1kB").Device, Disk: runfile.Bytes{N: 1 << 40}, Path: runfile.Paths{a, b}}
	env := newEnv(t)
	env.Tests.ProgramBytes = 1
	_, err := verbs.PlanFor(context.Background(), c, verbs.PlanOptions{Env: env})
	needs := hostNeeds.FindStringSubmatch(fmt.Sprint(err))
	if needs == nil {
		t.Fatalf("it does not say what it needs: %v", err)
	}
	mib, err := strconv.ParseFloat(needs[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	c.Memory.Host.N = int64((mib + 0.3) * (1 << 20))
	planned := func(free int64) *plan.Plan {
		env := newEnv(t)
		env.Tests.ProgramBytes, env.FS = 1, smallDrive{dir: b, free: free}
		p, err := verbs.PlanFor(context.Background(), c, verbs.PlanOptions{Env: env})
		if err != nil {
			t.Fatal(err)
		}
		return p.Plan
	}
	even := planned(1 << 40)
	if !slices.Equal(even.Placement.Drives, []int{50, 50}) {
		t.Errorf("with room on both the shares are %v", even.Placement.Drives)
	}
	for free := even.DiskBytes; ; free = free * 3 / 4 { // of which each of two paths in one file system may take half
		p := planned(free)
		if len(p.ByDrive) != 2 || p.ByDrive[1] > free/2 {
			t.Fatalf("%v on two drives, and one has room for %d", p.ByDrive, free/2)
		}
		if p.Placement.Drives[0] > 50 { // all, if that is predicted to be faster
			return
		}
	}
}
