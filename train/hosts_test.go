package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/stream/streamtest"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
	"github.com/millrace/millrace/train/verbs"
	"github.com/millrace/millrace/vfs"
)

// aHost is a process of a run on several hosts, in a test.
type aHost struct {
	host   int
	env    *session.Env
	config *runfile.Config
	o      Options
	ctx    context.Context
	said   *strings.Builder
	lose   func() // ends it for the others, as a kill does
	events []session.Event

	sum *Summary
	err error
}

// trainHosts runs Train as each of a number of hosts, which share a machine. A host that fails alone ends, as its
// process would.
func trainHosts(t *testing.T, count int, c *runfile.Config, change func(h *aHost)) []*aHost {
	t.Helper()
	defer keepCollector()()
	network := streamtest.New(count)
	var all []*aHost
	local, names := []int{}, []string{}
	for host := range count {
		local, names = append(local, host), append(names, string(rune('a'+host)))
	}
	for host := range count {
		own := *c
		h := &aHost{host: host, ctx: t.Context(), env: newEnv(t), config: &own, said: &strings.Builder{}}
		h.lose = func() { network.End(host) }
		h.env.Cluster = &hosts.Cluster{Host: host, Hosts: count, Names: names, Local: local, Peers: network.Peers(host)}
		h.env.Progress = h.said
		h.env.Events = func(e session.Event) { h.events = append(h.events, e) }
		if change != nil {
			change(h)
		}
		h.o.Env = h.env
		all = append(all, h)
	}
	var group sync.WaitGroup
	for _, h := range all {
		group.Go(func() {
			h.sum, h.err = Train(h.ctx, h.config, h.o)
			if _, isOfAll := errors.AsType[*hosts.Error](h.err); h.err != nil && !isOfAll {
				network.End(h.host)
			}
		})
	}
	group.Wait()
	return all
}

// keepCollector returns a function that gives the garbage collector its settings back. Runs of one process that overlap
// do not: each restores what it has found.
func keepCollector() (restore func()) {
	limit, percent := debug.SetMemoryLimit(-1), debug.SetGCPercent(100)
	debug.SetGCPercent(percent)
	return func() {
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
	}
}

// succeed fails the test unless all hosts have ended well.
func succeed(t *testing.T, all []*aHost) {
	t.Helper()
	for _, h := range all {
		if h.err != nil {
			t.Fatalf("host %d: %v\n%s", h.host, h.err, h.said)
		}
	}
}

// lossesOf are the losses and norms of a run's steps.
func lossesOf(t *testing.T, dir string) (all []string) {
	t.Helper()
	for _, m := range metricsOf(t, dir) {
		line := fmt.Sprint(m.Step, m.Loss, m.GradNorm)
		if m.EvalLoss != nil {
			line += fmt.Sprint(" ", *m.EvalLoss)
		}
		all = append(all, line)
	}
	return all
}

// hostsConfig has four groups and a model that is written in fp32, of weights and low halves.
func hostsConfig(t *testing.T) *runfile.Config {
	c := withEval(smallConfig(t))
	c.Precision, c.MaxSteps, c.Eval.Every = runfile.Defaults().Precision, 6, 3
	c.Numerics.MicroBatch, c.Numerics.Groups = 1, 4
	return c
}

// A run has the same bits on one, two and four hosts, if it has the same groups, and with samples or without.
func TestHostsTrainToTheSameBits(t *testing.T) {
	for name, change := range map[string]func(c *runfile.Config){
		"bound, sums in bf16": func(c *runfile.Config) { c.Numerics.Exchange = runfile.ExchangeBF16 },
		"streamed":            func(c *runfile.Config) { c.Memory.Device = budget(t, "3MiB").Device },
		"on disk, saved": func(c *runfile.Config) {
			c.Model = writeModel(t, map[string]any{"num_hidden_layers": 24}) // enough for the disks of four hosts
			c.Memory, c.MaxSteps = tightMemory(t, c, nil), 3
			c.Save.Every, c.Save.Best = 2, true
		},
	} {
		if testing.Short() && name != "streamed" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			c := hostsConfig(t)
			change(c)
			whole := *c
			whole.OutputDir = filepath.Join(t.TempDir(), "alone")
			env := newEnv(t)
			env.Tests.ProgramBytes = 1
			want, err := Train(t.Context(), &whole, Options{Env: env})
			if err != nil {
				t.Fatal(err)
			}
			for _, hosts := range []int{2, 4} {
				own := *c
				own.OutputDir = filepath.Join(t.TempDir(), fmt.Sprint(hosts))
				own.Samples = someSamples(2)
				all := trainHosts(t, hosts, &own, func(h *aHost) {
					h.env.Tests.ProgramBytes, h.o.Trace = 1, true
					if h.host > 0 {
						h.env.FS = writesNone(t, own.OutputDir)
					}
					if c.Memory.Disk.IsAuto() {
						h.config.Memory = tightMemory(t, c, h.env.Cluster)
					}
				})
				succeed(t, all)
				sameModel(t, all[0].sum.Model, want.Model)
				if want.BestModel != "" {
					sameModel(t, all[0].sum.BestModel, want.BestModel)
				}
				if got, want := lossesOf(t, own.OutputDir), lossesOf(t, whole.OutputDir); !slices.Equal(got, want) {
					t.Errorf("%d hosts: %v, alone %v", hosts, got, want)
				}
				if own.MaxSteps == 6 {
					checkSamples(t, &own, 0, 2, 4, 6)
				}
				written := make([]int64, hosts)
				for _, m := range metricsOf(t, own.OutputDir) {
					of := m.Hosts
					if m.Step == 0 {
						continue
					}
					if of == nil || len(of.StepSec) != hosts || !strings.HasPrefix(of.Slowest, "rank ") ||
						len(of.Lanes) != hosts || of.Lanes[0] != m.Lanes || of.Lanes[hosts-1][trace.Compute] == 0 ||
						len(of.PeakBytes) != hosts || of.PeakBytes[0] != m.HostPeakBytes ||
						len(of.DiskReadBytes) != hosts || len(of.DiskWrittenBytes) != hosts {
						t.Fatalf("a step's record has %+v of %d hosts", of, hosts)
					}
					for host, n := range of.DiskWrittenBytes {
						written[host] += n
					}
				}
				for _, h := range all {
					if own.Memory.Disk.IsAuto() && h.sum.DiskReadBytes == 0 {
						t.Errorf("host %d of %d has no state on disk", h.host, hosts)
					}
					if all := h.sum.DiskWrittenBytes; written[h.host] > all || own.Memory.Disk.IsAuto() &&
						written[h.host] == 0 {
						t.Errorf("the records of host %d of %d have %d bytes written to disk, its summary %d", h.host,
							hosts, written[h.host], all)
					}
				}
				for _, h := range all[1:] {
					if h.said.Len() > 0 || h.events != nil {
						t.Errorf("host %d says %q and has %d events; host 0 tells of the run", h.host, h.said,
							len(h.events))
					}
				}
			}
		})
	}
}

// writesNone is a file system in which no file of a directory may be written, except those below it.
func writesNone(t *testing.T, dir string) vfs.FS {
	drive := vfs.NewFaulty(vfs.OS{})
	drive.Intercept(func(op vfs.Op) vfs.Outcome {
		isWrite := op.Kind == vfs.OpRename || op.Kind == vfs.OpOpen && op.Flag&(os.O_WRONLY|os.O_RDWR) != 0
		if isWrite && filepath.Dir(op.Name) == dir {
			t.Errorf("a host other than host 0 writes %s", op.Name)
		}
		return vfs.Outcome{}
	})
	return drive
}

// A signal on any host ends the run on all after a step, with a checkpoint from which any number of hosts continues.
func TestHostsStopAndGoOn(t *testing.T) {
	c := hostsConfig(t)
	whole := *c
	c.Samples = someSamples(1)
	whole.OutputDir = filepath.Join(t.TempDir(), "alone")
	want, err := Train(t.Context(), &whole, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []struct{ hosts, signalled, step int }{{2, 1, 1}, {4, 0, 3}} {
		stop := make(chan struct{})
		all := trainHosts(t, part.hosts, c, func(h *aHost) {
			if h.host == part.signalled {
				h.env.Stop = stop
			}
			if h.host == 0 {
				h.env.Events = func(e session.Event) {
					if done, is := e.(StepDone); is && int(done.Step) == part.step {
						close(stop)
					}
				}
			}
		})
		for _, h := range all {
			of, is := errors.AsType[*hosts.Error](h.err)
			if !is || of.Reports != (h.host == 0) || !errors.Is(h.err, ErrInterrupted) ||
				!strings.Contains(h.err.Error(), "interrupted after step ") {
				t.Fatalf("host %d of %d: %v\n%s", h.host, part.hosts, h.err, all[0].said)
			}
		}
	}
	got, err := Train(t.Context(), c, Options{Env: newEnv(t)})
	if err != nil || got.ResumedAfter < 3 {
		t.Fatalf("%+v, error %v", got, err)
	}
	sameModel(t, got.Model, want.Model)
	if got, want := lossesOf(t, c.OutputDir), lossesOf(t, whole.OutputDir); !slices.Equal(got, want) {
		t.Errorf("%v, without a break %v", got, want)
	}
	checkSamples(t, c, 0, 1, 2, 3, 4, 5, 6)
	again := trainHosts(t, 2, c, nil)
	succeed(t, again)
	if s := again[1].sum; s.Steps != c.MaxSteps || s.ResumedAfter != c.MaxSteps {
		t.Errorf("a run that has ended: %+v", s)
	}
}

// A signal to one host after it has loaded, and before the first step, ends all hosts in good order: also one that came
// when its context was still what a signal ends.
func TestHostsStopBeforeTheFirstStep(t *testing.T) {
	for _, cancels := range []bool{false, true} {
		c := hostsConfig(t)
		all := trainHosts(t, 2, c, func(h *aHost) {
			if h.host == 0 {
				return
			}
			stop := make(chan struct{})
			ctx, cancel := context.WithCancel(h.ctx)
			t.Cleanup(cancel)
			signal := sync.OnceFunc(func() {
				if cancels {
					cancel()
				} else {
					close(stop)
				}
			})
			h.env.Stop, h.ctx = stop, ctx
			h.env.Cluster.Peers = onExchange{h.env.Cluster.Peers, func() {
				if h.env.Finishes() != "" {
					signal()
				}
			}}
		})
		for _, h := range all {
			of, is := errors.AsType[*hosts.Error](h.err)
			if !is || of.Reports != (h.host == 0) || !errors.Is(h.err, ErrInterrupted) ||
				!strings.Contains(h.err.Error(), "interrupted before a step was done") {
				t.Errorf("host %d: %v\n%s", h.host, h.err, h.said)
			}
		}
	}
}

// onExchange are peers that call do before each exchange.
type onExchange struct {
	hosts.Peers
	do func()
}

func (o onExchange) Exchange(b []byte) ([][]byte, error) {
	o.do()
	return o.Peers.Exchange(b)
}

// A start removes what the run has left in memory.path when it was killed, whatever ranks it had. Directories that a
// process holds stay, and those of other runs.
func TestHostsRemoveStateOfAllRanks(t *testing.T) {
	c := hostsConfig(t)
	c.MaxSteps, c.Eval, c.Memory.Path = 1, runfile.Eval{}, runfile.Paths{t.TempDir()}
	succeed(t, trainHosts(t, 2, c, nil))
	own := idOf(t, c).Name
	leave := func(name string) (dir string) {
		dir = filepath.Join(c.Memory.Path[0], name)
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "part-0-weights-0.v1.extent"), "left")
		return dir
	}
	removed := []string{leave(own), leave(own + "-rank-1"), leave(own + "-rank-2")}
	other, used := leave("gsm8k-00000000-rank-1"), leave(own+"-rank-3")
	lock, err := (vfs.OS{}).Lock(filepath.Join(used, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	all := trainHosts(t, 2, c, nil)
	succeed(t, all)
	if err := lock.Close(); err != nil || all[1].said.Len() > 0 || strings.Contains(all[0].said.String(), "warning") {
		t.Errorf("%v; host 0 says %s\nhost 1 says %s", err, all[0].said, all[1].said)
	}
	for _, dir := range removed {
		if vfs.Exists(dir) {
			t.Errorf("%s is there", dir)
		}
	}
	for _, dir := range []string{other, used} {
		if len(files(t, dir)) < 1 {
			t.Errorf("%s was cleared", dir)
		}
	}
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil || vfs.Exists(used) || !vfs.Exists(other) {
		t.Errorf("%v; %s is there: %v", err, used, vfs.Exists(used))
	}
}

// An error before the first step ends all hosts, in the words of the first host that has it.
func TestHostsRefuse(t *testing.T) {
	other := corpus(t)
	write(t, other, `{"text": "another text, of which there is enough to learn from"}`+"\n")
	dir := t.TempDir()
	for name, c := range map[string]struct {
		change func(h *aHost)
		host   int // that tells
		want   string
	}{
		"a data set that is not there": {func(h *aHost) {
			if h.host == 1 {
				h.config.Datasets = []data.Source{{Path: "no-such.jsonl", Type: data.Text}}
			}
		}, 1, "no-such.jsonl"},
		"other data sets": {func(h *aHost) {
			if h.host == 1 {
				h.config.Datasets = []data.Source{{Path: other, Type: data.Text}}
			}
		}, 0, "rank 1 (host b) has another run file, or other settings, than rank 0 (host a) (\"- path: " + other},
		"another rate": {func(h *aHost) {
			if h.host == 1 {
				h.config.LearningRate = 2e-2
			}
		}, 0, "settings, than rank 0 (host a) (\"learning_rate: 0.02\", not \"learning_rate: 0.01\"): "},
		"another model": {func(h *aHost) {
			if h.host == 1 {
				h.config.Model = writeModel(t, map[string]any{"intermediate_size": 72})
			}
		}, 0, "rank 1 (host b) has another config.json of the model"},
		"another exchange": {func(h *aHost) {
			if h.host == 1 {
				h.config.Numerics.Exchange = runfile.ExchangeBF16
			}
		}, 0, "rank 1 (host b) has another run file, or other settings, than rank 0 (host a) (\"exchange: bf16"},
		"other weights": {func(h *aHost) {
			if h.host == 1 {
				h.config.Model = writeModel(t, map[string]any{"num_hidden_layers": 2})
				addByte(t, filepath.Join(h.config.Model, "model.safetensors"))
			}
		}, 0, "rank 1 (host b) has another set of weights"},
		"another output directory": {func(h *aHost) {
			if h.host == 1 {
				h.config.OutputDir = dir
			}
		}, 1, "output_dir is " + dir + ", and "},
		"no shared file system": {func(h *aHost) {
			if h.host == 1 {
				h.env.FS = elsewhere{vfs.OS{}, h.config.OutputDir, dir}
			}
		}, 0, "file system that all hosts share"},
		"rows that do not divide": {func(h *aHost) {
			h.config.Numerics, h.config.BatchTokens = runfile.Sizes{}, 192
		}, 0, "2 hosts do not divide the 3 sequences of a step"},
		"groups that do not divide": {func(h *aHost) { h.config.Numerics.Groups = 1 }, 0,
			"numerics.groups is 1, and 2 hosts cannot have as many groups each"},
		"no room": {func(h *aHost) {
			if h.host == 1 {
				h.config.Memory.Host = budget(t, "1MiB").Device
			}
		}, 1, "memory.host: "},
		"no room on host 0": {func(h *aHost) {
			if h.host == 0 {
				h.config.Memory.Host = budget(t, "1MiB").Device
			}
		}, 0, "rank 0 (host a): memory.host: "},
	} {
		t.Run(name, func(t *testing.T) {
			config := hostsConfig(t)
			config.Eval = runfile.Eval{}
			all := trainHosts(t, 2, config, c.change)
			for _, h := range all {
				of, is := errors.AsType[*hosts.Error](h.err)
				if !is || of.Reports != (h.host == c.host) || !errors.Is(h.err, blame.ErrRequest) ||
					!strings.Contains(h.err.Error(), c.want) || strings.Contains(h.err.Error(), "\n") {
					t.Errorf("host %d: %v\n%s", h.host, h.err, h.said)
				}
			}
			if left := files(t, config.OutputDir); left != nil {
				t.Errorf("a run that has not begun leaves %v", left)
			}
		})
	}
}

// The first difference of the first host that differs is named.
func TestHostsDiffer(t *testing.T) {
	c := &hosts.Cluster{Hosts: 3, Names: []string{"a", "b", "c"}}
	same := func(data, held string) []sameness {
		return []sameness{{"other training data", data, "copy them"}, {"another set", held, "copy it"}}
	}
	for _, x := range []struct {
		all  [][]sameness
		want string
	}{
		{[][]sameness{same("1", "2"), same("1", "2"), same("1", "2")}, ""},
		{[][]sameness{same("1", "2"), same("1", "2"), same("3", "4")},
			"rank 2 (host c) has other training data than rank 0 (host a): copy them"},
		{[][]sameness{same("1", "2"), same("1", "3"), same("4", "2")},
			"rank 1 (host b) has another set than rank 0 (host a): copy it"},
		{[][]sameness{same("x: 1\ny:\n  z: 2\n", ""), same("x: 1\ny:\n  z: 3\n", ""), same("", "")},
			`rank 1 (host b) has other training data than rank 0 (host a) ("z: 3", not "z: 2"): copy them`},
	} {
		if err := difference(c, x.all); fmt.Sprint(err) != cmp.Or(x.want, "<nil>") {
			t.Errorf("%v, want %s", err, x.want)
		}
	}
}

// addByte changes the last number of a file of weights.
func addByte(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-2] ^= 1
	write(t, path, string(b))
}

// elsewhere is a host's file system in which a directory is another one than on the other hosts.
type elsewhere struct {
	vfs.FS
	dir, is string
}

func (e elsewhere) at(name string) string {
	if rest, below := strings.CutPrefix(name, e.dir); below {
		return e.is + rest
	}
	return name
}

func (e elsewhere) Stat(name string) (fs.FileInfo, error) { return e.FS.Stat(e.at(name)) }
func (e elsewhere) Open(name string) (vfs.File, error)    { return e.FS.Open(e.at(name)) }

// A run ends on all hosts with what the program on host 0 says after a step: well, or with an error and a checkpoint.
func TestHostsEndAsTheProgramSays(t *testing.T) {
	for _, end := range []error{ErrStop, errors.New("the wheel turns too fast")} {
		c := hostsConfig(t)
		all := trainHosts(t, 2, c, func(h *aHost) {
			h.o.OnStep = func(m trace.Metrics) error {
				if h.host == 0 && m.Step == 2 {
					return end
				}
				if h.host != 0 {
					t.Errorf("OnStep is called on host %d", h.host)
				}
				return nil
			}
		})
		if end == ErrStop {
			succeed(t, all)
		} else if h := all[1]; h.err == nil || !strings.Contains(h.err.Error(), end.Error()) {
			t.Errorf("host 1: %v", h.err)
		}
		last, _, err := checkpoint.Latest(vfs.OS{}, rundir.CheckpointsDir(c))
		if err != nil || last == nil || last.Manifest.Step != 2 {
			t.Errorf("%v: the latest checkpoint is %v, error %v", end, last, err)
		}
	}
}

// A host that ends alone ends the others, which name it. Its checkpoints stay.
func TestHostDies(t *testing.T) {
	c := hostsConfig(t)
	c.Save.Every = 1
	ctx, die := context.WithCancel(t.Context())
	all := trainHosts(t, 2, c, func(h *aHost) {
		if h.host == 1 {
			h.ctx = ctx
			return
		}
		h.env.Events = func(e session.Event) {
			if saved, is := e.(Saved); is && saved.Step == 2 {
				die()
			}
		}
	})
	for _, h := range all {
		if _, isOfAll := errors.AsType[*hosts.Error](h.err); h.err == nil || isOfAll {
			t.Errorf("host %d: %v", h.host, h.err)
		}
	}
	if err := all[0].err; !strings.Contains(err.Error(), "host 1 has ended") ||
		!strings.Contains(err.Error(), "the latest checkpoint is ") {
		t.Errorf("host 0: %v", err)
	}
	last, _, err := checkpoint.Latest(vfs.OS{}, rundir.CheckpointsDir(c))
	if err != nil || last == nil || last.Manifest.Step < 2 {
		t.Errorf("the latest checkpoint is %v, error %v", last, err)
	}
	succeed(t, trainHosts(t, 4, c, nil))
}

// numerics.groups: auto is the number of hosts at the beginning, also when another number of them continues.
func TestGroupsAreTheHosts(t *testing.T) {
	c := hostsConfig(t)
	c.Numerics.Groups, c.Eval = 0, runfile.Eval{}
	first := func(h *aHost) {
		h.o.OnStep = func(m trace.Metrics) error {
			if m.Step == 2 {
				return ErrStop
			}
			return nil
		}
	}
	succeed(t, trainHosts(t, 2, c, first))
	if was, err := (&session.Env{}).Runs().ReadResolved(c.OutputDir); err != nil || was.Numerics.Groups != 2 {
		t.Fatalf("the run file has %+v, error %v", was, err)
	}
	other := *c
	other.Numerics.Exchange = runfile.ExchangeBF16
	const want = "numerics.exchange was not set, is now bf16"
	_, err := Train(t.Context(), &other, Options{Env: newEnv(t)})
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("with another exchange: error %v, want %q", err, want)
	}
	rest, err := Train(t.Context(), c, Options{Env: newEnv(t)})
	if err != nil || rest.ResumedAfter != 2 {
		t.Fatalf("%+v, error %v", rest, err)
	}
	alone := *c
	alone.Numerics.Groups, alone.OutputDir = 2, filepath.Join(t.TempDir(), "alone")
	whole, err := Train(t.Context(), &alone, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	sameModel(t, rest.Model, whole.Model)
}

// Budgets that are auto are shared by the hosts of a machine.
func TestHostsShareAMachine(t *testing.T) {
	c := hostsConfig(t)
	src, err := source.OpenModel(t.Context(), newEnv(t), c.Model)
	if err != nil {
		t.Fatal(err)
	}
	n, err := c.StepNumerics()
	if err != nil {
		t.Fatal(err)
	}
	budget := func(cluster *hosts.Cluster) int64 {
		env := newEnv(t)
		env.Tests.ProgramBytes, env.Cluster = 1, cluster
		env.Tests.Memory = func() (left, total int64) { return 8 << 30, 16 << 30 }
		r, err := env.PlanRequest(src.Model, n, device.Info{Unified: true}, 1, runfile.Memory{})
		if err != nil {
			t.Fatal(err)
		}
		return r.HostBytes
	}
	alone, four := budget(nil), budget(&hosts.Cluster{Hosts: 8, Local: []int{0, 1, 2, 3}})
	if four < alone/4 || four > alone/4+1 {
		t.Errorf("one process may take %d bytes, and each of four %d", alone, four)
	}
}

// Where the low halves of one host cannot be read, no model is written without them: all hosts end with an error. The
// state is saved, and the next start writes the model.
func TestHostsExportWithoutLowHalves(t *testing.T) {
	c := hostsConfig(t)
	c.Model, c.MaxSteps, c.Eval = writeModel(t, map[string]any{"num_hidden_layers": 24}), 2, runfile.Eval{}
	var broken atomic.Bool
	all := trainHosts(t, 2, c, func(h *aHost) {
		h.env.Tests.ProgramBytes = 1
		h.config.Memory = tightMemory(t, c, h.env.Cluster)
		for err := error(nil); err == nil; h.config.Memory.Host.N -= 256 << 10 { // all that can be on disk
			run := *h.config
			_, err = verbs.PlanFor(t.Context(), &run, verbs.PlanOptions{Env: h.env})
		}
		h.config.Memory.Host.N += 512 << 10
		if h.host == 0 {
			h.env.Events = func(e session.Event) {
				if saved, is := e.(Saved); is && saved.Step == c.MaxSteps {
					broken.Store(true)
				}
			}
			return
		}
		drive := vfs.NewFaulty(vfs.OS{})
		drive.Intercept(func(op vfs.Op) vfs.Outcome {
			if op.Kind == vfs.OpRead && broken.Load() && strings.HasPrefix(op.Name, h.config.Memory.Path[0]) {
				return vfs.Outcome{Err: syscall.EIO}
			}
			return vfs.Outcome{}
		})
		h.env.FS = drive
	})
	for _, h := range all {
		of, is := errors.AsType[*hosts.Error](h.err)
		if !is || of.Reports != (h.host == 0) || !strings.Contains(h.err.Error(), "rank 1 (host b): ") ||
			!strings.Contains(h.err.Error(), "all 2 steps are done and saved") {
			t.Errorf("host %d: %v", h.host, h.err)
		}
	}
	if model := filepath.Join(c.OutputDir, rundir.LastModel); vfs.Exists(model) {
		t.Errorf("%s is there", model)
	}
	again := trainHosts(t, 2, c, nil)
	succeed(t, again)
	if again[0].sum.Model == "" || again[0].sum.ResumedAfter != 2 {
		t.Errorf("%+v", again[0].sum)
	}
}

// Sizes that are auto fit all hosts, whichever of them has least room. The bits are those of one process with these
// sizes.
func TestHostsChooseSizesThatFitAll(t *testing.T) {
	c := hostsConfig(t)
	c.Numerics, c.Eval = runfile.Sizes{Groups: 2}, runfile.Eval{}
	c.MaxSteps, c.BatchTokens = 2, 16*c.SequenceLen
	sizes := runfile.Sizes{MicroBatch: 4, HeadChunk: 128, BlockChunk: 256, Groups: 2}
	var models []string
	for small := range 2 {
		own := *c
		own.OutputDir = filepath.Join(t.TempDir(), fmt.Sprint(small))
		all := trainHosts(t, 2, &own, func(h *aHost) {
			h.env.Tests.ProgramBytes = 1
			h.config.Memory = budget(t, "16MiB")
			if h.host == small {
				h.config.Memory = budget(t, "800KiB")
			}
		})
		succeed(t, all)
		if was, err := (&session.Env{}).Runs().ReadResolved(own.OutputDir); err != nil || was.Numerics != sizes {
			t.Fatalf("the run has %+v, error %v, want %+v", was, err, sizes)
		}
		says := "block_chunk 256 are for the budgets of rank 1 (host b); rank 0 (host a) alone would have 8, "
		if strings.Contains(all[0].said.String(), says) != (small == 1) {
			t.Errorf("host 0 says %s", all[0].said)
		}
		models = append(models, all[0].sum.Model)
	}
	c.Numerics = sizes
	want, err := Train(t.Context(), c, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	for _, model := range models {
		sameModel(t, model, want.Model)
	}
}

// Each size is the smallest, but the chunk of a block is one of those micro-batches that are taken.
func TestSmallestSizes(t *testing.T) {
	sizes, of := smallestSizes([]runfile.Sizes{{MicroBatch: 6, HeadChunk: 256, BlockChunk: 8192},
		{MicroBatch: 4, HeadChunk: 512, BlockChunk: 16384}, {MicroBatch: 4, HeadChunk: 1024, BlockChunk: 12288}})
	if want := (runfile.Sizes{MicroBatch: 4, HeadChunk: 256, BlockChunk: 12288}); sizes != want || of != 1 {
		t.Errorf("%+v of host %d, want %+v", sizes, of, want)
	}
}

// A host that compares other things, or nothing, runs another program.
func TestHostsThatCompareOtherThings(t *testing.T) {
	c := &hosts.Cluster{}
	one := []sameness{{"another program", "a", "install it"}}
	for what, theirs := range map[string][]sameness{"nothing": nil, "more": append(one, one...)} {
		if err := difference(c, [][]sameness{one, theirs}); err == nil || !strings.Contains(err.Error(), "another program") {
			t.Errorf("%s: error %v", what, err)
		}
	}
	if err := difference(c, [][]sameness{one, one}); err != nil {
		t.Error(err)
	}
}
