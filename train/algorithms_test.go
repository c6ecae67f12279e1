package train

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/millrace/millrace/vfs"
)

// tunable is a device with memory of its own that says that it has algorithms to choose from, and notes what it is
// asked.
type tunable struct {
	device.Device
	tuned  int // products
	used   []string
	refuse bool
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
	}
	d.tuned += len(products)
	return nil
}

func (d *tunable) Algorithms() []string {
	if d.used != nil {
		return d.used
	}
	return []string{fmt.Sprintf("of %d products", d.tuned)}
}

func (d *tunable) UseAlgorithms(lines []string) error {
	if d.refuse {
		return errors.New("it is of another world")
	}
	d.used = slices.Clone(lines)
	return nil
}

// trainTuned trains on a tunable device until a line, or to the end.
func trainTuned(t *testing.T, c *runfile.Config, cache, line string, refuse bool) (*tunable, string) {
	t.Helper()
	d := &tunable{refuse: refuse}
	env := newEnv(t)
	env.CacheDir = cache
	env.Open = func(_ string, a *hostmem.Accounts) (device.Device, device.Device, error) {
		host, err := cpu.New(cpu.Options{Workers: 2, Accounts: a})
		d.Device = host
		return d, host, err
	}
	var said strings.Builder
	env.Progress = &said
	if line != "" {
		stop := make(chan struct{})
		env.Stop, env.Progress = stop, &stopper{line, stop}
	}
	_, err := Train(context.Background(), c, env, Options{})
	if err != nil && (line == "" || !errors.Is(err, ErrInterrupted)) {
		t.Fatal(err)
	}
	return d, said.String()
}

// A device that chooses algorithms is shown the products of a step before the first one. Later runs of this machine,
// and the run that continues from a checkpoint, make the same choices.
func TestAlgorithmsAreKept(t *testing.T) {
	c, cache := smallConfig(t), t.TempDir()
	first, _ := trainTuned(t, c, cache, "step  2/12", false)
	// Of a block forward: q k v, out, gate and up, down; backward two of each; of the head three.
	if first.tuned < 4+8+3 || first.used == nil && len(first.Algorithms()) != 1 {
		t.Errorf("%d products were tuned", first.tuned)
	}
	last, _, err := checkpoint.Latest(vfs.OS{}, checkpointsDir(c))
	if err != nil || !slices.Equal(last.Manifest.Algorithms, first.Algorithms()) {
		t.Fatalf("the checkpoint has %q, and the device %q (%v)", last.Manifest.Algorithms, first.Algorithms(), err)
	}

	other := *c
	other.OutputDir = filepath.Join(t.TempDir(), "other")
	second, _ := trainTuned(t, &other, cache, "step  2/12", false)
	if !slices.Equal(second.used, first.Algorithms()) {
		t.Errorf("the next run on this machine uses %q", second.used)
	}

	path := filepath.Join(cache, algorithmsFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, strings.Replace(string(text), "of", "not of", 1))
	if resumed, _ := trainTuned(t, c, cache, "", false); !slices.Equal(resumed.used, first.Algorithms()) {
		t.Errorf("the resumed run uses %q", resumed.used)
	}
}

// Choices of another device are left alone; a file that is damaged, and lines that the device does not know, are
// spoken of.
func TestAlgorithmsOfOthers(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out four runs that no lane or lock is new to; make test runs them")
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
		{"lines", ours, true, false, "algorithms.json are not used, and the last bits may differ from earlier runs: it is of another world"},
		{"ours", ours, false, true, ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			c, cache := smallConfig(t), t.TempDir()
			if x.text == ours {
				first := *c
				first.OutputDir = filepath.Join(t.TempDir(), "first")
				trainTuned(t, &first, cache, "step  1/12", false)
			} else {
				write(t, filepath.Join(cache, algorithmsFile), x.text)
			}
			c.MaxSteps = 3
			d, said := trainTuned(t, c, cache, "", x.refuse)
			if (d.used != nil) != x.used || !strings.Contains(said, x.says) || x.says == "" && strings.Contains(said, "algorithm") {
				t.Errorf("it uses %q and says %s", d.used, said)
			}
		})
	}
}
