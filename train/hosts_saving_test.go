package train

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// savingConfig is hostsConfig without evaluations, for runs that save every second step.
func savingConfig(t *testing.T) *runfile.Config {
	c := hostsConfig(t)
	c.Eval, c.Save = runfile.Eval{}, runfile.Save{Every: 2, AtEnd: true}
	return c
}

// savedFiles are the contents of the checkpoints of a run, by path; the id of the run in them is left out.
func savedFiles(t *testing.T, c *runfile.Config) map[string]string {
	t.Helper()
	all, id := files(t, rundir.CheckpointsDir(c)), string(idOf(t, c).Run)
	delete(all, ".lock")
	for name, text := range all {
		if filepath.Base(name) == checkpoint.ManifestName {
			body := text[strings.Index(text, `"manifest":`):]
			all[name] = strings.Replace(body, id, "", 1)
		}
	}
	return all
}

// The checkpoints of a run have the same bytes, whether one process has written them or several hosts. A run continues
// from any of them on any number of hosts, to the same bits.
func TestHostsSaveTheSameBytes(t *testing.T) {
	c := savingConfig(t)
	c.OutputDir = filepath.Join(t.TempDir(), "1")
	whole, err := Train(t.Context(), c, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	want := savedFiles(t, c)
	if len(want) < 3*10 {
		t.Fatalf("saved are %d files", len(want))
	}
	for hosts, next := range map[int]int{2: 4, 4: 1} {
		own := *c
		own.OutputDir = filepath.Join(t.TempDir(), "run")
		all := trainHosts(t, hosts, &own, nil)
		succeed(t, all)
		got := savedFiles(t, &own)
		for name := range want {
			if got[name] != want[name] {
				t.Errorf("%d hosts: %s has other bytes", hosts, name)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%d hosts saved %d files, want %d", hosts, len(got), len(want))
		}
		rest := own
		rest.OutputDir = filepath.Join(t.TempDir(), "rest")
		rest.Resume = filepath.Join(rundir.CheckpointsDir(&own), checkpoint.DirName(4))
		if next == 1 {
			sum, err := Train(t.Context(), &rest, Options{Env: newEnv(t)})
			if err != nil {
				t.Fatal(err)
			}
			sameModel(t, sum.Model, whole.Model)
			continue
		}
		all = trainHosts(t, next, &rest, nil)
		succeed(t, all)
		sameModel(t, all[0].sum.Model, whole.Model)
	}
}

// A disk that is full for one host fails the save on all, in a line of host 0 that names the host. The run continues,
// and tries again.
func TestFullDiskOfAHost(t *testing.T) {
	for host := range 2 {
		c := savingConfig(t)
		all := trainHosts(t, 2, c, func(h *aHost) {
			if h.host == host {
				h.env.FS = failsBelow(rundir.CheckpointsDir(c), func(op vfs.Op) bool {
					return strings.Contains(op.Name, "step-000002") && strings.Contains(op.Name, "block.")
				})
			}
		})
		succeed(t, all)
		said := all[0].said.String()
		want := "warning: the checkpoint of step 2 was not saved: " + all[0].env.Cluster.Name(host) + ": "
		if strings.Count(said, want) != 1 || !strings.Contains(said, "no space left on device: free space there") ||
			!strings.Contains(said, "tries to save again after step 3") {
			t.Errorf("host %d: it says %s", host, said)
		}
		if got := stepsSaved(t, rundir.CheckpointsDir(c)); !slices.Equal(got, []int{3, 4, 6}) {
			t.Errorf("host %d: saved after steps %v", host, got)
		}
	}
}

// A disk that is full to the end costs the state, and not the model.
func TestDiskOfAHostStaysFull(t *testing.T) {
	c := savingConfig(t)
	all := trainHosts(t, 2, c, func(h *aHost) {
		if h.host == 1 {
			h.env.FS = failsBelow(rundir.CheckpointsDir(c), func(op vfs.Op) bool {
				return strings.Contains(op.Name, "/.step-")
			})
		}
	})
	succeed(t, all)
	if got := stepsSaved(t, rundir.CheckpointsDir(c)); len(got) > 0 {
		t.Errorf("saved after steps %v", got)
	}
	if !vfs.Exists(filepath.Join(c.OutputDir, rundir.LastModel)) {
		t.Error("there is no model")
	}
	const want = "the checkpoint of step 6 was not saved: rank 1 (host b): "
	if said := all[0].said.String(); !strings.Contains(said, want) {
		t.Errorf("it says %s", said)
	}
}

// What one host alone reads of a checkpoint, and finds damaged, has all hosts continue from the one before it.
func TestDamageThatOneHostFinds(t *testing.T) {
	c := savingConfig(t)
	c.Save.Keep = 0
	succeed(t, trainHosts(t, 2, c, nil))
	model := filepath.Join(c.OutputDir, rundir.LastModel)
	want := modelFiles(t, model)
	for host, name := range []string{"block.0.first-moments", "block.1.first-moments"} {
		if err := os.RemoveAll(model); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(rundir.CheckpointsDir(c), checkpoint.DirName(6), name)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		data[len(data)/2] ^= 1
		write(t, path, string(data))
		var reads [2]atomic.Bool
		all := trainHosts(t, 2, c, func(h *aHost) {
			drive := vfs.NewFaulty(vfs.OS{})
			drive.Intercept(func(op vfs.Op) vfs.Outcome {
				if op.Kind == vfs.OpRead && op.Name == path {
					reads[h.host].Store(true)
				}
				return vfs.Outcome{}
			})
			h.env.FS = drive
		})
		succeed(t, all)
		if !reads[host].Load() || reads[1-host].Load() {
			t.Errorf("%s is read by host 0: %v, by host 1: %v", name, reads[0].Load(), reads[1].Load())
		}
		for _, h := range all {
			if h.sum.ResumedAfter != 4 {
				t.Errorf("host %d continued after step %d", h.host, h.sum.ResumedAfter)
			}
		}
		said := all[0].said.String()
		if strings.Count(said, path+": ") != 1 || !strings.Contains(said, "the run continues from ") {
			t.Errorf("it says %s", said)
		}
		if !maps.Equal(modelFiles(t, model), want) {
			t.Errorf("after damage to %s the model has other bytes", name)
		}
	}
}

// Where the output directory is removed while hosts use it, with the checkpoints in it, all of them forget what was
// lost: they save after the same steps from then on.
func TestHostsLoseTheOutputDirectory(t *testing.T) {
	c := savingConfig(t)
	c.MaxSteps, c.LearningRate = 8, 20 // too high: an early state is the best one
	c.Eval = runfile.Eval{Datasets: fewOf(c), Every: 1}
	c.Save = runfile.Save{Every: 3, Best: true, AtEnd: true}
	all := trainHosts(t, 2, c, func(h *aHost) {
		h.o.OnStep = func(m trace.Metrics) error {
			if h.host == 0 && m.Step == 4 {
				return os.RemoveAll(c.OutputDir)
			}
			return nil
		}
	})
	succeed(t, all)
	if said := all[0].said.String(); strings.Count(said, "was removed or moved while the run was using it") != 1 {
		t.Errorf("it says %s", said)
	}
	if all[1].sum.Checkpoint != all[0].sum.Checkpoint {
		t.Errorf("the last checkpoint is %s, and for host 1 %s", all[0].sum.Checkpoint, all[1].sum.Checkpoint)
	}
	sumsOf(t, all[0].sum.Checkpoint)
}

// Where another run begins in the output directory, all hosts end, and have saved the state in save.fallback.
func TestTakenOutputDirectoryOfHosts(t *testing.T) {
	for _, fallback := range []bool{true, false} {
		c := savingConfig(t)
		if fallback {
			c.Save.Fallback = t.TempDir()
		}
		all := trainHosts(t, 2, c, func(h *aHost) {
			h.o.OnStep = func(m trace.Metrics) error {
				if m.Step != 3 {
					return nil
				}
				err := os.RemoveAll(c.OutputDir)
				dir, errHold := checkpoint.Hold(vfs.OS{}, rundir.CheckpointsDir(c))
				t.Cleanup(func() { dir.Close() })
				return errors.Join(err, errHold)
			}
		})
		for _, h := range all {
			if h.err == nil || !strings.Contains(h.err.Error(), "another run has the directory now") {
				t.Errorf("host %d: error %v", h.host, h.err)
			}
			if fallback && !strings.Contains(h.err.Error(), "step 4 is saved in "+c.Save.Fallback) {
				t.Errorf("host %d: error %v", h.host, h.err)
			}
		}
		if !fallback {
			continue
		}
		saved := inFallback(t, c.Save.Fallback)
		if len(saved) != 1 {
			t.Fatalf("saved are %v", saved)
		}
		sumsOf(t, saved[0])
	}
}

// A host that is lost while it saves ends the run on all, with a line that names it. The run continues from the
// checkpoint before, and has nothing of that save.
func TestHostIsLostInASave(t *testing.T) {
	for host := range 2 {
		c := savingConfig(t)
		all := trainHosts(t, 2, c, func(h *aHost) {
			if h.host != host {
				return
			}
			drive := vfs.NewFaulty(vfs.OS{})
			lost := atomic.Bool{}
			drive.Intercept(func(op vfs.Op) vfs.Outcome {
				if strings.Contains(op.Name, ".step-000004") && strings.Contains(op.Name, "second-moments") {
					lost.Store(true)
					h.lose()
				}
				if lost.Load() {
					return vfs.Outcome{Err: syscall.EIO}
				}
				return vfs.Outcome{}
			})
			h.env.FS = drive
		})
		for _, h := range all {
			gone := fmt.Sprintf("host %d has ended", host)
			if h.host != host && (h.err == nil || !strings.Contains(h.err.Error(), gone)) {
				t.Errorf("host %d: error %v", h.host, h.err)
			}
		}
		if got := stepsSaved(t, rundir.CheckpointsDir(c)); !slices.Equal(got, []int{2}) {
			t.Errorf("saved after steps %v", got)
		}
		sum, err := Train(t.Context(), c, Options{Env: newEnv(t)})
		if err != nil || sum.ResumedAfter != 2 {
			t.Fatalf("%+v, error %v", sum, err)
		}
		for path := range files(t, rundir.CheckpointsDir(c)) {
			if strings.HasPrefix(path, ".step") {
				t.Errorf("%s is left", path)
			}
		}
	}
}

// A checkpoint outside of the output directory may be another one on each host, under the same path.
func TestHostsResumeFromOneCheckpoint(t *testing.T) {
	first := savingConfig(t)
	first.Save.Keep = 3
	if _, err := Train(t.Context(), first, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	at := func(step int) string { return filepath.Join(rundir.CheckpointsDir(first), checkpoint.DirName(step)) }
	for _, same := range []bool{true, false} {
		c := savingConfig(t)
		c.Resume = at(4)
		all := trainHosts(t, 2, c, func(h *aHost) {
			if h.host == 1 && !same {
				h.env.FS = elsewhere{vfs.OS{}, at(4), at(2)}
			}
		})
		if same {
			succeed(t, all)
			continue
		}
		for _, h := range all {
			want := at(4) + " is another checkpoint here (of step 2) than on rank 0 (host a): "
			if !errors.Is(h.err, blame.ErrRequest) || !strings.Contains(h.err.Error(), want) {
				t.Errorf("host %d: %v", h.host, h.err)
			}
		}
	}
}

// A program ends the run with an error, and one host cannot finish the updates for the save that follows. It ends
// alone, as the others wait for it, and names both errors.
func TestHostCannotFinishAfterAnError(t *testing.T) {
	c := savingConfig(t)
	c.Model = writeModel(t, map[string]any{"num_hidden_layers": 12})
	c.Memory = tightMemory(t, c, nil)
	var broken atomic.Bool
	all := trainHosts(t, 2, c, func(h *aHost) {
		h.env.Tests.ProgramBytes, h.config.Memory = 1, tightMemory(t, c, h.env.Cluster)
		if h.host == 0 {
			h.o.OnStep = func(m trace.Metrics) error {
				if m.Step < 3 {
					return nil
				}
				broken.Store(true)
				return errors.New("the wheel turns too fast")
			}
			return
		}
		drive := vfs.NewFaulty(vfs.OS{})
		drive.Intercept(func(op vfs.Op) vfs.Outcome {
			if broken.Load() && strings.Contains(op.Name, rundir.HostStateInfix+"1/") {
				return vfs.Outcome{Err: syscall.EIO}
			}
			return vfs.Outcome{}
		})
		h.env.FS = drive
	})
	if all[1].sum != nil && all[1].sum.DiskReadBytes == 0 {
		t.Error("host 1 has no state on disk")
	}
	err := all[1].err
	if _, isOfAll := errors.AsType[*hosts.Error](err); isOfAll || !errors.Is(err, syscall.EIO) ||
		!strings.Contains(err.Error(), "the wheel turns too fast") {
		t.Errorf("host 1: %v", err)
	}
	if all[0].err == nil {
		t.Error("host 0 ends well")
	}
}
