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
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/surroundings"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rl"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/verbs"
	"github.com/millrace/millrace/vfs"
)

var (
	kills    = flag.Int("kills", 18, "how often TestKilledRunsGoOn kills; 1000 for a long run")
	killSeed = flag.Uint64("kill-seed", 0, "when TestKilledRunsGoOn kills; 0: another one each time, which is logged")
)

// victimEnv names the run file of a process that is there to be killed, and victimCacheEnv its cache directory. With
// victimPanicsEnv its lanes panic.
const (
	victimEnv       = "MILLRACE_TEST_VICTIM"
	victimCacheEnv  = "MILLRACE_TEST_VICTIM_CACHE"
	victimPanicsEnv = "MILLRACE_TEST_VICTIM_PANICS"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == judgeArg {
		os.Exit(judgeBy(os.Args[2]))
	}
	if path := os.Getenv(plannerEnv); path != "" {
		os.Exit(planAlone(path))
	}
	path := os.Getenv(victimEnv)
	if path == "" {
		// A tenth of the time went to collecting a heap of some MiB: a run of these tests is over after milliseconds.
		debug.SetGCPercent(400)
		os.Exit(surroundings.Run(m))
	}
	c, err := runfile.Read(path, nil)
	if err == nil {
		env := &session.Env{Accounts: hostmem.New(), Progress: io.Discard, Tests: session.InTests{ProgramBytes: 1},
			CacheDir: os.Getenv(victimCacheEnv)}
		env.Open = func(_ string, a *hostmem.Accounts) ([]device.Device, device.Device, error) {
			d, err := cpu.New(cpu.Options{Workers: 2, Accounts: a})
			if os.Getenv(victimPanicsEnv) != "" {
				return []device.Device{panicking{d}}, d, err
			}
			return []device.Device{d}, d, err
		}
		_, err = Train(context.Background(), c, Options{Env: env})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// writeRun writes a run file for a victim.
func writeRun(t *testing.T, c *runfile.Config) string {
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

// sumsIn collects the checksums of a manifest.
func sumsIn(m *checkpoint.Manifest) map[checkpoint.ID][]checkpoint.Sum {
	sums := map[checkpoint.ID][]checkpoint.Sum{}
	for _, e := range m.Extents {
		for _, p := range e.Pieces {
			sums[e.ID] = append(sums[e.ID], p.Sum)
		}
	}
	return sums
}

// A run that is killed at random moments, saving as it goes, is started again each time, with another tier or budget
// than before, and ends with the bits of one that was left alone and wrote no samples; each checkpoint that it has on
// the way equals the one of that run at the same step.
func TestKilledRunsGoOn(t *testing.T) {
	rounds := *kills
	if testing.Short() {
		rounds = min(rounds, 2)
	}
	killedRunsGoOn(t, rounds, map[string]any{"num_hidden_layers": 9}, nil)
}

// So does one of a hybrid of delta nets and attention with experts.
func TestKilledHybridsGoOn(t *testing.T) {
	rounds := *kills / 3
	if testing.Short() {
		rounds = min(rounds, 1)
	}
	killedRunsGoOn(t, rounds, hybridConfig, nil)
}

// So do runs with an objective, which are killed in the evaluation of their reference, too.
func TestKilledRunsOfPairsGoOn(t *testing.T) {
	rounds := *kills / 3
	if testing.Short() {
		rounds = min(rounds, 1)
	}
	for _, of := range []string{"dpo", "reward"} {
		t.Run(of, func(t *testing.T) {
			killedRunsGoOn(t, rounds, map[string]any{"num_hidden_layers": 9}, func(c *runfile.Config) {
				c.Datasets, c.BatchTokens = []data.Source{{Path: pairs(t), Type: data.Preference}}, 2*c.SequenceLen
				if c.Objective.Type = of; of == "reward" { // which writes no texts
					c.Samples = runfile.Defaults().Samples
				}
			})
		})
	}
}

// killedRunsGoOn kills runs of a model that often. change, if given, changes what they train.
func killedRunsGoOn(t *testing.T, rounds int, keys map[string]any, change func(c *runfile.Config)) {
	t.Helper()
	seed := *killSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-kill-seed=%d", seed)
	random := rand.New(rand.NewPCG(seed, 1))

	base := smallConfig(t)
	base.Model = writeModel(t, keys)
	base.Precision, base.Numerics = runfile.Defaults().Precision, runfile.Sizes{MicroBatch: 1, HeadChunk: 32}
	base.BatchTokens, base.MaxSteps = base.SequenceLen, 8
	base.Save, base.Samples = runfile.Save{Every: 1}, someSamples(3)
	if change != nil {
		change(base)
	}
	left := *base
	left.OutputDir, left.Samples = filepath.Join(t.TempDir(), "left"), runfile.Defaults().Samples
	env := newEnv(t)
	env.Tests.ProgramBytes = 1
	want, err := Train(context.Background(), &left, Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	right := map[int]map[checkpoint.ID][]checkpoint.Sum{}
	for step := 1; step <= base.MaxSteps; step++ {
		right[step] = sumsOf(t, filepath.Join(rundir.CheckpointsDir(&left), checkpoint.DirName(step)))
	}

	victim := left
	victim.Save.Keep, victim.Samples = 2, base.Samples
	settings := budgetsOf(t, base)
	state, runs := filepath.Join(t.TempDir(), "state"), t.TempDir()
	start := func(p placement, wait time.Duration) bool {
		victim.Memory = p.memory
		victim.Memory.Path = runfile.Paths{state}
		return runVictim(t, writeRun(t, &victim), p.cache, wait)
	}
	// The time of a run that is not killed sets when the others are killed.
	victim.OutputDir = filepath.Join(runs, "timed")
	took := unharmed(t, func(wait time.Duration) bool { return start(settings[0][0], wait) })

	ended, checked, moved, last := 0, 0, 0, ""
	by := map[string]int{}
	for killed, run := 0, 0; killed < rounds || run > ended; {
		if run == ended {
			run, last = run+1, ""
			victim.OutputDir = filepath.Join(runs, fmt.Sprint("run", run))
		}
		tier := settings[random.IntN(len(settings))]
		n := random.IntN(len(tier))
		p, name := tier[n], fmt.Sprint(tier[n].name, n)
		if last != "" && last != name {
			moved++
		}
		last = name
		// From the first instruction to beyond the last one; when enough were killed, the last run is left alone.
		wait := time.Duration(random.Float64() * 1.2 * float64(took))
		if killed >= rounds {
			wait = time.Hour
		}
		finished := start(p, wait)
		if !finished {
			killed++
			by[p.name]++
			_, err := os.Stat(filepath.Join(victim.OutputDir, "model"))
			finished = err == nil // killed when all was done
			if killed%500 == 0 {
				t.Logf("%d kills so far, %d runs have ended, %d checkpoints were right", killed, ended, checked)
			}
		}
		saved, err := checkpoint.List(vfs.OS{}, rundir.CheckpointsDir(&victim))
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
			if victim.Samples.Asked() {
				checkSamples(t, &victim, 0, 3, 6, 8)
			}
			ended++
			if err := os.RemoveAll(victim.OutputDir); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d kills (%v) in %d runs that came to their end; %d starts had another tier or budget than the one before; %d checkpoints were right",
		rounds, by, ended, moved, checked)
}

// budgetsOf are all tiers, most of them with several budgets with which a run fits.
func budgetsOf(t *testing.T, c *runfile.Config) [][]placement {
	var all [][]placement
	for _, p := range placementsOf(t, c) {
		var tier []placement
		for more := int64(0); more < 4; more++ {
			if testing.Short() && more > 1 {
				break // few of them are drawn
			}
			b := p
			switch p.name {
			case "in memory":
				if more > 0 {
					continue
				}
			case "on disk":
				b.memory.Host.N += more << 20
			default:
				b.memory.Device.N += more << 19
			}
			run := *c
			run.Memory = b.memory
			env := newEnv(t)
			env.Tests.ProgramBytes, env.CacheDir = 1, b.cache
			if _, err := verbs.PlanFor(context.Background(), &run, verbs.PlanOptions{Env: env}); err != nil {
				t.Fatal(err)
			}
			tier = append(tier, b)
		}
		all = append(all, tier)
	}
	return all
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
	want, err := Train(context.Background(), alone, Options{Env: newEnv(t)})
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
			_, refused = Train(context.Background(), &second, Options{Env: newEnv(t)})
			if refused == nil {
				break
			}
		}
	}}
	got, err := Train(context.Background(), &c, Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	sameModel(t, got.Model, want.Model)
	for _, part := range []string{"another run", fmt.Sprintf("process %d", os.Getpid()), "output_dir"} {
		if refused == nil || !strings.Contains(refused.Error(), part) {
			t.Fatalf("the second run: %v; want %q in it", refused, part)
		}
	}
	if !errors.Is(refused, blame.ErrRequest) || strings.Contains(refused.Error(), "\n") {
		t.Errorf("the second run: %v; want one line about the request", refused)
	}
}

// unharmed starts a run that is left alone, and says how long it took. Kills are spread over that time, and nothing is
// compared with it: on a busy machine they hit other moments, or more runs are started until enough were killed.
func unharmed(t *testing.T, start func(wait time.Duration) bool) time.Duration {
	t.Helper()
	begin := time.Now()
	if !start(time.Hour) {
		t.Fatal("it was killed")
	}
	return time.Since(begin)
}

// stepJudge is a judge in a shell: the reward of an answer follows from the length of its line.
const stepJudge = `while IFS= read -r line; do id=${line#*'"id":'}; id=${id%%,*}; ` +
	`printf '{"id": %s, "reward": %d}\n' "$id" $((${#line} % 7)); done`

// A loop that is killed at random moments, in sampling, scoring, evaluation, training and saving, is started again each
// time, and ends with the weights, the records and the files of rounds of one that was left alone.
func TestKilledLoopsGoOn(t *testing.T) {
	if testing.Short() {
		t.Skip("36 kills, each with a process that starts again, take 8 seconds: make long runs them")
	}
	seed := *killSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-kill-seed=%d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	base := loopConfig(t)
	base.RL.Reward = []runfile.Reward{{Name: "a", Command: []string{"sh", "-c", stepJudge}}}
	base.RL.Iterations, base.BatchTokens, base.MaxSteps = 2, 512, 12
	base.Numerics = runfile.Sizes{MicroBatch: 2, HeadChunk: 32}
	base.Save = runfile.Save{Every: 3, Keep: 2, AtEnd: true}
	base.Objective.Old, base.Objective.Clip = "start", []float64{0.001, 0.001}
	left := *base
	left.OutputDir = filepath.Join(t.TempDir(), "left")
	took := unharmed(t, func(wait time.Duration) bool { return runVictim(t, writeRun(t, &left), "", wait) })
	ended, inRound := 0, 0
	for killed := 0; killed < 2**kills || ended == 0; {
		victim := *base
		victim.OutputDir = filepath.Join(t.TempDir(), "run")
		for {
			wait := time.Duration(random.Float64() * 0.8 * float64(took))
			if killed >= 2**kills {
				wait = time.Hour
			}
			if victim.Memory = (runfile.Memory{}); random.IntN(2) == 0 { // answers then have a plan of their own
				victim.Memory = budget(t, "3MiB")
			}
			if runVictim(t, writeRun(t, &victim), "", wait) {
				break
			}
			killed++
			rows, _ := filepath.Glob(filepath.Join(victim.OutputDir, rl.Dir, "*.zst"))
			whole, _ := filepath.Glob(filepath.Join(victim.OutputDir, rl.Dir, "*.json"))
			if len(rows) > 0 || len(whole) > 0 {
				inRound++
			}
		}
		if !bytes.Equal(loopWeights(t, &victim), loopWeights(t, &left)) {
			t.Fatalf("after %d kills: other weights", killed)
		}
		if a, b := losses(t, victim.OutputDir), losses(t, left.OutputDir); fmt.Sprint(a) != fmt.Sprint(b) {
			t.Errorf("losses %v, want %v", a, b)
		}
		for round := range 3 {
			name := filepath.Join(rl.Dir, rl.RowsName(round))
			a, errA := os.ReadFile(filepath.Join(left.OutputDir, name))
			b, errB := os.ReadFile(filepath.Join(victim.OutputDir, name))
			if errA != nil || errB != nil || !bytes.Equal(a, b) {
				t.Fatalf("after %d kills: other answers in round %d (%v, %v)", killed, round, errA, errB)
			}
		}
		ended++
	}
	t.Logf("%d kills, %d of them after the first round was sampled, in %d runs that came to their end", 2**kills, inRound,
		ended)
}
