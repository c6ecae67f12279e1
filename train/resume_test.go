package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/probe"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/verbs"
	"github.com/millrace/millrace/vfs"
)

// until trains until a line of progress begins so, then asks for the end.
func until(t *testing.T, c *runfile.Config, line string) {
	t.Helper()
	untilOn(t, c, line, "")
}

// untilOn does so on the machine whose file is in a cache directory.
func untilOn(t *testing.T, c *runfile.Config, line, cacheDir string) {
	t.Helper()
	env := newEnv(t)
	env.Tests.ProgramBytes, env.CacheDir = 1, cacheDir
	stop := make(chan struct{})
	env.Stop, env.Progress = stop, &stopper{line, stop}
	sum, err := Train(context.Background(), c, Options{Env: env})
	if !errors.Is(err, ErrInterrupted) {
		t.Fatalf("%+v, error %v", sum, err)
	}
}

// placement changes where a run keeps its state, which must change nothing else.
type placement struct {
	name   string
	memory runfile.Memory
	cache  string // directory with the machine that plans are for
}

func placementsOf(t *testing.T, c *runfile.Config) []placement {
	return []placement{
		{"in memory", runfile.Memory{}, ""},
		{"streamed", budget(t, "3MiB"), ""},
		{"on disk", tightMemory(t, c, nil), ""},
		{"updated on the device", budget(t, "64MiB"), slowHost(t)},
	}
}

// tightMemory has so little of the host's that something has to go to disk, in these directories, or in one that is not
// there yet.
func tightMemory(t *testing.T, c *runfile.Config, cluster *hosts.Cluster, dirs ...string) runfile.Memory {
	env := newEnv(t)
	env.Tests.ProgramBytes, env.Cluster = 1, cluster
	if dirs == nil {
		dirs = []string{filepath.Join(t.TempDir(), "state")}
	}
	tight := runfile.Memory{Disk: budget(t, "auto").Device, Host: budget(t, "1GiB").Device, Path: dirs}
	for onDisk := int64(0); onDisk == 0; tight.Host.N -= 256 << 10 {
		run := *c
		run.Memory = tight
		planned, err := verbs.PlanFor(context.Background(), &run, verbs.PlanOptions{Env: env})
		if err != nil {
			t.Fatal(err)
		}
		p := planned.Plan
		onDisk, tight.Host.N = p.DiskBytes, min(tight.Host.N, p.ProcessBytes())
	}
	tight.Host.N += 256 << 10
	return tight
}

// slowHost is a cache directory with a machine whose host takes so long for updates that plans leave them to the
// device.
func slowHost(t *testing.T) string {
	t.Helper()
	dev, err := newEnv(t).OpenDevices("cpu")
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	m := probe.Guess(dev.Info())
	m.Name, m.AdamWBytesPerSec = dev.Info().Name, 1e6
	dir := t.TempDir()
	if err := plan.WriteMachine(filepath.Join(dir, probe.MachineFile), m); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The law of resuming: a run that is stopped again and again, and continues each time with its state elsewhere, ends
// with the bits of an uninterrupted run. Samples on its way change none of them.
func TestResumeChangesNoBit(t *testing.T) {
	for name, precision := range map[string]runfile.Precision{
		"f32":  {Compute: "f32", Master: "f32", Moments: "f32"},
		"bf16": runfile.Defaults().Precision,
		"8bit": {Compute: "bf16", Master: "split24", Moments: "8bit"},
		"8+4":  {Compute: "bf16", Master: "split24", Moments: "8+4"},
		"4bit": {Compute: "f32", Master: "f32", Moments: "4bit"},

		"not clipped": runfile.Defaults().Precision,
		"groups":      runfile.Defaults().Precision,
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "8+4" {
				t.Skip("one precision shows the order of things")
			}
			base := withEval(smallConfig(t))
			base.Model = writeModel(t, map[string]any{"num_hidden_layers": 9})
			base.Precision, base.Numerics = precision, runfile.Sizes{MicroBatch: 2, HeadChunk: 32}
			switch name {
			case "not clipped":
				base.MaxGradNorm = 0
			case "groups":
				base.Numerics = runfile.Sizes{MicroBatch: 1, HeadChunk: 32, Groups: 2, Exchange: runfile.ExchangeBF16}
			}
			base.Eval.Every, base.Save = 4, runfile.Save{Every: 3, Keep: 2, Best: true}
			base.Samples = someSamples(5)

			whole := *base
			whole.Samples = runfile.Defaults().Samples
			want, err := Train(context.Background(), &whole, Options{Env: newEnv(t)})
			if err != nil {
				t.Fatal(err)
			}

			parts := *base
			parts.OutputDir = filepath.Join(t.TempDir(), "parts")
			for i, p := range placementsOf(t, base) {
				run := parts
				run.Memory = p.memory
				if i > 0 {
					run.Numerics.Groups = 0 // auto: those that the run began with
				}
				untilOn(t, &run, fmt.Sprintf("step %2d/12", 2+3*i), p.cache)
				doc, err := os.ReadFile(filepath.Join(parts.OutputDir, "plan.json"))
				if err != nil || strings.Contains(string(doc), "disk_bytes") != (p.name == "on disk") {
					t.Errorf("%s: what is on disk is not as it should be: %v", p.name, err)
				}
				var planned plan.Plan
				if err := json.Unmarshal(doc, &planned); err != nil {
					t.Fatal(err)
				}
				if planned.Whole.CohortCount() != max(int(base.Numerics.Groups), 1) {
					t.Errorf("%s: a step is planned in %d groups", p.name, planned.Whole.CohortCount())
				}
				// Without clipping the host updates everything, each part in the backward pass.
				if here := planned.AnyStateResident(); p.cache != "" && here != (base.MaxGradNorm != 0) {
					t.Errorf("%s: the device updates something: %v", p.name, here)
				}
			}
			got, err := Train(context.Background(), &parts, Options{Env: newEnv(t)})
			if err != nil {
				t.Fatal(err)
			}
			sameModel(t, got.Model, want.Model)
			if got.Steps != 12 || *got.EvalAfter != *want.EvalAfter {
				t.Errorf("resumed %+v, whole %+v", got, want)
			}
			a, b := losses(t, parts.OutputDir), losses(t, base.OutputDir)
			if len(a) != 12 || fmt.Sprint(a) != fmt.Sprint(b) {
				t.Errorf("losses of the resumed run %v, of the whole one %v", a, b)
			}
			lacking, undisturbed := 0, metricsOf(t, base.OutputDir)
			for i, m := range metricsOf(t, parts.OutputDir) {
				switch want := undisturbed[i].MaxUpdateOverLR; {
				case m.MaxUpdateOverLR == nil:
					lacking++
				case want == nil || *m.MaxUpdateOverLR != *want:
					t.Errorf("step %d: the greatest update is %v, want %s", m.Step, *m.MaxUpdateOverLR, show(want))
				}
			}
			if starts := len(placementsOf(t, base)) + 1; lacking > 2+starts { // and step 0, and step 2 after a learning rate of 0
				t.Errorf("%d records lack the greatest update, after %d starts", lacking, starts)
			}
			checkSamples(t, &parts, 0, 5, 10, 12)
			kept, err := checkpoint.List(vfs.OS{}, rundir.CheckpointsDir(&parts))
			if err != nil || len(kept) < 2 || len(kept) > 3 || kept[0].Step != 12 {
				t.Errorf("checkpoints %v, error %v", kept, err)
			}
			for _, k := range kept {
				ckpt, err := checkpoint.Open(vfs.OS{}, k.Dir)
				if err != nil {
					t.Fatal(err)
				}
				if err := ckpt.Verify(context.Background(), nil); err != nil {
					t.Error(err)
				}
				// A version that does not know of groups, or in which type they are added, refuses the checkpoint.
				for key, want := range map[string]string{"groups": "2", "exchange": "bf16"} {
					in := ckpt.Manifest.Mathematics["numerics."+key]
					if (in == want) != (base.Numerics.Groups == 2) {
						t.Errorf("a checkpoint has numerics.%s %q", key, in)
					}
				}
			}
		})
	}
}

func losses(t *testing.T, dir string) []float64 {
	t.Helper()
	var l []float64
	for _, m := range metricsOf(t, dir) {
		if m.Step > 0 {
			l = append(l, m.Loss)
		}
	}
	return l
}

func metricsOf(t *testing.T, dir string) []trace.Metrics {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := trace.ReadMetrics(f)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A run does not continue with other mathematics: exit status 2, and the difference.
func TestResumeRefuses(t *testing.T) {
	c := smallConfig(t)
	until(t, c, "step  2/12")
	for name, o := range map[string]struct {
		change func(*runfile.Config)
		want   string
	}{
		"rate":    {func(c *runfile.Config) { c.LearningRate = 1e-3 }, "learning_rate was 0.01, is now 0.001); restore them, allow the change with resume_with: [learning_rate]"},
		"steps":   {func(c *runfile.Config) { c.MaxSteps = 20 }, "max_steps was 12, is now 20"},
		"length":  {func(c *runfile.Config) { c.SequenceLen = 32 }, "sequence_len was 64, is now 32"},
		"data":    {func(c *runfile.Config) { c.Datasets[0].MaxSamples = 1; c.Datasets[0].Path = other(t) }, "text.jsonl, which is no longer there"},
		"model":   {func(c *runfile.Config) { c.Model = writeModel(t, map[string]any{"rms_norm_eps": 1e-6}) }, "another model"},
		"groups":  {func(c *runfile.Config) { c.Numerics.Groups = 2 }, "numerics.groups is 2, and 1 in the checkpoint"},
		"cut":     {func(c *runfile.Config) { c.Numerics.HeadChunk = 3 }, "numerics.head_chunk is 3"},
		"nowhere": {func(c *runfile.Config) { c.Resume = filepath.Join(t.TempDir(), "gone") }, "gone"},
		"never":   {func(c *runfile.Config) { c.Resume = "never" }, "already has"},
	} {
		t.Run(name, func(t *testing.T) {
			other := *c
			other.Datasets = append(other.Datasets[:0:0], c.Datasets...)
			o.change(&other)
			before := files(t, c.OutputDir)
			_, err := Train(context.Background(), &other, Options{Env: newEnv(t)})
			if !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), o.want) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("error %v, want one line with %q", err, o.want)
			}
			if fmt.Sprint(files(t, c.OutputDir)) != fmt.Sprint(before) {
				t.Error("the run's directory has changed")
			}
		})
	}
	if _, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatalf("after all, the run does not continue: %v", err)
	}
	// A supervisor that has missed the end starts it again: that is no error, and changes nothing.
	before := files(t, c.OutputDir)
	sum, err := Train(context.Background(), c, Options{Env: newEnv(t)})
	if err != nil || sum.Steps != 12 || sum.Model != filepath.Join(c.OutputDir, "model") {
		t.Errorf("a finished run: %+v, error %v", sum, err)
	}
	if fmt.Sprint(files(t, c.OutputDir)) != fmt.Sprint(before) {
		t.Error("the finished run's directory has changed")
	}
}

// A run continues on another device, and says that its bits may differ; on the same one it says nothing.
func TestResumeOnAnotherDevice(t *testing.T) {
	for _, to := range []isa.Level{isa.Plain, isa.AVX512} {
		t.Run(to.String(), func(t *testing.T) { resumeAtLevel(t, isa.Highest(), to) })
	}
}

// resumeAtLevel stops a run that computes at one level and continues it at another. From AVX-512 BF16 to AVX-512, this
// is the way of runs that an older version began on a CPU of Intel's.
func resumeAtLevel(t *testing.T, from, to isa.Level) {
	if to > from {
		t.Skipf("this machine has no %v", to)
	}
	at := func(level isa.Level) func(string, *hostmem.Accounts) ([]device.Device, device.Device, error) {
		return func(_ string, a *hostmem.Accounts) ([]device.Device, device.Device, error) {
			d, err := cpu.New(cpu.Options{Workers: 2, Accounts: a, Level: &level})
			return []device.Device{d}, d, err
		}
	}
	c := smallConfig(t)
	first, stop := newEnv(t), make(chan struct{})
	first.Open, first.Stop, first.Progress = at(from), stop, &stopper{"step  2/12", stop}
	if sum, err := Train(context.Background(), c, Options{Env: first}); !errors.Is(err, ErrInterrupted) {
		t.Fatalf("%+v, error %v", sum, err)
	}
	last, _, err := checkpoint.Latest(vfs.OS{}, rundir.CheckpointsDir(c))
	if err != nil || last.Manifest.ComputedOn != fmt.Sprintf("CPU, %v", from) {
		t.Fatalf("%+v, error %v", last, err)
	}
	run := *c
	run.OutputDir, run.Resume = filepath.Join(t.TempDir(), "elsewhere"), last.Dir()
	var said strings.Builder
	env := newEnv(t)
	env.Progress, env.Open = &said, at(to)
	if _, err := Train(context.Background(), &run, Options{Env: env}); err != nil {
		t.Fatal(err)
	}
	line := fmt.Sprintf("was computed on CPU, %v, and this run computes on CPU, %v:", from, to)
	if strings.Contains(said.String(), line) != (from != to) {
		t.Errorf("it says %s", said.String())
	}
}

// A checkpoint says how its moments are rounded to codes, and a run that continues from one with another rounding, or from
// before it was noted, says so in a line. One with the same rounding, and fp32 moments, say nothing.
func TestOtherRoundingOfMomentsIsSaid(t *testing.T) {
	for _, moments := range []string{"f32", "8bit", "4bit"} {
		c := smallConfig(t)
		c.Precision = runfile.Precision{Compute: "bf16", Master: "split", Moments: moments}
		c.MaxSteps = 4
		until(t, c, "step 2/4")
		last, _, err := checkpoint.Latest(vfs.OS{}, rundir.CheckpointsDir(c))
		if err != nil {
			t.Fatal(err)
		}
		var said strings.Builder
		env := newEnv(t)
		env.Progress = &said
		if _, err := Train(context.Background(), c, Options{Env: env}); err != nil {
			t.Fatal(err)
		}
		kind, err := optim.ParseMoments(moments)
		if err != nil {
			t.Fatal(err)
		}
		if got := last.Manifest.MomentCodes; got != kind.Codes() || strings.Contains(said.String(), "version of millrace") {
			t.Errorf("%s: the checkpoint has codes %q; resumed, it says %s", moments, got, said.String())
		}
	}
}

func other(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "other.txt")
	write(t, path, strings.Repeat("another text. ", 400))
	return path
}
