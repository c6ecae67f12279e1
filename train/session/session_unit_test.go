package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/vfs"
)

// A run that continues says that moments were rounded to codes in another way before.
func TestOtherCodes(t *testing.T) {
	for before, want := range map[string]string{"": "to the nearest code, also to zero",
		"as in 2031": "another rounding of moments in codes (as in 2031)"} {
		if got := otherCodes(before, optim.Dynamic8); !strings.Contains(got, want) || strings.Contains(got, "\n") {
			t.Errorf("codes %q: it says %q", before, got)
		}
	}
	if got := otherCodes("", optim.MomentsF32); got != "" {
		t.Errorf("fp32 moments: it says %q", got)
	}
}

// A run saves after as many steps as either key says, and at its end if it has not just done so.
func TestPredictedSaves(t *testing.T) {
	for _, c := range []struct {
		save    runfile.Save
		steps   int
		stepSec float64
		want    int
	}{
		{runfile.Save{}, 100, 1, 0},
		{runfile.Save{AtEnd: true}, 100, 1, 1},
		{runfile.Save{AtEnd: true}, 0, 1, 0},
		{runfile.Save{Every: 10, AtEnd: true}, 100, 1, 10},
		{runfile.Save{Every: 10, AtEnd: true}, 101, 1, 11},
		{runfile.Save{Minutes: 1}, 100, 30, 50},
		{runfile.Save{Minutes: 1}, 100, 200, 100},
		{runfile.Save{Minutes: 1, Every: 1}, 100, 30, 100},
		{runfile.Save{Minutes: 1, Every: 3, AtEnd: true}, 9, 30, 5},
		{runfile.Save{Minutes: 1e300, AtEnd: true}, 9, 1e-9, 1},
	} {
		if got := predictedSaves(c.save, c.steps, c.stepSec); got != c.want {
			t.Errorf("%+v, %d steps of %v s: %d saves, want %d", c.save, c.steps, c.stepSec, got, c.want)
		}
	}
}

// The next run removes the state that a killed run has left, so that counts as free. Files that a checkpoint links do
// not.
func TestLeftStateIsFree(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"part-1.extent", "part-2.extent", "notes.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), bytes.Repeat([]byte("x"), 1<<20), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(dir, "part-2.extent"), filepath.Join(dir, "kept")); err != nil {
		t.Skip("the file system of temporary files has no hard links, and the test counts one: ", err)
	}
	info, err := os.Stat(filepath.Join(dir, "part-1.extent"))
	if err != nil {
		t.Fatal(err)
	}
	left := store.LeftBytes(dir)
	if left < info.Size() || left > 2*info.Size() {
		t.Skipf("the file system of temporary files gives a file of %d bytes %d, so that what is left says nothing",
			info.Size(), left)
	}
	m := runfile.Memory{Disk: runfile.Bytes{N: 1 << 50}, Path: runfile.Paths{dir}}
	if got, err := diskRoom(m, freeFS{free: 5 << 20}); err != nil || !slices.Equal(got, []int64{5<<20 + left}) {
		t.Errorf("%d bytes may be used, %v; want %d", got, err, 5<<20+left)
	}
	auto, _ := runfile.ParseBytes("auto")
	m = runfile.Memory{Disk: auto, Path: runfile.Paths{dir}}
	want := []int64{int64(diskShare * float64(5<<20+left))}
	if got, err := diskRoom(m, freeFS{free: 5 << 20}); err != nil || !slices.Equal(got, want) {
		t.Errorf("%d bytes may be used, %v", got, err)
	}
}

// freeFS is the system's files on a drive that has so much left.
type freeFS struct {
	vfs.OS
	free int64
}

func (f freeFS) FreeBytes(string) (int64, error) { return f.free, nil }

// ok ends a test at an error.
func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tuned is a device that chose algorithms, and takes over those that it has.
type tuned struct {
	device.Device
	chose []string // own choices
	used  []string
	err   error
}

func (d *tuned) TuneProducts([]device.Product, device.Mem) error { return nil }
func (d *tuned) Algorithms() []string                            { return d.chose }

func (d *tuned) UseAlgorithms(lines []string) error {
	if d.err != nil {
		return d.err
	}
	d.used = append(d.used, lines...)
	return nil
}

// heard is an environment that keeps what it tells.
func heard(cache string) (*Env, *[]string) {
	lines := &[]string{}
	e := &Env{Progress: io.Discard, CacheDir: cache, Accounts: hostmem.New()}
	e.Events = func(event Event) { *lines = append(*lines, event.String()) }
	return e, lines
}

// Algorithms that devices chose are kept for this machine, and used again by a device that computes alike. A product
// stays in the file, unless the device no longer has it. Choices of a checkpoint are used, and not kept.
func TestAlgorithmsAreKept(t *testing.T) {
	dir := t.TempDir()
	e, lines := heard(dir)
	start := func(on string, recalled *chosen, made func(used []string) []string) *tuned {
		t.Helper()
		*lines = nil
		d := &tuned{}
		s := &Session{Env: e, Plan: &plan.Plan{ComputedOn: on}, tuners: []device.ProductTuner{d}, recalled: recalled}
		s.recallAlgorithms()
		d.chose = made(d.used)
		s.rememberAlgorithms()
		return d
	}
	kept := func() string {
		t.Helper()
		c, err := e.readAlgorithms()
		ok(t, err)
		return c.ComputedOn + " " + strings.Join(c.Algorithms, " ")
	}
	is := func(lines ...string) func([]string) []string { return func([]string) []string { return lines } }
	if c, err := e.readAlgorithms(); c != nil || err != nil {
		t.Errorf("before: %+v, %v", c, err)
	}
	start("cpu", nil, is("b: 1", "a: 1"))
	if got := kept(); got != "cpu a: 1 b: 1" || len(*lines) > 0 {
		t.Errorf("kept are %s, %q", got, *lines)
	}
	if d := start("cpu", nil, is("a: 1", "c: 1")); !slices.Equal(d.used, []string{"a: 1", "b: 1"}) ||
		kept() != "cpu a: 1 b: 1 c: 1" || len(*lines) > 0 {
		t.Errorf("used are %q, kept %s, %q", d.used, kept(), *lines)
	}
	start("cpu", nil, is("a: 2", "b: 1"))
	if got := kept(); got != "cpu a: 2 b: 1 c: 1" || !strings.Contains(strings.Join(*lines, " "),
		"does not offer 1 of the 3") {
		t.Errorf("kept are %s, %q", got, *lines)
	}
	from := &chosen{"cpu", []string{"a: 9", "d: 9"}}
	if d := start("cpu", from, is("a: 9", "d: 9", "e: 1")); len(d.used) != 5 || kept() != "cpu a: 2 b: 1 c: 1 e: 1" ||
		len(*lines) > 0 {
		t.Errorf("used are %q, kept %s, %q", d.used, kept(), *lines)
	}
	start("cpu", from, is("a: 9", "d: 8"))
	if !strings.Contains(strings.Join(*lines, " "), "does not offer 1 of the checkpoint's 2 algorithms") ||
		kept() != "cpu a: 2 b: 1 c: 1 d: 8 e: 1" {
		t.Errorf("kept are %s, %q", kept(), *lines)
	}
	if d := start("gpu", from, is("g: 1")); len(d.used) > 0 || kept() != "gpu g: 1" {
		t.Errorf("another device uses %q, kept are %s", d.used, kept())
	}
	ok(t, os.WriteFile(filepath.Join(dir, algorithmsFile), []byte("{"), 0o600))
	if d := start("gpu", nil, is("g: 2")); len(d.used) > 0 || kept() != "gpu g: 2" ||
		!strings.Contains(strings.Join(*lines, " "), "are chosen again") {
		t.Errorf("of a file that is cut short %q are used, %q", d.used, *lines)
	}
	d := &tuned{err: errors.New("no such line")}
	s := &Session{Env: e, Plan: &plan.Plan{ComputedOn: "gpu"}, tuners: []device.ProductTuner{d}}
	if s.recallAlgorithms(); s.kept != nil || !strings.Contains(strings.Join(*lines, " "), "are not used") {
		t.Errorf("choices that the device refuses are kept: %q, %q", s.kept, *lines)
	}
	s.tuners = append(s.tuners, &tuned{chose: []string{"b: 1", "a: 1"}})
	d.chose = []string{"a: 1"}
	if got := s.Algorithms(); !slices.Equal(got, []string{"a: 1", "b: 1"}) {
		t.Errorf("of two devices they are %q", got)
	}
	e.CacheDir = ""
	start("gpu", nil, is("g: 3"))
	if c, err := e.readAlgorithms(); c != nil || err != nil {
		t.Errorf("without a cache: %+v, %v", c, err)
	}
	e.CacheDir = dir
	if kept() != "gpu g: 2" {
		t.Errorf("without a cache %s is kept", kept())
	}
	many := make([]string, 100)
	for i := range many {
		many[i] = fmt.Sprintf("%d%s: 1", i, strings.Repeat("x", maxAlgorithmsBytes/90))
	}
	start("gpu", nil, is(many[:50]...))
	start("gpu", nil, is(many[50:]...))
	if c, err := e.readAlgorithms(); err != nil || len(c.Algorithms) != 50 || !slices.Contains(c.Algorithms, many[60]) {
		t.Errorf("a long file is kept: %v", err)
	}
}

// Host 0 tells all, to the listener and to people; others tell warnings to people alone.
func TestWhoTells(t *testing.T) {
	for host := range 2 {
		var out bytes.Buffer
		e, lines := heard("")
		e.Progress, e.Cluster = &out, &hosts.Cluster{Host: host, Hosts: 2}
		e.Note("a note of %d", 1)
		e.Warn("a fault")
		e.WarnOf(errors.New("one\ntwo"))
		want := "warning: a fault\nwarning: one; two\n"
		if host == 0 {
			want = "a note of 1\n" + want
		}
		if out.String() != want || (len(*lines) == 3) != (host == 0) {
			t.Errorf("host %d says %q, and the listener hears %q", host, out.String(), *lines)
		}
	}
}

// listed is a device with an Info.
type listed struct {
	device.Device
	info   device.Info
	err    error
	closed *int
}

func (d listed) Info() device.Info { return d.info }

func (d listed) Close() error {
	*d.closed++
	return d.err
}

// Several devices have the least memory of any, the name of their kind, and each is closed once.
func TestSeveralDevices(t *testing.T) {
	closed, broken := 0, errors.New("lost")
	a := &listed{info: device.Info{Name: "a 0", Kind: "a", MemoryBytes: 5, TotalBytes: 9, OverheadBytes: 1},
		closed: &closed}
	b := &listed{info: device.Info{Name: "a 1", Kind: "a", MemoryBytes: 4, TotalBytes: 10, OverheadBytes: 2},
		closed: &closed,
		err:    broken}
	one := Devices{[]device.Device{a}, a}
	if i := one.Info(); i.Name != "a 0" || i.MemoryBytes != 5 || !i.PeerCopies {
		t.Errorf("one is %+v", i)
	}
	two := Devices{[]device.Device{a, b}, &listed{closed: &closed}}
	if i := two.Info(); i.Name != "a" || i.MemoryBytes != 4 || i.TotalBytes != 9 || i.OverheadBytes != 2 || i.PeerCopies {
		t.Errorf("two are %+v", i)
	}
	if err := one.Close(); err != nil || closed != 1 {
		t.Errorf("one is closed %d times, %v", closed, err)
	}
	if err := two.Close(); !errors.Is(err, broken) || closed != 4 {
		t.Errorf("two and the host's are closed %d times, %v", closed-1, err)
	}
	e, asked := &Env{}, ""
	e.Open = func(name string, _ *hostmem.Accounts) ([]device.Device, device.Device, error) {
		asked = name
		return nil, nil, broken
	}
	for value, want := range map[string][2]string{"": {"auto", "first"}, "auto": {"auto", "first"}, "cuda:1": {"cuda:1",
		"cuda:1"}} {
		_, err := e.OpenDevices(value)
		if asked != want[0] || !errors.Is(err, broken) {
			t.Errorf("of %q %q are opened, %v", value, asked, err)
		}
		if _, err = e.OpenFirst(value); asked != want[1] || !errors.Is(err, broken) {
			t.Errorf("of %q %q is opened, %v", value, asked, err)
		}
	}
}

// A run ends where it is asked to, and says what it finishes before.
func TestStops(t *testing.T) {
	stop := make(chan struct{})
	e := &Env{Stop: stop}
	if e.Stopped() || (&Env{}).Stopped() || e.Finishes() != "" {
		t.Error("it ends before it is asked to")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if is, err := e.StopsAnywhere(ended); is || err != nil {
		t.Errorf("alone, its context ends it: %v", err)
	}
	close(stop)
	if is, err := e.StopsAnywhere(t.Context()); !is || err != nil || !e.Stopped() {
		t.Errorf("it is asked to end, and does not: %v", err)
	}
	if e.WillFinish("finishing step 5"); e.Finishes() != "finishing step 5" {
		t.Errorf("it is %q", e.Finishes())
	}
}

// Saves of a run are those that its keys ask for, and one at the end.
func TestSavesOf(t *testing.T) {
	for _, x := range []struct {
		save  runfile.Save
		eval  int
		steps int
		want  int
	}{
		{runfile.Save{}, 0, 100, 0},
		{runfile.Save{}, 0, 0, 0},
		{runfile.Save{AtEnd: true}, 0, 0, math.MaxInt},
		{runfile.Save{AtEnd: true}, 0, 100, 1},
		{runfile.Save{Every: 30}, 0, 100, 4},
		{runfile.Save{Every: 1}, 0, 100, 101},
		{runfile.Save{Minutes: 5}, 0, 100, 1 + 100*2*6/60/5},
		{runfile.Save{Best: true}, 20, 100, 6},
		{runfile.Save{Best: true}, 0, 100, 1},
		{runfile.Save{AtEnd: true}, 20, 100, 1},
		{runfile.Save{Every: 50, Minutes: 10, Best: true}, 25, 100, 1 + 2 + 2 + 4},
	} {
		c := &runfile.Config{Save: x.save}
		c.Eval.Every = x.eval
		if got := savesOf(c, x.steps, 6); got != x.want {
			t.Errorf("%+v, %d steps: %d saves, want %d", x.save, x.steps, got, x.want)
		}
	}
	if got := savesOf(&runfile.Config{Save: runfile.Save{Minutes: 1}}, 10, math.Inf(1)); got != 1+mostSaves {
		t.Errorf("steps that take forever: %d saves", got)
	}
}

// limited are the system's files on a drive that has so much left, below a directory that is there.
type limited struct {
	freeFS
	below string
}

func (f limited) FreeBytes(dir string) (int64, error) {
	if dir != f.below {
		return 0, fs.ErrNotExist
	}
	return f.free, nil
}

// The space for a directory that is not there is that above it. A run needs as much as it asks for, where that is
// known.
func TestFreeSpace(t *testing.T) {
	fsys := limited{freeFS{free: 100}, "/disk"}
	if n, err := FreeBytes(fsys, "/disk/a/../b/c"); n != 100 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	if _, err := FreeBytes(fsys, "/other/a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a disk that is not there: %v", err)
	}
	e := &Env{FS: fsys}
	if err := e.HasRoom("/disk/a", 100); err != nil {
		t.Error(err)
	}
	if err := e.HasRoom("/disk/a", 101); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("101 bytes of 100: %v", err)
	}
	if err := e.HasRoom("/other", 101); err != nil {
		t.Errorf("where it is not known: %v", err)
	}
	auto, err := runfile.ParseBytes("auto")
	ok(t, err)
	none, err := runfile.ParseBytes("none")
	ok(t, err)
	for _, x := range []struct {
		m    runfile.Memory
		want int64
		err  bool
	}{{runfile.Memory{}, 0, false}, {runfile.Memory{Disk: none, Path: runfile.Paths{"/disk"}}, 0, false},
		{runfile.Memory{Disk: auto}, 0, true}, {runfile.Memory{Disk: auto, Path: runfile.Paths{"/disk"}}, 90, false},
		{runfile.Memory{Disk: runfile.Bytes{N: 50}, Path: runfile.Paths{"/disk"}}, 50, false},
		{runfile.Memory{Disk: runfile.Bytes{N: 500}, Path: runfile.Paths{"/disk"}}, 100, false},
		{runfile.Memory{Disk: auto, Path: runfile.Paths{"/other"}}, 0, true}} {
		if got, err := diskOf(x.m, fsys); got != x.want || (err != nil) != x.err {
			t.Errorf("%+v: %d bytes, %v", x.m, got, err)
		}
	}
	if got, err := diskOf(runfile.Memory{Disk: auto, Path: runfile.Paths{"/disk"}}, limited{freeFS{free: 0},
		"/disk"}); got != 1 ||
		err != nil {
		t.Errorf("of a full disk %d bytes may be used, %v", got, err)
	}
}

// diskOf is the disk of a request.
func diskOf(m runfile.Memory, fsys vfs.FS) (int64, error) {
	room, err := diskRoom(m, fsys)
	var r plan.Request
	setRoom(&r, m, room)
	return r.DiskBytes, err
}

// Sizes are chosen for what the machine has, in shares, where budgets are auto, and for budgets that are given.
func TestSizingRequests(t *testing.T) {
	e := &Env{}
	e.Tests.Memory = func() (left, total int64) { return 100, 800 }
	auto, err := runfile.ParseBytes("auto")
	ok(t, err)
	r := plan.Request{DeviceBytes: 7, HostBytes: 9, DiskBytes: 11, TokenBytes: 13,
		Device: device.Info{TotalBytes: 80, MemoryBytes: 40}}
	given := func(device, host int64) runfile.Memory {
		return runfile.Memory{Device: runfile.Bytes{N: device}, Host: runfile.Bytes{N: host}, Disk: runfile.Bytes{N: 5}}
	}
	sizes := func(e *Env, r plan.Request, mem runfile.Memory) (all [][3]int64) {
		list, err := e.sizing(r, mem)
		ok(t, err)
		for _, r := range list {
			if r.TokenBytes != 0 {
				t.Error("sizes depend on tokens in memory")
			}
			all = append(all, [3]int64{r.DeviceBytes, r.HostBytes, r.DiskBytes})
		}
		return all
	}
	for _, c := range []struct {
		what string
		mem  runfile.Memory
		want [][3]int64
	}{
		{"both given", given(7, 9), [][3]int64{{7, 9, 5}}},
		{"the device's given", given(7, 0), [][3]int64{{7, 400, 5}, {7, 600, 5}, {7, 800, 5}}},
		{"the host's given", given(0, 9), [][3]int64{{70, 9, 5}, {70, 9, 5}, {80, 9, 5}}},
		{"none given", runfile.Memory{Disk: auto}, [][3]int64{{70, 400, unlimitedDisk}, {70, 600, unlimitedDisk},
			{80, 800, unlimitedDisk}}},
	} {
		if got := sizes(e, r, c.mem); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
	r.Device.TotalBytes = 0
	if got := sizes(e, r, given(0, 9)); got[2][0] != 40 {
		t.Errorf("of a device whose memory is not known it is %v", got)
	}
	r.Device.Unified = true
	if got := sizes(e, r, given(0, 9)); len(got) != 1 || got[0][0] != 7 {
		t.Errorf("of a unified device it is %v", got)
	}
	shared := &Env{Tests: e.Tests, Cluster: &hosts.Cluster{Hosts: 4, Local: []int{0, 1}}}
	if got := sizes(shared, r, given(0, 0)); got[2][1] != 400 {
		t.Errorf("two processes on a machine have %v", got)
	}
	if left, total, err := e.hostMemory(); left != 100 || total != 800 || err != nil {
		t.Errorf("the host has %d of %d, %v", left, total, err)
	}
	if left, total, err := (&Env{}).hostMemory(); left <= 0 || total < left || err != nil {
		t.Errorf("the host has %d of %d, %v", left, total, err)
	}
}

// Processes that share a drive are those on the machine, or all where state is in the file system of the output
// directory.
func TestDiskSharers(t *testing.T) {
	dir := t.TempDir()
	c := &runfile.Config{OutputDir: dir}
	if n := (&Env{}).diskSharers(c, dir); n != 1 {
		t.Errorf("alone it is %d", n)
	}
	e := &Env{Cluster: &hosts.Cluster{Hosts: 4, Local: []int{0, 1}}}
	if n := e.diskSharers(c, filepath.Join(dir, "state")); n != 4 {
		t.Errorf("of a shared drive it is %d", n)
	}
	if n := e.diskSharers(c, "/proc"); n != 2 {
		t.Errorf("of the machine's drive it is %d", n)
	}
}

// A batch has the micro-batches of a step and the targets of all.
func TestBatches(t *testing.T) {
	b := BatchOf([]data.MicroBatch{{TargetTokens: 3, Micro: batch.Micro{IDs: []int32{1}}}, {TargetTokens: 4}})
	if b.Targets != 7 || len(b.Micro) != 2 || len(b.Micro[0].IDs) != 1 {
		t.Errorf("%+v", b)
	}
	var examples []data.Example
	for i := range int32(4) {
		examples = append(examples, data.Example{InputIDs: []int32{i, 9}, Labels: []int32{i, 9}})
	}
	b, err := Unpacked(examples, plan.Numerics{MicroBatches: 2, MicroBatch: 2, SequenceLen: 3})
	ok(t, err)
	if len(b.Micro) != 2 || b.Targets != 4 || b.Micro[0].IDs[3] != 1 || b.Micro[1].IDs[0] != 2 {
		t.Errorf("%+v", b)
	}
	if _, err := Unpacked(examples, plan.Numerics{MicroBatches: 2, MicroBatch: 2, SequenceLen: 1}); err == nil {
		t.Error("examples that are longer than a row have a batch")
	}
}

// Samples have caches for as many texts as there is room for, at most as many positions as the model has.
func TestSampleMemoryAsks(t *testing.T) {
	m := SampleMemory{Caches: nn.Caches{Sequences: 4, Positions: 90}, Bytes: 5}
	f := plan.Fitting{Request: plan.Request{Model: &model.Model{MaxPositions: 64}, ProgramBytes: 7},
		OutputsOf: func(plan.Numerics) plan.Outputs { return plan.Outputs{NoClip: true} }}
	with := m.with(f, 3)
	if out := with.OutputsOf(plan.Numerics{}); out.LogitRows != 3 || out.Caches != TextCaches(3, 64) ||
		!out.NoClip || with.ProgramBytes != 12 || f.ProgramBytes != 7 {
		t.Errorf("it asks for %+v, of a program of %d bytes", out, with.ProgramBytes)
	}
	short, long := TextCaches(3, 64), TextCaches(3, 300)
	if short != (nn.Caches{Sequences: 3, Positions: 64, BlockRows: 64, Blocks: 3}) ||
		long != (nn.Caches{Sequences: 3, Positions: 300, BlockRows: 128, Blocks: 9}) {
		t.Errorf("texts have the caches %+v, %+v", short, long)
	}
	p := &plan.Plan{}
	if got, err := (SampleMemory{}).Fit(t.Context(), f, p); got != p || err != nil || (SampleMemory{}).check(t.Context(),
		f) != nil {
		t.Errorf("without samples there is another plan: %v", err)
	}
}
