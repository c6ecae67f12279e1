package train

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/internal/hostmem"
	"github.com/millrace/millrace/internal/vfs"
)

var (
	kills    = flag.Int("kills", 50, "how often TestKilledRunsGoOn kills; 1000 for a long run")
	killSeed = flag.Uint64("kill-seed", 0, "when TestKilledRunsGoOn kills; 0: another one each time, which is logged")
)

// victimEnv names the run file of a process that is there to be killed, and victimCacheEnv its cache directory. With victimPanicsEnv
// its lanes panic.
const (
	victimEnv       = "MILLRACE_TEST_VICTIM"
	victimCacheEnv  = "MILLRACE_TEST_VICTIM_CACHE"
	victimPanicsEnv = "MILLRACE_TEST_VICTIM_PANICS"
)

func TestMain(m *testing.M) {
	path := os.Getenv(victimEnv)
	if path == "" {
		os.Exit(m.Run())
	}
	c, err := ReadConfig(path, nil)
	if err == nil {
		env := &Env{Accounts: hostmem.New(), Progress: io.Discard, program: 1, CacheDir: os.Getenv(victimCacheEnv)}
		env.Open = func(_ string, a *hostmem.Accounts) (device.Device, device.Device, error) {
			d, err := cpu.New(cpu.Options{Workers: 2, Accounts: a})
			if os.Getenv(victimPanicsEnv) != "" {
				return panicking{d}, d, err
			}
			return d, d, err
		}
		_, err = Train(context.Background(), c, env, Options{})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// writeRun writes a run file for a victim.
func writeRun(t *testing.T, c *Config) string {
	t.Helper()
	doc, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "run.yaml")
	write(t, path, string(doc))
	return path
}

// sumsOf are the checksums of all state in a checkpoint that verify accepts.
func sumsOf(t *testing.T, dir string) map[checkpoint.ID][]checkpoint.Sum {
	t.Helper()
	c, err := checkpoint.Open(vfs.OS{}, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Verify(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	return sumsIn(c.Manifest)
}

// sumsIn are those of a manifest.
func sumsIn(m *checkpoint.Manifest) map[checkpoint.ID][]checkpoint.Sum {
	sums := map[checkpoint.ID][]checkpoint.Sum{}
	for _, e := range m.Extents {
		for _, p := range e.Pieces {
			sums[e.ID] = append(sums[e.ID], p.Sum)
		}
	}
	return sums
}

// A run that is killed at random moments, saving as it goes, and is started again each time ends with the bits of one that
// was left alone; and each checkpoint that it has on the way is what that one had at the same step.
func TestKilledRunsGoOn(t *testing.T) {
	rounds := *kills
	if testing.Short() {
		rounds = min(rounds, 10)
	}
	seed := *killSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-kill-seed=%d", seed)
	random := rand.New(rand.NewPCG(seed, 1))

	base := smallConfig(t)
	base.Model = writeModel(t, map[string]any{"num_hidden_layers": 9})
	base.Precision, base.Numerics = Defaults().Precision, Sizes{MicroBatch: 1, HeadChunk: 32}
	base.BatchTokens, base.MaxSteps = base.SequenceLen, 8
	base.Save = Save{Every: 1}
	for _, p := range placementsOf(t, base) {
		if p.name == "on disk" || p.name == "updated on the device" {
			t.Run(p.name, func(t *testing.T) { killOften(t, base, p, rounds/2, random) })
		}
	}
}

// killOften kills a run with a placement so many times.
func killOften(t *testing.T, base *Config, p placement, rounds int, random *rand.Rand) {
	left := *base
	left.Memory, left.OutputDir = p.memory, filepath.Join(t.TempDir(), "left")
	env := newEnv(t)
	env.program, env.CacheDir = 1, p.cache
	begin := time.Now()
	want, err := Train(context.Background(), &left, env, Options{})
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(begin)
	right := map[int]map[checkpoint.ID][]checkpoint.Sum{}
	for step := 1; step <= base.MaxSteps; step++ {
		right[step] = sumsOf(t, filepath.Join(checkpointsDir(&left), checkpoint.DirName(step)))
	}

	victim := left
	victim.Save.Keep = 2
	victim.Memory.Path = filepath.Join(t.TempDir(), "state")
	ended, checked := 0, 0
	for killed, run := 0, 0; killed < rounds || run > ended; {
		if run == ended {
			run++
			victim.OutputDir = filepath.Join(t.TempDir(), fmt.Sprint("run", run))
		}
		// From the first instruction to beyond the last one; when enough were killed, the last run is left alone.
		wait := time.Duration(random.Float64() * 1.2 * float64(took))
		if killed >= rounds {
			wait = time.Hour
		}
		finished := runVictim(t, writeRun(t, &victim), p.cache, wait)
		if !finished {
			killed++
			_, err := os.Stat(filepath.Join(victim.OutputDir, "model"))
			finished = err == nil // killed when all was done
		}
		saved, err := checkpoint.List(vfs.OS{}, checkpointsDir(&victim))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range saved {
			if !reflect.DeepEqual(sumsOf(t, s.Dir), right[s.Step]) {
				t.Fatalf("after %d kills: %s is not what step %d was", killed, s.Dir, s.Step)
			}
			checked++
		}
		if finished {
			sameModel(t, filepath.Join(victim.OutputDir, "model"), want.Model)
			if a, b := losses(t, victim.OutputDir), losses(t, left.OutputDir); fmt.Sprint(a) != fmt.Sprint(b) {
				t.Errorf("losses %v, want %v", a, b)
			}
			ended++
		}
	}
	t.Logf("%d kills in %d runs that came to their end; %d checkpoints were right", rounds, ended, checked)
}

// runVictim runs a run file in a process of its own, and kills it after a while unless it has ended.
func runVictim(t *testing.T, path, cacheDir string, wait time.Duration) (finished bool) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	var said bytes.Buffer
	cmd.Env, cmd.Stderr = append(os.Environ(), victimEnv+"="+path, victimCacheEnv+"="+cacheDir), &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(wait, func() { cmd.Process.Kill() })
	defer timer.Stop()
	switch err := cmd.Wait(); {
	case err == nil:
		return true
	case cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled():
		return false
	default:
		t.Fatalf("%v: %s", err, said.String())
		return false
	}
}

// onStep calls f, once, when a step is reported.
type onStep struct{ f func() }

func (o *onStep) Write(p []byte) (int, error) {
	if f := o.f; f != nil && strings.HasPrefix(string(p), "step") {
		o.f = nil
		f()
	}
	return len(p), nil
}

// Two runs on one directory: the second one says so in a line, is a wrong request, and does no harm.
func TestTwoRunsOnOneDirectory(t *testing.T) {
	alone := smallConfig(t)
	alone.Save.Every = 2
	want, err := Train(context.Background(), alone, newEnv(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := *alone
	c.OutputDir = filepath.Join(t.TempDir(), "shared")
	env, refused := newEnv(t), error(nil)
	env.Progress = &onStep{func() {
		for _, resume := range []string{"auto", "never"} {
			second := c
			second.Resume = resume
			_, refused = Train(context.Background(), &second, newEnv(t), Options{})
			if refused == nil {
				break
			}
		}
	}}
	got, err := Train(context.Background(), &c, env, Options{})
	if err != nil {
		t.Fatal(err)
	}
	sameModel(t, got.Model, want.Model)
	for _, part := range []string{"another run", fmt.Sprintf("process %d", os.Getpid()), "output_dir"} {
		if refused == nil || !strings.Contains(refused.Error(), part) {
			t.Fatalf("the second run: %v; want %q in it", refused, part)
		}
	}
	if !errors.Is(refused, ErrRequest) || strings.Contains(refused.Error(), "\n") {
		t.Errorf("the second run: %v; want one line about the request", refused)
	}
}
