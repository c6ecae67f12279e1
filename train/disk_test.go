package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/surroundings"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// A disk that is full costs saves and no more: the run says so, harms no earlier checkpoint and comes to its end with
// the same bits. Where not even the model has room at the end it fails with a line, and what was saved continues when
// there is room.
func TestFullDisk(t *testing.T) {
	base := smallConfig(t)
	base.Model = writeModel(t, map[string]any{"num_hidden_layers": 9})
	base.Precision, base.Numerics = runfile.Defaults().Precision, runfile.Sizes{MicroBatch: 2, HeadChunk: 32}
	base.Save = runfile.Save{Every: 1}
	sizes := map[string]string{"in memory": "12m", "updated on the device": "12m", "on disk": "22m"}
	for _, p := range placementsOf(t, base) {
		size := sizes[p.name]
		if size == "" || testing.Short() && p.name != "on disk" {
			continue // to a disk, the same as in memory
		}
		whole := *base
		whole.Memory, whole.OutputDir = p.memory, filepath.Join(t.TempDir(), "whole")
		train := func(t *testing.T, c *runfile.Config, atStep11 func()) (sum *Summary, said string, err error) {
			env := newEnv(t)
			var progress strings.Builder
			env.Tests.ProgramBytes, env.CacheDir, env.Progress = 1, p.cache, writeFunc(func(line []byte) {
				progress.Write(line)
				if strings.HasPrefix(string(line), "step 11/12") {
					atStep11()
				}
			})
			sum, err = Train(context.Background(), c, Options{Env: env})
			return sum, progress.String(), err
		}
		nothing := func() {}
		want, _, err := train(t, &whole, nothing)
		if err != nil {
			t.Fatal(err)
		}
		within := func(t *testing.T, dir string) *runfile.Config {
			c := *base
			c.Memory, c.OutputDir = p.memory, filepath.Join(dir, "run")
			if p.name == "on disk" {
				c.Memory.Path = runfile.Paths{filepath.Join(dir, "state")}
			}
			return &c
		}
		whatIsSavedIsRight := func(t *testing.T, c *runfile.Config) {
			saved, err := checkpoint.List(vfs.OS{}, rundir.CheckpointsDir(c))
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range saved {
				if got := sumsOf(t, s.Dir); !reflect.DeepEqual(got, sumsOf(t, filepath.Join(rundir.CheckpointsDir(&whole),
					checkpoint.DirName(s.Step)))) {
					t.Errorf("%s is not what step %d was", s.Dir, s.Step)
				}
			}
			hidden, _ := filepath.Glob(filepath.Join(rundir.CheckpointsDir(c), ".step-*"))
			if len(hidden) > 0 {
				t.Errorf("files are left over: %v", hidden)
			}
		}
		t.Run(p.name+", no room for all checkpoints", func(t *testing.T) {
			dir := t.TempDir()
			smallDisk(t, dir, size)
			c := within(t, dir)
			got, said, err := train(t, c, nothing)
			if err != nil || !strings.Contains(said, "warning: the checkpoint of step") || !strings.Contains(said, "no space left") {
				t.Fatalf("error %v; it says: %s", err, said)
			}
			sameModel(t, got.Model, want.Model)
			whatIsSavedIsRight(t, c)
		})
		t.Run(p.name+", no room for the model", func(t *testing.T) {
			dir := t.TempDir()
			smallDisk(t, dir, "64m")
			c, ballast := within(t, dir), filepath.Join(dir, "ballast")
			_, said, err := train(t, c, func() { fillDisk(t, ballast) })
			if err == nil || errors.Is(err, blame.ErrRequest) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "no space") {
				t.Fatalf("error %v, want one line about space; it says: %s", err, said)
			}
			whatIsSavedIsRight(t, c)
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
			got, said, err := train(t, c, nothing)
			if err != nil || !strings.Contains(said, "resuming after step 1") { // 10 or 11
				t.Fatalf("error %v; it says: %s", err, said)
			}
			sameModel(t, got.Model, want.Model)
		})
	}
}

// fillDisk writes a file that takes all the room that there is.
func fillDisk(t *testing.T, path string) {
	f, err := os.Create(path)
	for size := 1 << 20; err == nil && size > 0; {
		if n, errWrite := f.Write(make([]byte, size)); errWrite != nil && n == 0 {
			size /= 2
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Error(err)
	}
}

// A run reports as many written bytes as the kernel has counted.
func TestWrittenBytesAgreeWithTheKernel(t *testing.T) {
	surroundings.OnDisk(t)
	if _, err := kernelWritten(); err != nil {
		t.Skip("this system does not count: ", err)
	}
	if surroundings.IsInMemory(t.TempDir()) {
		t.Skip("the kernel does not count bytes of a file system in memory")
	}
	base := smallConfig(t)
	base.Model = writeModel(t, map[string]any{"num_hidden_layers": 9})
	base.Precision, base.Numerics, base.Save = runfile.Defaults().Precision, runfile.Sizes{MicroBatch: 2, HeadChunk: 32}, runfile.Save{Every: 3}
	for _, p := range placementsOf(t, base) {
		t.Run(p.name, func(t *testing.T) {
			c := *base
			c.Memory, c.OutputDir = p.memory, filepath.Join(t.TempDir(), "run")
			env := newEnv(t)
			env.Tests.ProgramBytes, env.CacheDir = 1, p.cache
			before, _ := kernelWritten()
			sum, err := Train(context.Background(), &c, Options{Env: env})
			if err != nil {
				t.Fatal(err)
			}
			after, _ := kernelWritten()
			got, kernel := sum.DiskWrittenBytes, after-before
			if kernel == 0 {
				t.Skip("the temporary directory is on no disk")
			}
			// The kernel counts pages, and all files: metrics, the model at the end.
			model := int64(0)
			for _, text := range files(t, sum.Model) {
				model += int64(len(text))
			}
			t.Logf("%d bytes by the run's count, %d by the kernel's, %d of the model", got, kernel, model)
			if slack := got/20 + 2<<20; kernel < got || kernel > got+model+slack {
				t.Errorf("%d bytes by the run's count, %d by the kernel's", got, kernel)
			}
			var inMetrics int64
			for _, m := range metricsOf(t, c.OutputDir) {
				inMetrics += m.DiskWrittenBytes
			}
			if inMetrics > got || inMetrics == 0 {
				t.Errorf("%d bytes in metrics, %d in the summary", inMetrics, got)
			}
		})
	}
}

// kernelWritten returns the bytes that this process has written to drives.
func kernelWritten() (written int64, err error) {
	text, err := os.ReadFile("/proc/self/io")
	for line := range strings.Lines(string(text)) {
		fmt.Sscanf(line, "write_bytes: %d", &written)
	}
	return written, err
}

// smallDisk mounts a file system of a size on a directory; resize changes it. It needs the rights to.
func smallDisk(t *testing.T, dir, size string) (resize func(size string)) {
	t.Helper()
	mount := func(options string) error {
		said, err := exec.Command("mount", "-t", "tmpfs", "-o", options, "tmpfs", dir).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, said)
		}
		return nil
	}
	if err := mount("size=" + size); err != nil {
		t.Skip("no file system can be mounted here: ", err)
	}
	t.Cleanup(func() {
		if said, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, said)
		}
	})
	return func(size string) {
		t.Helper()
		if err := mount("remount,size=" + size); err != nil {
			t.Fatal(err)
		}
	}
}

// jumping is a clock on which only waits take time, and all of it at once.
type jumping struct{ at time.Time }

func (j *jumping) Now() time.Time { return j.at }

func (j *jumping) After(d time.Duration) (<-chan time.Time, func()) {
	j.at = j.at.Add(d)
	passed := make(chan time.Time, 1)
	passed <- j.at
	return passed, func() {}
}

// A limit of what is written slows the run down to it, shows, and changes nothing else. The first lines of the
// run say which part of its drive's rating it takes, and the summary says the same.
func TestWritesAreLimited(t *testing.T) {
	c := smallConfig(t)
	c.MaxSteps, c.Save.Every = 6, 1
	want, err := Train(context.Background(), c, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	slow := *c
	slow.OutputDir = filepath.Join(t.TempDir(), "slow")
	slow.Memory.MaxWritePerDay.N = want.DiskWrittenBytes / 6 // so that a step takes a day
	slow.Memory.RatedWrites.N = want.DiskWrittenBytes * 5
	env := newEnv(t)
	var said strings.Builder
	env.Progress, env.Tests.Clock = &said, &jumping{time.Unix(1e9, 0)}
	got, err := Train(context.Background(), &slow, Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	// The last checkpoint is written when the steps are done, and the one before it below the last step.
	if days := got.WriteWaitSec / 86400; days < 4 || days > 6 {
		t.Errorf("it waits %.2f days for 6 that it writes", days)
	}
	var waited float64
	for _, m := range metricsOf(t, slow.OutputDir) {
		if m.WriteWaitSec != nil {
			waited += *m.WriteWaitSec
		}
	}
	if math.Abs(waited-got.WriteWaitSec) > 1e-6*waited || !strings.Contains(said.String(), "(max_write_per_day)") {
		t.Errorf("metrics have %.2f s of waiting, the summary %.2f; progress: %s", waited, got.WriteWaitSec, said.String())
	}
	if !strings.Contains(said.String(), "6 checkpoints of") || !strings.Contains(said.String(), "): 20% of the ") {
		t.Errorf("the run does not say what it writes: %s", said.String())
	}
	if math.Abs(got.WrittenShare-0.2) > 0.01 || got.IsAssumed || !want.IsAssumed || want.WrittenShare > 1e-6 {
		t.Errorf("of the drive's rating the run takes %v of %+v, want 0.2; without the key %v of %+v", got.WrittenShare,
			got.Rating, want.WrittenShare, want.Rating)
	}
	sameModel(t, got.Model, want.Model)
	if want.WriteWaitSec != 0 {
		t.Errorf("without a limit it waits %.2f s", want.WriteWaitSec)
	}

	// Asked to stop in a pause, it does not wait for its end.
	never := *c
	never.OutputDir, never.Memory.MaxWritePerDay.N = filepath.Join(t.TempDir(), "never"), 1
	env = newEnv(t)
	stop := make(chan struct{})
	env.Stop, env.Progress = stop, &stopper{"step 2/6", stop}
	if _, err := Train(context.Background(), &never, Options{Env: env}); !errors.Is(err, ErrInterrupted) {
		t.Errorf("error %v, want %v", err, ErrInterrupted)
	}
}

func TestWearDue(t *testing.T) {
	begin := time.Unix(1e9, 0)
	for _, c := range []struct {
		limit, written int64
		after, want    time.Duration
	}{
		{0, 1 << 50, 0, 0},
		{100, 50, 0, 12 * time.Hour},
		{100, 50, 11 * time.Hour, time.Hour},
		{100, 50, 13 * time.Hour, 0},
		{86400e6, 3e6, time.Second, 2 * time.Second},
	} {
		if got := (wear{bytesPerDay: c.limit, begin: begin}).due(c.written, begin.Add(c.after)); got != c.want {
			t.Errorf("%+v: waits %v", c, got)
		}
	}
}
