package train

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/verbs"
)

var (
	trials    = flag.Int("trials", 4, "how many random runs TestTrials disturbs; 2000 for a long run")
	trialSeed = flag.Uint64("trial-seed", 0, "the seed of the first trial; those that follow have the next ones; "+
		"0: others each time, which are logged; with -short 1")
)

// A trial is the life of a run with a random configuration: a family of models, types, sizes, groups, data, schedule,
// frozen tensors, evaluation, patience, saves. It has up to twelve starts, each in a random place: budgets, a disk, one
// to three devices. Its operator makes a random move before a start and disturbs it at a random moment: stops and kills
// it, fills its disk, removes, moves, copies, damages and mixes its files, also below it, makes it longer or shorter,
// changes what is saved and evaluated, removes its results, and asks for what it must refuse.
//
// Each start ends with status 0 and the models, losses and checkpoints of a run that was left alone and had the same
// settings after the same steps; or it is cut off, and has lost nothing that it had saved; or it ends with one line,
// and has changed nothing. No file of another run ever changes.
func TestTrials(t *testing.T) {
	seed := *trialSeed
	switch {
	case seed == 0 && testing.Short():
		seed = 1 // what a change has broken fails again
	case seed == 0:
		seed = rand.Uint64() / 2
	}
	t.Logf("-trial-seed=%d", seed)
	p, counts, all := newPool(t), map[string]int{}, uint64(*trials)
	if testing.Short() {
		all = min(all, 2)
	}
	for n := range all {
		t.Run(fmt.Sprint(seed+n), func(t *testing.T) {
			o := &operator{T: t, pool: p, random: rand.New(rand.NewPCG(seed+n, 3)), counts: counts}
			o.trial()
			if t.Failed() {
				t.Logf("-trials=1 -trial-seed=%d:\n%s", seed+n, strings.Join(o.story, "\n"))
			}
		})
	}
	t.Logf("%d trials: %v", all, counts)
}

// trial is the life of one run.
func (o *operator) trial() {
	o.root = o.TempDir()
	o.fallback = filepath.Join(o.root, "fallback")
	o.states = []string{filepath.Join(o.root, "state"), filepath.Join(o.root, "state of another drive")}
	for _, dir := range append([]string{o.fallback}, o.states...) {
		last := checkpoint.DirName(4) // of another run
		o.must(os.CopyFS(filepath.Join(dir, "run-0123abcd", rundir.CheckpointsName, last),
			os.DirFS(filepath.Join(o.pool.other, rundir.CheckpointsName, last))))
	}
	var l life
	for {
		l.config = o.pool.draw(o.T, o.random)
		w := o.wayOn(nil, 0, &l.config)
		if w.err == nil && w.end <= mostSteps {
			o.ways = []*way{w}
			break
		}
		o.ways = nil
		o.counts["drawn in vain"]++
	}
	l.config.Save = o.anySaving(&l.config)
	l.good = l.config
	l.begin(o.newDir())
	alone := leftAlone(&l.config)
	doc, err := alone.YAML()
	o.must(err)
	o.story = append(o.story, string(doc))
	free := false
	for starts, events := 0, 1+o.random.IntN(5); ; starts++ {
		if starts > events+6 {
			o.Errorf("the run has not ended after %d starts", starts)
			return
		}
		between, during, at := "nothing", "nothing", place{name: "in memory", devices: 1, workers: 2}
		if starts < events {
			between, during = o.anyMove(), o.pick(duringStarts)
			if starts == 0 && o.random.IntN(3) > 0 {
				during = o.pick([]string{"stop", "kill", "cancel", "stop anywhere", "end the context anywhere", "ErrStop"})
			}
			if !free {
				at = o.anyPlace(&l.config)
			}
		}
		refused := o.counts["refused"]
		ended := o.startDisturbed(&l, between, during, at)
		if o.Failed() || ended && starts >= events {
			return
		}
		free = at.isTight && o.counts["refused"] > refused // the next start has all the memory
		if l.way != nil && l.way.end > mostSteps {
			l.config.MaxSteps, l.config.Epochs = 3, 0
			allow(&l.config, "max_steps", "epochs")
		}
	}
}

// mostSteps bounds the length of a trial.
const mostSteps = 24

// place says where a start has its state, and what computes it.
type place struct {
	name             string
	memory           runfile.Memory
	cache            string
	devices, workers int
	isTight          bool // it may have too little memory
	isHere           bool // state on disk is in the output directory
	drives           int  // that have state on disk; 0: one
}

func (p place) String() string { return fmt.Sprintf("%s, %d devices", p.name, p.devices) }

func (p place) env(o *operator) *session.Env {
	env := patchworkEnv(o)
	env.CacheDir = p.cache
	env.Open = func(_ string, a *hostmem.Accounts) (all []device.Device, host device.Device, err error) {
		for range p.devices {
			d, err := cpu.New(cpu.Options{Workers: p.workers, Accounts: a})
			if err != nil {
				return nil, nil, err
			}
			all = append(all, d)
		}
		return all, all[0], nil
	}
	return env
}

var (
	deviceNeeds = regexp.MustCompile(`memory\.device=([0-9.]+[KMG]iB)`)
	hostNeeds   = regexp.MustCompile(`the run needs ([0-9.]+) MiB of host memory`)
)

// anyPlace is a random place for a run: with all the memory, or little more than it takes.
func (o *operator) anyPlace(c *runfile.Config) place {
	o.Helper()
	r := o.random
	p := place{name: "in memory", devices: []int{1, 1, 2, 3}[r.IntN(4)], workers: 1 + r.IntN(2)}
	run := *c
	if had, err := newEnv(o).Runs().ReadResolved(c.OutputDir); err == nil && had != nil &&
		had.SequenceLen == c.SequenceLen &&
		had.BatchTokens == c.BatchTokens {
		run.Numerics = had.Numerics
	}
	// needs plans with next to no memory, and finds what the error says is needed.
	needs := func(m runfile.Memory, what *regexp.Regexp) string {
		run.Memory = m
		_, err := verbs.PlanFor(context.Background(), &run, verbs.PlanOptions{Env: p.env(o)})
		if err == nil {
			return ""
		}
		if found := what.FindStringSubmatch(err.Error()); found != nil {
			return found[1]
		}
		return ""
	}
	little := budget(o, "1kB").Device
	switch r.IntN(5) {
	case 1, 2:
		if size := needs(runfile.Memory{Device: little}, deviceNeeds); size != "" {
			p.name, p.isTight, p.memory = "streamed", true, budget(o, size)
			p.memory.Device.N += int64(float64(p.memory.Device.N) * []float64{0, 0.1, 0.5, 1}[r.IntN(4)])
			if r.IntN(2) == 0 {
				p.memory.Recompute = "always"
			}
		}
	case 3:
		disk := runfile.Memory{Host: little, Disk: budget(o, "auto").Device}
		if r.IntN(2) == 0 {
			p.drives, disk.Path = len(o.states), o.states
		}
		if size, err := strconv.ParseFloat(needs(disk, hostNeeds), 64); err == nil {
			p.name, p.isTight, p.memory = "on disk", true, disk
			if p.drives > 0 {
				p.name = "on two drives"
			}
			p.isHere = p.drives == 0 && r.IntN(3) == 0
			p.memory.Host.N = int64(math.Ceil((size+0.06)*(1<<20))) + int64(r.IntN(1<<18))
		}
	case 4:
		p.name, p.cache, p.memory = "updated on the device", o.pool.slow, budget(o, "64MiB")
	}
	if r.IntN(2) == 0 { // where that can be
		run.Memory = p.memory
		run.Memory.Gradients = string(plan.GradientsTwice)
		if _, err := verbs.PlanFor(context.Background(), &run, verbs.PlanOptions{Env: p.env(o)}); err == nil {
			p.name, p.memory = p.name+", gradients computed twice", run.Memory
		}
	}
	return p
}
