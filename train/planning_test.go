package train

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/probe"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/verbs"
)

func modelOf(t testing.TB, config string) *model.Model {
	t.Helper()
	c, err := hf.ParseConfig("config.json", []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Where large operations leave no room for a second weight slot and smaller ones do, weights travel during the work.
func TestSmallerOperationsThatOverlap(t *testing.T) {
	m := modelOf(t, `{"model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
		"num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 1e5,
		"tie_word_embeddings": true, "hidden_act": "silu"}`)
	info := device.Info{Name: "a CPU", Unified: true, Workers: 2}
	r := plan.Request{Model: m, Device: info, Machine: probe.Guess(info), DeviceBytes: 60 << 20, HostBytes: 8 << 30,
		Numerics: plan.Numerics{Compute: tensor.BF16, Master: optim.Split, SequenceLen: 512}}
	p, err := plan.Fitting{Request: r, Rows: 4}.Fit(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if p.Placement.Rings.Weights < 2 {
		t.Errorf("%d weight slots with %d micro-batches and chunks of %d", p.Placement.Rings.Weights, p.Numerics.MicroBatches, p.Numerics.HeadChunk)
	}
	// Sizes that are not auto stay.
	asked := plan.Cuts{MicroBatch: 2, HeadChunk: 64}
	p, err = plan.Fitting{Request: r, Rows: 4, Cuts: asked}.Fit(context.Background())
	if err != nil || p.Numerics.MicroBatch != 2 || p.Numerics.HeadChunk != 64 {
		t.Errorf("%v, %+v", err, p)
	}
}

// A plan of a deep model with most of its state on disk is found while one waits.
func BenchmarkPlanDeepModel(b *testing.B) {
	text, err := plan.Shape("dense-180-layers")
	if err != nil {
		b.Fatal(err)
	}
	on, err := plan.FindMachine("rtx4090-pc-256gb")
	if err != nil {
		b.Fatal(err)
	}
	r := plan.Request{Model: modelOf(b, string(text)), Device: on.Device, Machine: on.Machine, DeviceBytes: on.DeviceBytes,
		HostBytes: on.HostBytes, DiskBytes: on.DiskBytes, Numerics: plan.Numerics{Compute: tensor.BF16, Master: optim.Split, SequenceLen: 2048}}
	for b.Loop() {
		_, err := plan.Fitting{Request: r, Rows: 32}.Fit(context.Background())
		if err != nil {
			b.Fatal(err)
		}
	}
}

// A GPU takes large chunks of the head where it has room for them; a CPU's sizes are its own, and what is asked for
// comes first.
func TestHeadChunks(t *testing.T) {
	if testing.Short() {
		t.Skip("plans alone")
	}
	text, err := plan.Shape("qwen2.5-1.5b")
	if err != nil {
		t.Fatal(err)
	}
	on, err := plan.FindMachine("rtx3090-pc-24gb-128gb")
	if err != nil {
		t.Fatal(err)
	}
	ask := func(dev device.Info, deviceBytes int64, sizes runfile.Sizes) *plan.Plan {
		t.Helper()
		p, err := plan.Fitting{Request: plan.Request{Model: modelOf(t, string(text)), Device: dev, Machine: on.Machine,
			DeviceBytes: deviceBytes, HostBytes: on.HostBytes,
			Numerics: plan.Numerics{Compute: tensor.BF16, Master: optim.Split, SequenceLen: 2048}},
			Rows: 16, Cuts: sizes.Cuts()}.Fit(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	room := ask(on.Device, on.DeviceBytes, runfile.Sizes{})
	if n := room.Numerics; n.HeadChunk != 4096 || n.Positions() != 16384 {
		t.Errorf("with room: a chunk of %d and %d positions", n.HeadChunk, n.Positions())
	}
	// A chunk that large in a single visit has logits of 2.3 GiB.
	if small := ask(on.Device, 2<<30, runfile.Sizes{}); small.DeviceBytes > 2<<30 || small.Placement.HeadAtOnce && small.Numerics.HeadChunk == 4096 {
		t.Errorf("without: a chunk of %d in %d bytes", small.Numerics.HeadChunk, small.DeviceBytes)
	}
	if n := ask(device.Info{Unified: true}, 0, runfile.Sizes{}).Numerics; n.HeadChunk > 512 || n.Positions() != 2048 {
		t.Errorf("on a CPU: a chunk of %d and %d positions", n.HeadChunk, n.Positions())
	}
	if n := ask(on.Device, on.DeviceBytes, runfile.Sizes{HeadChunk: 300, MicroBatch: 2}).Numerics; n.HeadChunk != 300 || n.MicroBatch != 2 {
		t.Errorf("what is asked for is not what is planned: %+v", n)
	}
}

var planners = flag.Int("planners", 3, "processes of TestPlansComeFromTheRequestAlone; 50 for a long run")

// plannerEnv names the run file that a process of the test plans, and plannerBallastEnv the MiB that it takes before.
const (
	plannerEnv        = "MILLRACE_TEST_PLANNER"
	plannerBallastEnv = "MILLRACE_TEST_PLANNER_BALLAST"
)

// planAlone is such a process: it prints the plan and returns the exit status.
func planAlone(path string) int {
	mib, err := strconv.Atoi(os.Getenv(plannerBallastEnv))
	if err != nil {
		return 1
	}
	ballast := touched(mib)
	c, err := runfile.Read(path, nil)
	if err == nil {
		env := &session.Env{Accounts: hostmem.New(), Progress: io.Discard}
		env.Open = func(_ string, a *hostmem.Accounts) ([]device.Device, device.Device, error) {
			d, err := cpu.New(cpu.Options{Workers: 2, Accounts: a})
			return []device.Device{d}, d, err
		}
		var doc []byte
		if doc, err = planOf(env, c); err == nil {
			_, err = os.Stdout.Write(doc)
		}
	}
	runtime.KeepAlive(ballast)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// planOf is a run's plan as a run writes it. The space that is free on its disk is no part of it.
func planOf(env *session.Env, c *runfile.Config) ([]byte, error) {
	p, err := verbs.PlanFor(context.Background(), c, verbs.PlanOptions{Env: env})
	if err != nil {
		return nil, err
	}
	p.Plan.Space = nil
	return json.Marshal(p.Plan)
}

// touched is memory that is resident.
func touched(mib int) []byte {
	b := make([]byte, mib<<20)
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	return b
}

// tightConfig is a run whose sizes follow from small differences of its budgets.
func tightConfig(t testing.TB) *runfile.Config {
	t.Helper()
	c := smallConfig(t)
	c.Model = writeConfig(t, map[string]any{"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 5,
		"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 2048, "tie_word_embeddings": true})
	c.Init, c.Tokenizer, c.SequenceLen, c.BatchTokens, c.MaxSteps, c.WarmupSteps = "random", "bytes", 128, 8192, 1, 0
	c.Precision, c.Numerics, c.Memory = runfile.Defaults().Precision, runfile.Sizes{}, runfile.Defaults().Memory
	return c
}

// TestPlansComeFromTheRequestAlone: the same request has the same plan, whatever memory the process has at the
// moment and however its garbage is collected. A plan by what is resident had other sizes each time, and so other bits.
func TestPlansComeFromTheRequestAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes that plan")
	}
	c := tightConfig(t)
	c.Memory.Device, c.Memory.Host = budget(t, "60MiB").Device, budget(t, "132MiB").Device
	want, err := planOf(newEnv(t), c)
	if err != nil {
		t.Fatal(err)
	}
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	for i, percent := range []int{10, 400, -1} {
		debug.SetGCPercent(percent)
		ballast := touched(30 << i)
		got, err := planOf(newEnv(t), c)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("with %d MiB in use: %v\n%s\nwant\n%s", 30<<i, err, got, want)
		}
		runtime.KeepAlive(ballast)
	}
	path := writeRun(t, c)
	for i := range *planners {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), plannerEnv+"="+path, fmt.Sprintf("%s=%d", plannerBallastEnv, 17*i%113),
			fmt.Sprintf("GOGC=%d", 20+70*i%300))
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		got, err := cmd.Output()
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("process %d: %v %s\n%s\nwant\n%s", i, err, stderr.String(), got, want)
		}
	}
}

// TestSizesComeFromTheMachine: with budgets that are auto, what other programs leave of the memory changes no size. If
// they leave too little for the sizes, the refusal says so, and what it advises is accepted.
func TestSizesComeFromTheMachine(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out searches for many plans; make test runs them")
	}
	c := tightConfig(t)
	const total = 400 << 20
	planWith := func(c *runfile.Config, left int64) (plan.Numerics, error) {
		env := newEnv(t)
		env.Tests.ProgramBytes = 1 << 20
		env.Tests.Memory = func() (int64, int64) { return left, total }
		p, err := verbs.PlanFor(context.Background(), c, verbs.PlanOptions{Env: env})
		if err != nil {
			return plan.Numerics{}, err
		}
		return p.Plan.Numerics, nil
	}
	want, err := planWith(c, total)
	if err != nil {
		t.Fatal(err)
	}
	planned, advised, refusals := 0, 0, 0
	for left := int64(total); left > 40<<20; left -= max(left/50, 2<<20) {
		got, err := planWith(c, left)
		switch {
		case err == nil:
			planned++
			if got != want {
				t.Errorf("%d MiB are left: %+v, want %+v", left>>20, got, want)
			}
		case strings.Contains(err.Error(), "what other programs leave"):
			advised++
			_, size, _ := strings.Cut(err.Error(), "memory.host=")
			size, _, _ = strings.Cut(size, ",")
			smaller := *c
			smaller.Memory.Host = budget(t, size).Device
			got, errSmaller := planWith(&smaller, left)
			if errSmaller != nil || got == want {
				t.Errorf("%v; then: %+v, %v", err, got, errSmaller)
			}
		default:
			refusals++
			refused(t, err, "memory.host")
		}
	}
	if planned < 10 || advised == 0 || refusals == 0 {
		t.Errorf("%d planned, %d advised, %d refused", planned, advised, refusals)
	}
}

// planToTrain is the plan that Train makes, after it has read the data.
func planToTrain(t testing.TB, c *runfile.Config, env *session.Env) (*plan.Plan, error) {
	t.Helper()
	own := *c
	run := newTrainer(&own, Options{Env: env})
	defer run.home.Close(false)
	defer run.Close()
	err := run.prepare(t.Context())
	return run.plan, blame.BadRequest(err)
}

// TestSizesDoNotFollowFromTheTokenCache: tokens that no cache can take wait in memory, and change no size. If they
// have no room next to the sizes, the refusal says so, and what it advises is accepted.
func TestSizesDoNotFollowFromTheTokenCache(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out searches for many plans; make test runs them")
	}
	c := tightConfig(t)
	path := filepath.Join(t.TempDir(), "text.jsonl")
	write(t, path, strings.Repeat(fmt.Sprintf("{\"text\": %q}\n", strings.Repeat("the wheel turns. ", 500)), 14))
	c.Datasets = []data.Source{{Path: path, Type: data.Text}}
	c.Memory.Device = budget(t, "60MiB").Device
	cache := t.TempDir()
	planned := func(c *runfile.Config, cache string) (*plan.Plan, error) {
		env := newEnv(t)
		env.CacheDir = cache
		return planToTrain(t, c, env)
	}
	same, advised, sizes := 0, 0, map[plan.Numerics]bool{}
	for kib := 106 << 10; kib < 132<<10; kib += 768 {
		c.Memory.Host = budget(t, fmt.Sprintf("%dKiB", kib)).Device
		want, errWant := planned(c, cache)
		got, err := planned(c, "")
		switch {
		case errWant != nil:
			refused(t, err, "memory.host")
		case err == nil:
			same++
			sizes[want.Numerics] = true
			if got.Numerics != want.Numerics {
				t.Errorf("%d KiB: with a cache %+v, without %+v", kib, want.Numerics, got.Numerics)
			}
		default:
			refused(t, err, "have a token cache that can be written")
			_, advice, found := strings.Cut(err.Error(), "set numerics.micro_batch=")
			if !found {
				continue // no sizes have room
			}
			advised++
			smaller := *c
			var micro, chunk int
			if _, errScan := fmt.Sscanf(advice, "%d and numerics.head_chunk=%d,", &micro, &chunk); errScan != nil {
				t.Fatalf("%v: %v", err, errScan)
			}
			smaller.Numerics = runfile.Sizes{MicroBatch: runfile.Auto(micro), HeadChunk: runfile.Auto(chunk)}
			if _, errSmaller := planned(&smaller, ""); errSmaller != nil {
				t.Errorf("%v; then: %v", err, errSmaller)
			}
		}
	}
	if same < 8 || advised == 0 || len(sizes) < 2 {
		t.Errorf("%d plans of %d sizes, and %d refusals with advice", same, len(sizes), advised)
	}
}

// TestAdviceOnAResume: a run that continues keeps its sizes, so that a refusal is about them, advises budgets alone,
// and what it advises is accepted.
func TestAdviceOnAResume(t *testing.T) {
	c := tightConfig(t)
	c.Memory.Device, c.Memory.Host = budget(t, "60MiB").Device, budget(t, "150MiB").Device
	c.Memory.Gradients = string(plan.GradientsKept) // the small budgets have room for a run without gradients
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	c.MaxSteps, c.ResumeWith = 2, []string{"max_steps"}
	for _, host := range []string{"118MiB", "130MiB"} {
		c.Memory.Host = budget(t, host).Device
		_, err := planToTrain(t, c, newEnv(t))
		refused(t, err, "memory.host: the run needs")
		refused(t, err, "are those of "+filepath.Join(c.OutputDir, rundir.CheckpointsName))
		if err == nil {
			continue
		}
		_, advice, _ := strings.Cut(err.Error(), "makes it fit: memory.host=")
		advice, _, _ = strings.Cut(advice, ",")
		advice, _, _ = strings.Cut(advice, ";")
		for _, word := range []string{"precision.moments", "batch_tokens", "smaller model"} {
			if strings.Contains(err.Error(), word) {
				t.Errorf("%v: %s may not change", err, word)
			}
		}
		follow := *c
		follow.Memory.Host = budget(t, advice).Device
		if _, errFollow := planToTrain(t, &follow, newEnv(t)); errFollow != nil {
			t.Errorf("%v; with %s: %v", err, advice, errFollow)
		}
	}
}

// TestPlanOfARunThatHasBegun: in the directory of a run the plan has the sizes that Train continues with: those of its
// newest checkpoint or, where it has none, those of its resolved run file.
func TestPlanOfARunThatHasBegun(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out searches for many plans; make test runs them")
	}
	c := tightConfig(t)
	c.Memory.Device, c.Memory.Host = budget(t, "60MiB").Device, budget(t, "119MiB").Device
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	first, err := verbs.PlanFor(t.Context(), c, verbs.PlanOptions{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	c.Memory.Host = budget(t, "300MiB").Device
	elsewhere := *c
	elsewhere.OutputDir = filepath.Join(t.TempDir(), "other")
	large, err := verbs.PlanFor(t.Context(), &elsewhere, verbs.PlanOptions{Env: newEnv(t)})
	if err != nil || large.Plan.Numerics == first.Plan.Numerics {
		t.Fatalf("larger budgets choose the same sizes: %v", err)
	}
	for _, state := range []string{"a checkpoint", "none"} {
		if state == "none" {
			if err := os.RemoveAll(rundir.CheckpointsDir(c)); err != nil {
				t.Fatal(err)
			}
		}
		var said bytes.Buffer
		env := newEnv(t)
		env.Progress = &said
		got, err := verbs.PlanFor(t.Context(), c, verbs.PlanOptions{Env: env})
		if err != nil || got.Plan.Numerics != first.Plan.Numerics ||
			!strings.Contains(said.String(), "continues with its sizes") {
			t.Errorf("with %s: %v, %q\n%+v, want\n%+v", state, err, said.String(), got, first.Plan.Numerics)
		}
		want, err := planToTrain(t, c, newEnv(t))
		if err != nil || want.Numerics != first.Plan.Numerics {
			t.Errorf("with %s Train plans %v, %+v", state, err, want)
		}
	}
}

// ticking is a clock by which a second passes whenever it is looked at.
type ticking struct {
	hosts.Clock
	at time.Time
}

func (c *ticking) Now() time.Time {
	c.at = c.at.Add(time.Second)
	return c.at
}

// A search shows on a terminal how far it is, unless it is to be quiet, and leaves nothing there.
func TestSearchShowsHowFarItIs(t *testing.T) {
	c := smallConfig(t)
	c.Memory.Device = budget(t, "3MiB").Device
	for _, quiet := range []bool{false, true} {
		env, said := newEnv(t), &strings.Builder{}
		env.Progress, env.Terminal, env.Tests.Watch = said, true, &ticking{at: time.Unix(1e9, 0)}
		if _, err := verbs.PlanFor(t.Context(), c, verbs.PlanOptions{Env: env, Quiet: quiet}); err != nil {
			t.Fatal(err)
		}
		shows := strings.Contains(said.String(), "plan: ") &&
			strings.Contains(said.String(), " placements tried, the best takes ")
		if shows == quiet || shows && !strings.HasSuffix(said.String(), "\r\x1b[K") {
			t.Errorf("quiet %v: %q", quiet, said)
		}
	}
}
