package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/device/cuda"
	"github.com/millrace/millrace/device/null"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/vfs"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

// newOptions measure the CPU device and no drive, and keep nothing. It is checked in the end that all memory came back.
func newOptions(t testing.TB) Options {
	t.Helper()
	accounts := hostmem.New()
	t.Cleanup(func() {
		if n, _ := accounts.Total(); n != 0 {
			t.Errorf("%d bytes of host memory are still reserved: %v", n, accounts.Usage())
		}
	})
	return Options{Accounts: accounts, Progress: io.Discard, Device: "cpu",
		Open: func(_ string, a *hostmem.Accounts) ([]device.Device, device.Device, error) {
			d, err := cpu.New(cpu.Options{Workers: 2, Accounts: a})
			return []device.Device{d}, d, err
		}}
}

// at measures the drive of a directory, too.
func at(o Options, dir string) Options {
	o.Paths = []string{dir}
	return o
}

// entries are the names below a directory, that of itself included.
func entries(t testing.TB, dir string) (names []string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		names = append(names, path)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return names
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func smallProbeFor(device.Info) probeSizes { return smallProbe }

var smallProbe = probeSizes{positions: 64, hidden: 128, intermediate: 192, lengths: []int{16, 64}, heads: 4, kvHeads: 2, headDim: 32,
	bytes: 1 << 20, stateBytes: 1 << 20, noiseElems: 1 << 12, long: 2, pieceElems: 1 << 12, diskBytes: 1 << 20,
	ops: operationSizes{rows: 64, length: 32, width: 64, headDims: []int{16, 64}, keyHeads: 1, heads: 2, deltaDim: 16,
		tokens: 64, each: []int{4, 32}, hidden: 32, inner: 48, tile: 64}}

func TestProbe(t *testing.T) {
	o, dir := newOptions(t), t.TempDir()
	m, err := measure(context.Background(), at(o, dir), smallProbeFor, 0.02)
	if err != nil {
		t.Fatal(err)
	}
	if m.DuplexUploadBytesPerSec != 0 || m.DeviceCopyBytesPerSec != 0 || m.AdamWUnderCopiesBytesPerSec != 0 ||
		m.DeviceMemoryBytes != 0 {
		t.Errorf("a link that there is not: %+v", m)
	}
	if len(m.AttentionByLength) != 2 || m.AttentionByLength[0].SequenceLen != 16 || m.AttentionByLength[1].SequenceLen != 64 ||
		m.AttentionFLOPsPerSec != m.AttentionByLength[1].FLOPsPerSec {
		t.Errorf("attention: %+v, and %v for 2,048", m.AttentionByLength, m.AttentionFLOPsPerSec)
	}
	if len(m.F32AttentionByLength) != 2 || m.F32AttentionFLOPsPerSec != m.F32AttentionByLength[1].FLOPsPerSec ||
		m.F32DeviceBytesPerSec <= 0 {
		t.Errorf("in fp32: attention %+v, and %v for 2,048; operations %v", m.F32AttentionByLength, m.F32AttentionFLOPsPerSec,
			m.F32DeviceBytesPerSec)
	}
	if n := 2 * (2*2*2 + 4 + 2*2 + 3); len(m.Operations) != n { // of each type
		t.Errorf("%d rates of operations, want %d: %+v", len(m.Operations), n, m.Operations)
	}
	if !(m.AdamW8BytesPerSec > 0) {
		t.Errorf("an update with moments in 8 bits: %v", m.AdamW8BytesPerSec)
	}
	if err := m.Check(); err != nil || m.DiskReadBytesPerSec <= 0 || m.DiskWriteBytesPerSec <= 0 || m.DiskPath != dir {
		t.Errorf("%+v: %v", m, err)
	}
	if left := entries(t, dir); len(left) != 1 {
		t.Errorf("the probe has left %v", left)
	}
	if m, err := measure(context.Background(), o, smallProbeFor, 0.02); err != nil || m.DiskReadBytesPerSec != 0 {
		t.Errorf("without a path: %+v, %v", m, err)
	}
	_, err = measure(context.Background(), at(o, filepath.Join(dir, "none")), smallProbeFor, 0.02)
	if !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), "--path") || strings.Contains(err.Error(), "\n") {
		t.Errorf("a path that is not there: %v", err)
	}
}

// The kernels and the driver layer of a GPU take what the probe asks for, with heads of 128.
func TestProbeOfAStandIn(t *testing.T) {
	o := newOptions(t)
	gpu := standin.New(standin.Options{MemoryBytes: 256 << 20})
	o.Open = func(_ string, a *hostmem.Accounts) ([]device.Device, device.Device, error) {
		host, err := cpu.New(cpu.Options{Workers: 2, Accounts: a})
		if err != nil {
			return nil, nil, err
		}
		d, err := cuda.Open(cuda.Options{API: gpu.API(), OwnProducts: true, Accounts: a})
		return []device.Device{d}, host, err
	}
	tiny := probeSizes{positions: 32, hidden: 64, intermediate: 64, lengths: []int{16, 64}, heads: 2, kvHeads: 1, headDim: 128,
		bytes: 1 << 16, stateBytes: 1 << 16, noiseElems: 1 << 12, long: 1,
		ops: operationSizes{rows: 64, length: 64, width: 128, headDims: []int{64, 128, 256, 512}, keyHeads: 1, heads: 2,
			deltaDim: 16, tokens: 32, each: []int{16}, hidden: 64, inner: 32, tile: 64}}
	m, err := measure(t.Context(), o, func(device.Info) probeSizes { return tiny }, 1e-5)
	if err != nil {
		t.Fatal(err)
	}
	// Forward and backward: 4 widths of heads in bf16 and 3 in f32 and with a soft cap, and in each type 9 others; and
	// updates with moments in 8 bits.
	if n := 2*(4+3+3+3) + 2*9 + 1; len(m.Operations) != n {
		t.Errorf("%d rates of operations, want %d: %+v", len(m.Operations), n, m.Operations)
	}
	if m.Check() != nil || len(m.AttentionByLength) != 2 || m.DeviceCopyBytesPerSec <= 0 || m.AdamWUnderCopiesBytesPerSec <= 0 ||
		m.DeviceMemoryBytes != 256<<20 {
		t.Errorf("%+v", m)
	}
	if err := gpu.Check(); err != nil {
		t.Error(err)
	}
}

// tuned is a device that notes the products that its choice of algorithms is asked for.
type tuned struct {
	device.Device
	products []device.Product
	late     bool // a stream had multiplied before
	worked   bool
}

func (d *tuned) Info() device.Info {
	i := d.Device.Info()
	i.TunesProducts = true
	return i
}

func (d *tuned) TuneProducts(products []device.Product, scratch device.Mem) error {
	var operands device.Operands
	for _, p := range products {
		operands.MatMul(p.C, p.A, p.B, p.MatMulFlags) // which looks at shapes
		for _, m := range []device.Mem{p.C.Mem, p.A.Mem, p.B.Mem} {
			if m.Buf != scratch.Buf || m.Off < scratch.Off || m.Off+m.Len > scratch.Off+scratch.Len {
				return errors.New("an operand is not in the memory that was lent")
			}
		}
	}
	d.products = append(d.products, products...)
	return nil
}

func (*tuned) Algorithms() []string         { return nil }
func (*tuned) UseAlgorithms([]string) error { return nil }

func (d *tuned) NewStream(name string) (device.Stream, error) {
	s, err := d.Device.NewStream(name)
	return &tunedStream{s, d}, err
}

type tunedStream struct {
	device.Stream
	device *tuned
}

func (s *tunedStream) MatMul(c, a, b device.Mat, f device.MatMulFlags) {
	s.device.late = s.device.late || !slices.ContainsFunc(s.device.products, func(p device.Product) bool {
		return p.A.DType == a.DType && p.MatMulFlags == f && p.C.Rows == c.Rows && p.C.Cols == c.Cols && p.A.Cols == a.Cols
	})
	s.device.worked = true
	s.Stream.MatMul(c, a, b, f)
}

// Products are measured with the algorithms that a run would choose.
func TestProbeTunesProducts(t *testing.T) {
	o := newOptions(t)
	d := &tuned{Device: null.New(null.Options{})}
	o.Open = func(_ string, a *hostmem.Accounts) ([]device.Device, device.Device, error) {
		host, err := cpu.New(cpu.Options{Workers: 2, Accounts: a})
		return []device.Device{d}, host, err
	}
	if _, err := measure(context.Background(), o, smallProbeFor, 0.02); err != nil {
		t.Fatal(err)
	}
	if len(d.products) != 2*6 || !d.worked || d.late { // in f32 and in bf16
		t.Errorf("%d products were tuned; a product without a choice is measured: %t", len(d.products), d.late)
	}
}

// Operands are sized for the device: a block of a 7B model on a GPU, less on a small one, and never more of the host
// than there is.
func TestProbeSizes(t *testing.T) {
	unified := probeSizesFor(device.Info{Unified: true}, 1<<40)
	large := probeSizesFor(device.Info{MemoryBytes: 80 << 30}, 512<<30)
	small := probeSizesFor(device.Info{MemoryBytes: 8 << 30}, 8<<30)
	least := probeSizesFor(device.Info{MemoryBytes: 8 << 30}, 0)
	if unified.stateBytes != 256<<20 || unified.hidden != 1024 {
		t.Errorf("a CPU: %+v", unified)
	}
	if large.headDim != 128 || !cmp.Equal(large.lengths, []int{2048, 8192, 32768}) || large.stateBytes != 2<<30 || large.bytes != 1<<30 {
		t.Errorf("a large GPU: %+v", large)
	}
	if small.positions >= large.positions || small.stateBytes+2*small.bytes > 2<<30 || least.stateBytes != 64<<20 || least.bytes != 64<<20 {
		t.Errorf("a small GPU: %+v; with no memory known %+v", small, least)
	}
	for _, s := range []probeSizes{unified, large, small, least} {
		last := s.lengths[len(s.lengths)-1]
		for _, n := range s.lengths {
			if last%n != 0 {
				t.Errorf("%d positions are no whole sequences of %d", last, n)
			}
		}
	}
}

// Nothing that the probe has multiplied, added up or divided is zero, and nothing is infinite, however often it is
// repeated.
func TestProbeTakesRandomNumbers(t *testing.T) {
	o := newOptions(t)
	seen := map[string]bool{}
	o.Open = func(_ string, a *hostmem.Accounts) ([]device.Device, device.Device, error) {
		d, err := cpu.New(cpu.Options{Workers: 2, Accounts: a})
		if err != nil {
			return nil, nil, err
		}
		w := &watched{d, t, seen}
		return []device.Device{w}, w, nil
	}
	if _, err := measure(context.Background(), o, smallProbeFor, 0.001); err != nil {
		t.Fatal(err)
	}
	for _, op := range []string{"MatMul", "Attention", "AttentionGrad", "RMSNorm", "GLU", "AdamW"} {
		if !seen[op] {
			t.Errorf("the probe does no %s", op)
		}
	}
}

// watched is a device whose streams look at what operations are about to read.
type watched struct {
	device.Device
	t    *testing.T
	seen map[string]bool
}

func (d *watched) NewStream(name string) (device.Stream, error) {
	s, err := d.Device.NewStream(name)
	if err != nil {
		return nil, err
	}
	r, err := hostmem.New().Reserve("sum", 8)
	if err != nil {
		return nil, err
	}
	b, err := d.Register(r)
	d.t.Cleanup(func() { r.Close() })
	return &watchedStream{Stream: s, watched: d, sum: b, bytes: r.Bytes()}, err
}

type watchedStream struct {
	device.Stream
	watched *watched
	sum     device.Buffer
	bytes   []byte
}

func (w *watchedStream) Close() error { return errors.Join(w.sum.Close(), w.Stream.Close()) }

func (w *watchedStream) look(op string, mats ...device.Mat) {
	w.watched.seen[op] = true
	for i, m := range mats {
		w.Stream.SumSquares(device.Whole(w.sum), device.NewVec(m.Mem, m.DType, m.Rows*m.Cols))
		if err := w.Stream.Sync(); err != nil {
			w.watched.t.Error(err)
		}
		if sum := math.Float64frombits(binary.LittleEndian.Uint64(w.bytes)); !(sum > 0) || math.IsInf(sum, 1) {
			w.watched.t.Errorf("%s: the squares of operand %d sum up to %v", op, i, sum)
		}
	}
}

func (w *watchedStream) MatMul(c, a, b device.Mat, f device.MatMulFlags) {
	w.look("MatMul", a, b)
	if f.Accumulate {
		w.look("MatMul", c)
	}
	w.Stream.MatMul(c, a, b, f)
}

func (w *watchedStream) Attention(out, lse, q, k, v device.Mat, spec device.AttentionSpec) {
	w.look("Attention", q, k, v)
	w.Stream.Attention(out, lse, q, k, v, spec)
}

func (w *watchedStream) AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta device.Mat, spec device.AttentionSpec) {
	w.look("AttentionGrad", dout, q, k, v, out)
	w.Stream.AttentionGrad(dq, dk, dv, dout, q, k, v, out, lse, delta, spec)
}

func (w *watchedStream) RMSNorm(y, rstd, x, scale device.Mat, spec device.NormSpec) {
	w.look("RMSNorm", x, scale)
	w.Stream.RMSNorm(y, rstd, x, scale, spec)
}

func (w *watchedStream) GLU(y, gateUp device.Mat, spec device.GLUSpec) {
	w.look("GLU", gateUp)
	w.Stream.GLU(y, gateUp, spec)
}

func (w *watchedStream) AdamW(args device.AdamWArgs, tally device.Mem) {
	w.look("AdamW", args.M, args.Weights, args.Grad)
	w.Stream.AdamW(args, tally)
}

// On a device with memory of its own, the probe measures the link both ways at once, and the optimizer during these
// copies; with another one, copies from that.
func TestProbeOfALink(t *testing.T) {
	o := newOptions(t)
	o.Open = func(_ string, a *hostmem.Accounts) ([]device.Device, device.Device, error) {
		host, err := cpu.New(cpu.Options{Workers: 2, Accounts: a})
		return []device.Device{null.New(null.Options{}), null.New(null.Options{})}, host, err
	}
	m, err := measure(context.Background(), o, smallProbeFor, 0.02)
	if err != nil {
		t.Fatal(err)
	}
	if total, err := hostmem.Total(); err == nil && m.HostMemoryBytes != total {
		t.Errorf("a host with %d bytes, want %d", m.HostMemoryBytes, total)
	}
	if m.Check() != nil || m.DuplexUploadBytesPerSec <= 0 || m.DuplexDownloadBytesPerSec <= 0 || m.DeviceCopyBytesPerSec <= 0 ||
		m.AdamWUnderCopiesBytesPerSec <= 0 || m.UploadUnderAdamWBytesPerSec <= 0 ||
		m.DownloadUnderAdamWBytesPerSec <= 0 || m.PeerCopyBytesPerSec <= 0 {
		t.Errorf("%+v", m)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p := &prober{probeSizes: smallProbe, ctx: ctx}
	d := null.New(null.Options{})
	s, err := d.NewStream("cancelled")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := p.together(1, task{s, 1, func() {}}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// A probe that is cancelled leaves nothing, wherever it is; one that was killed leaves files, and the next one takes
// them away.
func TestProbeStops(t *testing.T) {
	o, dir := newOptions(t), t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := measure(ctx, at(o, dir), smallProbeFor, 0.02); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, probeDir), 0o777); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, probeDir, "free-000001.extent"), "left by a probe that was killed")
	p := &prober{probeSizes: smallProbe, ctx: ctx, Options: at(o, dir)}
	if err := p.disk(&plan.Machine{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if left := entries(t, dir); len(left) != 1 {
		t.Errorf("the probe has left %v", left)
	}
}

// A drive without room is not measured, and has no directory of the probe's afterwards.
func TestProbeOfAFullDrive(t *testing.T) {
	o, dir := newOptions(t), t.TempDir()
	free, err := vfs.OS{}.FreeBytes(dir)
	if err != nil || free > 1<<44 {
		t.Skip("how much is free cannot be told, or is more than can be asked for: ", err)
	}
	p := &prober{probeSizes: smallProbe, ctx: t.Context(), Options: at(o, dir)}
	p.pieceElems, p.diskBytes = plan.DefaultPieceElems, 2*free
	if err := p.disk(&plan.Machine{}); !errors.Is(err, syscall.ENOSPC) || errors.Is(err, blame.ErrRequest) || strings.Contains(err.Error(), "memory.path") {
		t.Errorf("%v", err)
	}
	if left := entries(t, dir); len(left) != 1 {
		t.Errorf("the probe has left %v", left)
	}
}

// Plans take the disk's rates where they were measured on the drive in question, and say where they were not.
func TestMachineOfADrive(t *testing.T) {
	o, dir := newOptions(t), t.TempDir()
	o.CacheDir = t.TempDir()
	kept := Guess(device.Info{})
	kept.Name, kept.DiskReadBytesPerSec, kept.DiskWriteBytesPerSec, kept.DiskPath = "cpu", 7e9, 5e9, dir
	if err := plan.WriteMachine(filepath.Join(o.CacheDir, MachineFile), kept); err != nil {
		t.Fatal(err)
	}
	dev := device.Info{Name: "cpu"}
	for _, paths := range [][]string{nil, {dir}, {filepath.Join(dir, "not", "there", "yet")}} {
		if m := Rates(o.CacheDir, dev, paths); !cmp.Equal(m, kept) {
			t.Errorf("%q: %+v", paths, m)
		}
	}
	if !vfs.SameDrive("/proc", "/proc/self") || vfs.SameDrive("/proc", dir) {
		t.Skip("no second file system to compare with")
	}
	if m := Rates(o.CacheDir, dev, []string{"/proc"}); m.DiskReadBytesPerSec == 7e9 ||
		m.AdamWBytesPerSec != kept.AdamWBytesPerSec || !strings.Contains(m.Name, "--path") {
		t.Errorf("another drive: %+v", m)
	}
	if m := Rates(o.CacheDir, device.Info{Name: "another"}, []string{dir}); !strings.Contains(m.Name, "guess") ||
		m.Check() != nil {
		t.Errorf("another device: %+v", m)
	}
}

// A GPU that was not measured is guessed to be one of which published figures are known, by its multiprocessors; and
// why it is a guess is said: nothing was measured, another device was, or the file cannot be read.
func TestGuess(t *testing.T) {
	known, err := plan.FindMachine("rtx3090-pc-24gb-64gb")
	if err != nil {
		t.Fatal(err)
	}
	got := Guess(device.Info{Workers: 82})
	for name, pair := range map[string][2]float64{"f32": {got.F32FLOPsPerSec, known.Machine.F32FLOPsPerSec},
		"bf16":      {got.BF16FLOPsPerSec, known.Machine.BF16FLOPsPerSec},
		"attention": {got.AttentionFLOPsPerSec, known.Machine.AttentionFLOPsPerSec},
		"memory":    {got.DeviceBytesPerSec, known.Machine.DeviceBytesPerSec},
		"link":      {got.UploadBytesPerSec, known.Machine.UploadBytesPerSec}} {
		if math.Abs(pair[0]/pair[1]-1) > 0.02 {
			t.Errorf("%s: %v, of the RTX 3090 %v", name, pair[0], pair[1])
		}
	}
	o := newOptions(t)
	o.CacheDir = t.TempDir()
	dev := device.Info{Name: "a GPU (cuda:1, cuBLASLt 13.1.0)", Kind: "a GPU (cuBLASLt 13.1.0)", Workers: 82}
	path := filepath.Join(o.CacheDir, MachineFile)
	other := Guess(dev)
	library := "a GPU, own matrix products"
	differ := fmt.Sprintf("what was measured is %q, and this device is %q", library, dev.Name)
	for _, c := range []struct {
		kept, kind, want string
	}{{"", "", "not measured"}, {library, "", differ}, {library, library, differ}, {dev.Name, "", ""},
		{"a GPU (cuda:0, cuBLASLt 13.1.0)", dev.Kind, ""}} {
		if c.kept != "" {
			other.Name, other.Kind = c.kept, c.kind
			if err := plan.WriteMachine(path, other); err != nil {
				t.Fatal(err)
			}
		}
		if m, why := Measured(o.CacheDir, dev, nil); !strings.Contains(why, c.want) || (why == "") != (c.want == "") ||
			m.Check() != nil {
			t.Errorf("%q is kept: %q", c.kept, why)
		}
	}
	writeFile(t, path, "{")
	if m, why := Measured(o.CacheDir, dev, nil); !strings.Contains(why, path) || m.Check() != nil {
		t.Errorf("a broken file: %q", why)
	}
}

func TestLoad(t *testing.T) {
	for text, want := range map[string]float64{"0.20 1.00 9.00 1/100 5": 0.2, "7.25 0 0 2/3 4": 7.25, "0.00": 0, "": -1, "busy": -1, "-1 0 0": -1, "NaN 0 0": -1} {
		if got := loadOf(text); (got == nil) != (want < 0) || got != nil && *got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestABusyMachineKeepsBetterRates: rates keep the load under which they were measured. Those of a busy machine do not take the place of
// better ones unless that is asked for, and a plan says so.
func TestABusyMachineKeepsBetterRates(t *testing.T) {
	cores := float64(runtime.NumCPU())
	quiet, alsoQuiet, busy, busier := 0.1*cores, 0.2*cores, 5*cores, 6*cores
	for _, c := range []struct {
		name     string
		old, new *float64
		force    bool
		kept     bool
	}{
		{"nothing was kept", &busier, nil, false, true}, // the new load is not known
		{"quieter", &busy, &quiet, false, true},
		{"less busy", &busier, &busy, false, true},
		{"busier", &quiet, &busy, false, false},
		{"both busy", &busy, &busier, false, false},
		{"as busy", &busy, &busy, false, true},
		{"kept by an older version", nil, &busy, false, false},
		{"forced", &quiet, &busy, true, true},
		{"both quiet", &quiet, &alsoQuiet, false, true},
	} {
		o, said := newOptions(t), &strings.Builder{}
		o.CacheDir, o.Progress, o.Force = t.TempDir(), said, c.force
		first := o
		first.Progress, first.load = io.Discard, func() *float64 { return c.old }
		old, err := measureAndKeep(t.Context(), first, smallProbeFor, 0.0001)
		if err != nil {
			t.Fatal(err)
		}
		o.load = func() *float64 { return c.new }
		if _, err := measureAndKeep(t.Context(), o, smallProbeFor, 0.0001); err != nil {
			t.Fatal(err)
		}
		kept, err := plan.ReadMachine(filepath.Join(o.CacheDir, MachineFile))
		if err != nil {
			t.Fatal(err)
		}
		want := c.old
		if c.kept {
			want = c.new
		}
		if (kept.ProbeLoad == nil) != (want == nil) || want != nil && *kept.ProbeLoad != *want || strings.Contains(said.String(), "--force") == c.kept {
			t.Errorf("%s: a load of %v is kept; said: %s", c.name, kept.ProbeLoad, said)
		}
		m, _ := Measured(o.CacheDir, device.Info{Name: old.Name, Kind: old.Kind}, nil)
		if strings.Contains(m.Name, "measured at a load of") != isBusy(want) {
			t.Errorf("%s: a plan says %q", c.name, m.Name)
		}
	}
}

// Rates that cannot be kept are shown: for a cache that is open to every user the warning comes before the work.
func TestRatesThatAreNotKept(t *testing.T) {
	o, said := newOptions(t), &strings.Builder{}
	o.CacheDir, o.Progress = t.TempDir(), said
	if err := os.Chmod(o.CacheDir, 0o777); err != nil {
		t.Fatal(err)
	}
	atOpen := "it was not opened"
	open := o.Open
	o.Open = func(name string, a *hostmem.Accounts) ([]device.Device, device.Device, error) {
		atOpen = said.String()
		return open(name, a)
	}
	m, err := measureAndKeep(t.Context(), o, smallProbeFor, 0.001)
	if err != nil || m.Check() != nil || len(entries(t, o.CacheDir)) != 1 {
		t.Errorf("%+v, error %v; in the cache: %v", m, err, entries(t, o.CacheDir))
	}
	for _, want := range []string{"will not be kept", "MILLRACE_CACHE", o.CacheDir + " can be written to by every user"} {
		if !strings.Contains(atOpen, want) {
			t.Errorf("no %q before the work: %q", want, atOpen)
		}
	}
	o.CacheDir = filepath.Join(o.CacheDir, "file")
	writeFile(t, o.CacheDir, "")
	m, err = measureAndKeep(t.Context(), o, smallProbeFor, 0.001)
	if !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), "MILLRACE_CACHE") || m == nil ||
		m.Check() != nil {
		t.Errorf("a file: %+v, error %v", m, err)
	}
}

// Several drives are measured one by one, and then all at once; a plan for them has these rates, in the order of its
// paths, and one for some of them has what is known of those. Two directories in one file system are refused.
func TestProbeOfDrives(t *testing.T) {
	o := newOptions(t)
	a, b := t.TempDir(), t.TempDir()
	o.Paths = []string{a, b}
	p := &prober{probeSizes: smallProbe, ctx: t.Context(), Options: o}
	m := Guess(device.Info{})
	if err := p.disk(&m); err != nil {
		t.Fatal(err)
	}
	if len(m.Drives) != 2 || m.Drives[0].Path != a || m.Drives[1].Path != b || m.DiskPath != "" || m.Check() != nil ||
		m.DiskReadBytesPerSec <= 0 || m.SaveBytesPerSec <= 0 {
		t.Errorf("%+v", m)
	}
	for _, dir := range o.Paths {
		if left := entries(t, dir); len(left) != 1 {
			t.Errorf("the probe has left %v", left)
		}
	}
	if _, err := measure(t.Context(), o, smallProbeFor, 0.02); !errors.Is(err, blame.ErrRequest) ||
		!strings.Contains(err.Error(), "in one file system") {
		t.Errorf("two directories in one file system: %v", err)
	}
}

func TestMachineOfDrives(t *testing.T) {
	o, here := newOptions(t), t.TempDir()
	if vfs.SameDrive("/proc", here) || vfs.SameDrive("/sys", here) || vfs.SameDrive("/proc", "/sys") ||
		!vfs.SameDrive("/proc", "/proc/self") || !vfs.SameDrive("/sys", "/sys/dev") {
		t.Skip("it needs three directories on different file systems, and this machine has fewer")
	}
	o.CacheDir = t.TempDir()
	kept := Guess(device.Info{})
	kept.Name, kept.DiskReadBytesPerSec, kept.DiskWriteBytesPerSec, kept.SaveBytesPerSec = "cpu", 9e9, 4e9, 1e9
	kept.Drives = []plan.DriveRates{{Path: here, ReadBytesPerSec: 7e9, WriteBytesPerSec: 2e9},
		{Path: "/proc", ReadBytesPerSec: 3e9, WriteBytesPerSec: 2.5e9}}
	if err := plan.WriteMachine(filepath.Join(o.CacheDir, MachineFile), kept); err != nil {
		t.Fatal(err)
	}
	dev := device.Info{Name: "cpu"}
	guess := Guess(dev)
	for _, c := range []struct {
		paths       []string
		read, write float64 // in all
		first       float64 // of the first drive; 0: there is one
		said        string
	}{
		{[]string{here, "/proc"}, 9e9, 4e9, 7e9, ""},
		{[]string{"/proc/self", filepath.Join(here, "new")}, 9e9, 4e9, 3e9, ""},
		{[]string{"/proc"}, 3e9, 2.5e9, 0, ""},
		{nil, 7e9, 2e9, 0, ""},
		{[]string{"/sys"}, guess.DiskReadBytesPerSec, guess.DiskWriteBytesPerSec, 0,
			"a guess; run `millrace probe --path DIR`"},
		{[]string{"/proc", "/sys"}, 3e9 + guess.DiskReadBytesPerSec, 2.5e9 + guess.DiskWriteBytesPerSec, 3e9,
			"a guess; run `millrace probe --path /proc --path /sys`"},
		{[]string{here, here}, 14e9, 4e9, 7e9, "added up"},
	} {
		m := Rates(o.CacheDir, dev, c.paths)
		if m.DiskReadBytesPerSec != c.read || m.DiskWriteBytesPerSec != c.write || (len(m.Drives) > 0) != (c.first > 0) ||
			c.first > 0 && m.Drives[0].ReadBytesPerSec != c.first || (m.Name == "cpu") != (c.said == "") ||
			!strings.Contains(m.Name, c.said) {
			t.Errorf("%v: %+v", c.paths, m)
		}
	}
}
