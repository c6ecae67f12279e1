package train

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// tunable is a device with memory of its own that says that it has algorithms to choose from: the one that it prefers,
// and others, except one.
type tunable struct {
	device.Device
	prefers, lacks string
	refuse         bool // to be told algorithms

	tuned int               // products
	used  map[string]string // lines that it was told to use, by their products
	made  map[string]string // choices, by their products
}

func (d *tunable) Info() device.Info {
	i := d.Device.Info()
	i.Unified, i.TunesProducts, i.MemoryBytes = false, true, 1<<30
	return i
}

func (d *tunable) TuneProducts(products []device.Product, scratch device.Mem) error {
	var operands device.Operands
	for _, p := range products {
		operands.MatMul(p.C, p.A, p.B, p.MatMulFlags) // which looks at shapes
		for _, m := range []device.Mem{p.C.Mem, p.A.Mem, p.B.Mem, p.Onto.Mem} {
			if !m.IsZero() && (m.Buf != scratch.Buf || m.Off < scratch.Off || m.Off+m.Len > scratch.Off+scratch.Len) {
				return errors.New("an operand is not in the memory that was lent")
			}
		}
		shape := fmt.Sprintf("%dx%d by %dx%d", p.A.Rows, p.A.Cols, p.B.Rows, p.B.Cols)
		line, told := d.used[shape]
		if !told || d.lacks != "" && strings.HasSuffix(line, d.lacks) {
			line = shape + ": " + d.prefers
		}
		d.made[shape] = line
	}
	d.tuned += len(products)
	return nil
}

func (d *tunable) Algorithms() []string { return slices.Sorted(maps.Values(d.made)) }

func (d *tunable) UseAlgorithms(lines []string) error {
	if d.refuse {
		return errors.New("it is of another world")
	}
	maps.Copy(d.used, linesByShape(lines))
	return nil
}

// trainTuned trains on a tunable device, and perhaps others, until a line, or to the end.
func trainTuned(t *testing.T, c *runfile.Config, cache, line string, d *tunable, others ...*tunable) (*tunable,
	string) {
	t.Helper()
	env := newEnv(t)
	env.CacheDir = cache
	env.Open = func(_ string, a *hostmem.Accounts) (all []device.Device, host device.Device, err error) {
		host, err = cpu.New(cpu.Options{Workers: 2, Accounts: a})
		for _, d := range append([]*tunable{d}, others...) {
			d.used, d.made, d.Device = map[string]string{}, map[string]string{}, host
			d.prefers = cmp.Or(d.prefers, "quick")
			if all != nil && err == nil {
				d.Device, err = cpu.New(cpu.Options{Workers: 1, Accounts: a})
			}
			all = append(all, d)
		}
		return all, host, err
	}
	var said strings.Builder
	env.Progress = &said
	if line != "" {
		stop := make(chan struct{})
		env.Stop, env.Progress = stop, &stopper{line, stop}
	}
	_, err := Train(context.Background(), c, Options{Env: env})
	if err != nil && (line == "" || !errors.Is(err, ErrInterrupted)) {
		t.Fatal(err)
	}
	return d, said.String()
}

// keptAlgorithms are the lines of a cache directory.
func keptAlgorithms(t *testing.T, cache string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(cache, "algorithms.json"))
	var kept struct {
		Algorithms []string `json:"algorithms"`
	}
	if err == nil {
		err = json.Unmarshal(text, &kept)
	}
	if err != nil {
		t.Fatalf("%s has no choices (%v)", cache, err)
	}
	return kept.Algorithms
}

// linesByShape are lines by the products that they choose for.
func linesByShape(lines []string) map[string]string {
	all := map[string]string{}
	for _, line := range lines {
		shape, _, _ := strings.Cut(line, ": ")
		all[shape] = line
	}
	return all
}

// all reports whether lines have an algorithm each, and there are some.
func all(lines []string, algorithm string) bool {
	other := func(line string) bool { return !strings.HasSuffix(line, ": "+algorithm) }
	return len(lines) > 0 && !slices.ContainsFunc(lines, other)
}

// A device that chooses algorithms is shown the products of a step before the first one. Later runs of this machine,
// and the run that continues from a checkpoint, make the same choices.
func TestAlgorithmsAreKept(t *testing.T) {
	c, cache := smallConfig(t), t.TempDir()
	first, _ := trainTuned(t, c, cache, "step  2/12", &tunable{})
	// Of a block forward: q k v, out, gate and up, down; backward two of each; of the head three.
	if first.tuned < 4+8+3 || !all(first.Algorithms(), "quick") {
		t.Errorf("%d products were tuned: %q", first.tuned, first.Algorithms())
	}
	last, _, err := checkpoint.Latest(vfs.OS{}, rundir.CheckpointsDir(c))
	if err != nil || !slices.Equal(last.Manifest.Algorithms, first.Algorithms()) {
		t.Fatalf("the checkpoint has %q, and the device %q (%v)", last.Manifest.Algorithms, first.Algorithms(), err)
	}

	other := *c
	other.OutputDir = filepath.Join(t.TempDir(), "other")
	second, said := trainTuned(t, &other, cache, "step  2/12", &tunable{prefers: "slow"})
	if !slices.Equal(second.Algorithms(), first.Algorithms()) || strings.Contains(said, "algorithm") {
		t.Errorf("the next run on this machine uses %q, and says %s", second.Algorithms(), said)
	}

	path := filepath.Join(cache, "algorithms.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, strings.ReplaceAll(string(text), "quick", "odd"))
	resumed, said := trainTuned(t, c, cache, "", &tunable{})
	if !slices.Equal(resumed.Algorithms(), first.Algorithms()) || strings.Contains(said, "algorithm") {
		t.Errorf("the resumed run uses %q, and says %s", resumed.Algorithms(), said)
	}
	if lines := keptAlgorithms(t, cache); !all(lines, "odd") || len(lines) != len(first.Algorithms()) {
		t.Errorf("a run that continues its own choices changes those of the machine to %q", lines)
	}
}

// What one device has chosen, the other takes over, and the checkpoint and the machine have the choices of both.
func TestAlgorithmsOfTwoDevices(t *testing.T) {
	c, cache := smallConfig(t), t.TempDir()
	c.Numerics.MicroBatch = 1 // several, which the devices share
	second := &tunable{prefers: "slow"}
	first, _ := trainTuned(t, c, cache, "step  2/12", &tunable{}, second)
	mine, lines := linesByShape(first.Algorithms()), keptAlgorithms(t, cache)
	both := maps.Clone(mine)
	for shape, line := range linesByShape(second.Algorithms()) {
		if was, ok := mine[shape]; ok && was != line {
			t.Errorf("one device computes with %q, the other with %q", was, line)
		}
		both[shape] = line
	}
	if len(mine) < 4 || len(second.made) < 4 || !slices.Equal(lines, slices.Sorted(maps.Values(both))) {
		t.Errorf("the devices chose %q and %q, and the machine has %q", first.Algorithms(), second.Algorithms(), lines)
	}
	last, _, err := checkpoint.Latest(vfs.OS{}, rundir.CheckpointsDir(c))
	if err != nil || !slices.Equal(last.Manifest.Algorithms, lines) {
		t.Errorf("the checkpoint has other choices: %q (%v)", last.Manifest.Algorithms, err)
	}
}

// A run that began elsewhere brings its choices along, and takes them away again. The machine keeps its own, and learns
// what its device chooses in a later run.
func TestAlgorithmsOfACheckpointAreNotKept(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out three runs that no lane or lock is new to; make test runs them")
	}
	cache := t.TempDir()
	x := smallConfig(t)
	x.MaxSteps = 1
	here, _ := trainTuned(t, x, cache, "", &tunable{})

	y := *x
	y.BatchTokens, y.MaxSteps, y.OutputDir = 128, 12, filepath.Join(t.TempDir(), "elsewhere")
	elsewhere, _ := trainTuned(t, &y, t.TempDir(), "step  1/12", &tunable{prefers: "odd"})
	resumed, said := trainTuned(t, &y, cache, "", &tunable{prefers: "slow"})
	if !slices.Equal(resumed.Algorithms(), elsewhere.Algorithms()) || strings.Contains(said, "algorithm") {
		t.Errorf("the resumed run uses %q, and says %s", resumed.Algorithms(), said)
	}
	if lines := keptAlgorithms(t, cache); !slices.Equal(lines, here.Algorithms()) {
		t.Errorf("the machine has\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(here.Algorithms(), "\n"))
	}

	z := y
	z.MaxSteps, z.OutputDir = 1, filepath.Join(t.TempDir(), "later")
	later, _ := trainTuned(t, &z, cache, "", &tunable{prefers: "slow"})
	want := maps.Clone(later.made)
	maps.Copy(want, here.made) // the first choice of a shape wins
	lines := keptAlgorithms(t, cache)
	if !slices.Equal(lines, slices.Sorted(maps.Values(want))) || len(want) <= len(here.made) ||
		strings.Contains(strings.Join(lines, ""), "odd") {
		t.Errorf("the machine has\n%s\nwant\n%s", strings.Join(lines, "\n"),
			strings.Join(slices.Sorted(maps.Values(want)), "\n"))
	}
}

// A choice of a checkpoint that the device does not take is spoken of, and does not reach the machine's file; nor does
// one of a product that this run does not have.
func TestAlgorithmsThatAreNotOffered(t *testing.T) {
	c, cache := smallConfig(t), t.TempDir()
	trainTuned(t, c, t.TempDir(), "step  1/12", &tunable{prefers: "deadbeef"})
	other := *c
	other.BatchTokens, other.MaxSteps, other.OutputDir = 128, 1, filepath.Join(t.TempDir(), "shorter")
	shorter, _ := trainTuned(t, &other, cache, "", &tunable{prefers: "odd"})
	resumed, said := trainTuned(t, c, cache, "", &tunable{prefers: "slow", lacks: "deadbeef"})
	n := len(resumed.Algorithms())
	want := fmt.Sprintf("resume: the device does not offer %d of the checkpoint's %d algorithms of matrix products "+
		"any more: the run continues with others, and with other last bits", n, n)
	if !strings.Contains(said, want) {
		t.Errorf("it says %s", said)
	}
	lines := keptAlgorithms(t, cache)
	if strings.Contains(strings.Join(lines, ""), "deadbeef") || len(lines) <= n {
		t.Errorf("the machine has %q", lines)
	}

	third := *c
	third.OutputDir = filepath.Join(t.TempDir(), "third")
	third.MaxSteps = 1
	_, said = trainTuned(t, &third, cache, "", &tunable{prefers: "new", lacks: "slow"})
	if !strings.Contains(said, "algorithms of matrix products in algorithms.json any more: others are chosen") {
		t.Errorf("it says %s", said)
	}
	kept := linesByShape(keptAlgorithms(t, cache))
	for shape, line := range shorter.made {
		if kept[shape] != line {
			t.Errorf("the machine has %q for a product that the last run does not have, want %q", kept[shape], line)
		}
	}
	if strings.Contains(fmt.Sprint(kept), "slow") {
		t.Errorf("the machine keeps what its device does not offer: %q", kept)
	}
}

// Choices of another device are left alone; a file that is damaged or absurdly long, and lines that the device does not
// know, are spoken of.
func TestAlgorithmsOfOthers(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out five runs that no lane or lock is new to; make test runs them")
	}
	const ours = "computed_on"
	for _, x := range []struct {
		name, text string
		refuse     bool
		used       bool
		says       string
	}{
		{"another device", `{"computed_on": "a slide rule", "algorithms": ["x"]}`, false, false, ""},
		{"damaged", `{"computed_on": `, false, false, "are chosen again"},
		{"long", strings.Repeat(" ", 4<<20+1), false, false, "are chosen again"},
		{"lines", ours, true, false, "algorithms.json are not used, and the last bits may differ from earlier runs: it is of another world"},
		{"ours", ours, false, true, ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			c, cache := smallConfig(t), t.TempDir()
			if x.text == ours {
				first := *c
				first.OutputDir = filepath.Join(t.TempDir(), "first")
				trainTuned(t, &first, cache, "step  1/12", &tunable{})
			} else {
				write(t, filepath.Join(cache, "algorithms.json"), x.text)
			}
			c.MaxSteps = 3
			d, said := trainTuned(t, c, cache, "", &tunable{prefers: "slow", refuse: x.refuse})
			if (len(d.used) > 0) != x.used || !strings.Contains(said, x.says) ||
				x.says == "" && strings.Contains(said, "algorithm") {
				t.Errorf("it uses %q and says %s", d.used, said)
			}
			if lines := keptAlgorithms(t, cache); all(lines, "slow") == x.used {
				t.Errorf("the machine has %q", lines)
			}
		})
	}
}
