package cuda_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu/kernels"
	"github.com/millrace/millrace/device/cuda"
	"github.com/millrace/millrace/device/cuda/driver"
	cudakernels "github.com/millrace/millrace/device/cuda/kernels"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

// Each mistake of a user gives one line that says what is wrong and how to fix it.
func TestBadInput(t *testing.T) {
	failing := func(call string, r driver.Result) standin.Options {
		return standin.Options{Fail: func(c string, _ int) driver.Result {
			if c == call {
				return r
			}
			return driver.Success
		}}
	}
	for _, c := range []struct {
		name    string
		gpu     standin.Options
		ordinal int
		visible string
		want    []string
	}{
		{"wrong ordinal", standin.Options{}, 3, "", []string{"device cuda:3: there is no such GPU; there is only cuda:0 (", "1.00 GiB)"}},
		{"negative ordinal", standin.Options{}, -1, "", []string{"no such GPU"}},
		{"no visible device", failing("Init", driver.NoDevice), 0, "-1", []string{"the driver shows no GPU", `CUDA_VISIBLE_DEVICES is "-1": unset it`}},
		{"too old a GPU", standin.Options{Capability: [2]int32{7, 5}}, 0, "", []string{"has compute capability 7.5, and 8.0 or newer is needed", "set device to cpu"}},
		{"no memory for the workspace", standin.Options{MemoryBytes: 1 << 20}, 0, "",
			[]string{"allocate 128.0 MiB for workspace: 1.0 MiB of 1.0 MiB are free",
				"CUDA_ERROR_OUT_OF_MEMORY", "end other programs"}},
		{"GPU in use", failing("DevicePrimaryCtxRetain", 46), 0, "", []string{"cuDevicePrimaryCtxRetain", "in use by another process"}},
		{"PTX too new", failing("ModuleLoadData", driver.UnsupportedPTXVersion), 0, "", []string{"kernel ", "the driver is too old"}},
		{"kernel module is missing", failing("Init", driver.Unknown), 0, "", []string{"cuInit: unknown error: is the kernel module loaded"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.visible != "" {
				t.Setenv("CUDA_VISIBLE_DEVICES", c.visible)
			}
			c.gpu.Load = loadOnce
			gpu := standin.New(c.gpu)
			d, err := cuda.Open(options(gpu, library, c.ordinal))
			if err == nil {
				t.Fatal("it opens", d.Info())
			}
			oneLine(t, err, append(c.want, fmt.Sprintf("device cuda:%d: ", c.ordinal))...)
			if err := gpu.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

func oneLine(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than a line: %q", err)
	}
}

func TestInfo(t *testing.T) {
	d := open(t, standin.Options{MemoryBytes: 700 << 20}, library)
	defer mustClose(t, d)
	i := d.Info()
	notOffered := int64(700<<20) - i.MemoryBytes // for the driver, which takes more when it needs it
	if !strings.Contains(i.Name, "cuda:0, compute capability 8.0, stand-in for cuBLASLt") || i.Unified || i.MemoryBytes <= 0 || i.Workers < 1 {
		t.Errorf("%+v", i)
	}
	if i.OverheadBytes < 128<<20 || i.OverheadBytes > 130<<20 || notOffered < 500<<20 || notOffered > 530<<20 {
		t.Errorf("an overhead of %d bytes; %d of the memory are not offered", i.OverheadBytes, notOffered)
	}
	b, err := d.Alloc("arena", i.MemoryBytes-i.OverheadBytes) // what is offered can be had
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, b)
	if err := d.PrepareAttention(100, 2, 512, tensor.BF16); err != nil {
		t.Error(err)
	}
	if ok, _ := regexp.MatchString(`^CUDA, .*, compute capability 8\.0, driver of CUDA 1\d\.\d, sm80 kernels [0-9a-f]{12}, stand-in for cuBLASLt$`, i.Numerics); !ok {
		t.Errorf("computed on %q", i.Numerics)
	}
	oneLine(t, d.PrepareAttention(100, 2, 513, tensor.BF16), "heads of 513 columns", "at most 512 in bf16")
	oneLine(t, d.PrepareAttention(100, 2, 257, tensor.F32), "heads of 257 columns", "at most 256 in f32")
}

// A card with a screen keeps more memory free for it, and says so.
func TestScreen(t *testing.T) {
	offered := func(screen bool) (int64, string) {
		var said []string
		gpu := standin.New(standin.Options{MemoryBytes: 4 << 30, Screen: screen, Load: loadOnce})
		o := options(gpu, ownProducts, 0)
		o.Note = func(line string) { said = append(said, line) }
		d, err := cuda.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		mustClose(t, &rig{d, gpu})
		return d.Info().MemoryBytes, strings.Join(said, "\n")
	}
	without, quiet := offered(false)
	with, said := offered(true)
	if without-with != 1<<30 {
		t.Errorf("a screen gets %d bytes", without-with)
	}
	if strings.Contains(quiet, "screen") || !strings.Contains(said, "device cuda:0: kernels have a time limit there") ||
		!strings.Contains(said, "1.50 GiB are left free") {
		t.Errorf("without a screen it says %q, with one %q", quiet, said)
	}
}

// streamWithMemory makes a stream, and host memory that its copies may touch. The caller closes all, in the opposite
// order.
func streamWithMemory(t *testing.T, d *cuda.Device) (*hostmem.Region, device.Buffer, device.Stream) {
	t.Helper()
	region, err := hostmem.New().Reserve("host", 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	pinned, err := d.Register(region)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.NewStream("tested")
	if err != nil {
		t.Fatal(err)
	}
	return region, pinned, s
}

func mustClose(t *testing.T, c interface{ Close() error }) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestAllocError(t *testing.T) {
	d := open(t, standin.Options{MemoryBytes: 160 << 20}, library)
	defer mustClose(t, d)
	_, err := d.Alloc("arena", 48<<20)
	oneLine(t, err, "device cuda:0: allocate 48.0 MiB for arena: 3", "of 160.0 MiB are free: cuMemAlloc: out of memory",
		"lower memory.device")
	_, err = d.Alloc("arena", -1)
	oneLine(t, err, "-1 bytes for arena is not a length")
	b, err := d.Alloc("nothing", 0)
	if err != nil || b.Bytes() != 0 {
		t.Fatal(b, err)
	}
	if err := d.Device.Close(); err == nil || !strings.Contains(err.Error(), "still open") {
		t.Errorf("a device with an open buffer closes: %v", err)
	}
	mustClose(t, b)
}

// Host memory is pinned in stretches of bounded size, and copies are cut at their seams and into pieces.
func TestSeams(t *testing.T) {
	var pinned, copies atomic.Int64
	d := open(t, standin.Options{Fail: func(call string, _ int) driver.Result {
		switch call {
		case "MemHostRegister":
			pinned.Add(1)
		case "MemcpyHtoDAsync", "MemcpyDtoHAsync", "MemcpyAsync":
			copies.Add(1)
		}
		return driver.Success
	}}, ownProducts)
	defer mustClose(t, d)
	const page = hostmem.PageBytes
	d.SetPieces(3*page, 2*page+100)
	pinned.Store(0)
	copies.Store(0)
	accounts := hostmem.New()
	r, err := accounts.Reserve("state", 10*page-7)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	host, err := d.Register(r)
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, host)
	again, err := d.Register(r)
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, again) // the other one keeps it pinned
	if n := pinned.Load(); n != 4 {
		t.Errorf("%d registrations", n)
	}
	b, err := d.Alloc("copy", r.Len())
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, b)
	s, err := d.NewStream("fetch")
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, s)
	for i := range r.Bytes() {
		r.Bytes()[i] = byte(i * 7 / 3)
	}
	want := append([]byte(nil), r.Bytes()...)
	s.Copy(device.Whole(b), device.Whole(host))
	if n := copies.Load(); n != 7 { // 3 pages are two pieces, and the last is less than a page
		t.Errorf("%d copies", n)
	}
	s.Zero(device.Whole(host).Slice(100, 7*page))
	clear(want[100 : 100+7*page])
	s.Copy(device.Whole(host).Slice(5*page, 3*page), device.Whole(b).Slice(page, 3*page))
	for i := range 3 * page {
		want[5*page+i] = byte((page + i) * 7 / 3)
	}
	s.Copy(device.Whole(host).Slice(0, 4*page-50), device.Whole(host).Slice(5*page+3, 4*page-50)) // between two seams each
	copy(want[:4*page-50], append([]byte(nil), want[5*page+3:]...))
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	if string(want) != string(r.Bytes()) {
		t.Error("copies moved the wrong bytes")
	}
}

// Operations work on pinned memory where the driver says that kernels see it at the host's address, and else are
// refused.
func TestOperationsOnHostMemory(t *testing.T) {
	for _, apart := range []bool{false, true} {
		d := open(t, standin.Options{HostApart: apart}, ownProducts)
		defer mustClose(t, d)
		r, err := hostmem.New().Reserve("rows", 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		host, err := d.Register(r)
		if err != nil {
			t.Fatal(err)
		}
		defer mustClose(t, host)
		s, err := d.NewStream("compute")
		if err != nil {
			t.Fatal(err)
		}
		defer mustClose(t, s)
		m := device.NewVec(device.Whole(host).Slice(512, 32), tensor.F32, 8)
		x := hostmem.F32(r.Bytes()[512:544])
		for i := range x {
			x[i] = float32(i)
		}
		refused := ""
		func() {
			defer func() {
				if p := recover(); p != nil {
					refused = fmt.Sprint(p)
				}
			}()
			s.Add(m, m, m)
		}()
		if err := s.Sync(); err != nil {
			t.Error(err)
		}
		if apart != strings.Contains(refused, "host memory, which is only copied") || d.Info().ReachesHost == apart {
			t.Errorf("apart %v: %q, reaches host memory: %v", apart, refused, d.Info().ReachesHost)
		}
		if doubled := x[7] == 14; doubled == apart {
			t.Errorf("apart %v: the sum is %v", apart, x[7])
		}
	}
}

// Many register one region at once: it is pinned once, and as long as anybody has it. The pieces of a region are
// pinned side by side.
func TestRegisterAtOnce(t *testing.T) {
	var opened atomic.Bool
	var asked, pinned atomic.Int64
	second := make(chan struct{})
	d := open(t, standin.Options{Fail: func(call string, _ int) driver.Result {
		switch {
		case !opened.Load(): // and pinned what it has of its own
		case call == "MemHostRegister":
			pinned.Add(1)
			if asked.Add(1) == 2 {
				close(second)
			}
			<-second // without end, if one waits for the other
		case call == "MemHostUnregister":
			pinned.Add(-1)
		}
		return driver.Success
	}}, ownProducts)
	defer mustClose(t, d)
	opened.Store(true)
	const page = hostmem.PageBytes
	d.SetPieces(2*page, 2*page)
	r, err := hostmem.New().Reserve("state", 3*page)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for range 3 {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				b, err := d.Register(r)
				if err != nil {
					t.Error(err)
					return
				}
				if n := pinned.Load(); n != 2 {
					t.Errorf("a registered region has %d pinned pieces, want 2", n)
				}
				mustClose(t, b)
			})
		}
		wg.Wait()
		if n := pinned.Load(); n != 0 {
			t.Errorf("%d pieces are pinned that have no buffer", n)
		}
	}
}

// A region that cannot be pinned leaves nothing pinned, can be pinned later, and the error names the budget that it
// is short of.
func TestPinError(t *testing.T) {
	var fail atomic.Int64 // how many registrations succeed before one that does not
	fail.Store(math.MaxInt64)
	d := open(t, standin.Options{MemoryBytes: 700 << 20, Fail: func(call string, _ int) driver.Result {
		if call == "MemHostRegister" && fail.Add(-1) == -1 {
			return driver.OutOfMemory
		}
		return driver.Success
	}}, ownProducts)
	defer mustClose(t, d)
	const page = hostmem.PageBytes
	d.SetPieces(page, page)
	r, err := hostmem.New().Reserve("state", 20*page)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	pin := func(free int64) error {
		fail.Store(free)
		b, err := d.Register(r)
		if err == nil {
			mustClose(t, b)
		}
		return err
	}
	for n := range int64(20) {
		oneLine(t, pin(n), "device cuda:0: pin 0.1 MiB of host memory for state: cuMemHostRegister: out of memory", "; lower memory.host")
	}
	full, err := d.Alloc("arena", d.Info().MemoryBytes-d.Info().OverheadBytes+500<<20)
	if err != nil {
		t.Fatal(err)
	}
	oneLine(t, pin(3), "of 700.0 MiB", "it must hold the page tables of pinned memory; lower memory.device")
	mustClose(t, full)
	if err := pin(20); err != nil {
		t.Error(err)
	}
}

// The remedy for memory that cannot be pinned depends on why.
func TestPinningRefused(t *testing.T) {
	var result atomic.Int32
	d := open(t, standin.Options{Fail: func(call string, _ int) driver.Result {
		if call == "MemHostRegister" {
			return driver.Result(result.Load())
		}
		return driver.Success
	}}, ownProducts)
	defer mustClose(t, d)
	r, err := hostmem.New().Reserve("state", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, r)
	for why, remedy := range map[driver.Result]string{
		driver.OutOfMemory:                 "; lower memory.host",
		driver.NotPermitted:                "800); let the process lock memory (ulimit -l unlimited",
		driver.OperatingSystem:             "304); let the process lock memory (ulimit -l unlimited",
		driver.NotSupported:                "801); this system cannot pin host memory for the GPU: set device to cpu",
		driver.InvalidValue:                "CUDA_ERROR_INVALID_VALUE, 1)",
		driver.HostMemoryAlreadyRegistered: "712) by other code of this process: have that give it back first",
	} {
		result.Store(int32(why))
		_, err := d.Register(r)
		oneLine(t, err, "device cuda:0: pin 1.0 MiB of host memory for state: cuMemHostRegister: ", remedy)
		if why != driver.OutOfMemory && strings.Contains(err.Error(), "memory.host") {
			t.Errorf("%v: less memory does not help", err)
		}
	}
}

func TestAddressOnly(t *testing.T) {
	d := open(t, standin.Options{}, ownProducts)
	defer mustClose(t, d)
	r, err := hostmem.New().Reserve("state", 1<<20, hostmem.AddressOnly)
	if err != nil {
		t.Skip(err)
	}
	defer r.Close()
	_, err = d.Register(r)
	oneLine(t, err, "register state: the region is reserved without memory")
}

// A lost context ends everything: every call returns the same line, no call hangs, and closing reports nothing more.
func TestLostContext(t *testing.T) {
	// A kernel's fault; a card that fell off the bus, in both words of the driver; a fault that only newer drivers know.
	for _, r := range []driver.Result{driver.IllegalAddress, driver.Unknown, 46, 721} {
		t.Run(r.String(), func(t *testing.T) { testLostContext(t, r) })
	}
}

func testLostContext(t *testing.T, r driver.Result) {
	d := open(t, standin.Options{}, library)
	s, err := d.NewStream("compute")
	if err != nil {
		t.Fatal(err)
	}
	other, _ := d.NewStream("fetch")
	e, _ := d.NewEvent()
	b, err := d.Alloc("arena", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	s.Zero(device.Whole(b))
	s.Record(e)
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	d.gpu.Kill(0, r)
	want := []string{"cuda:0", fmt.Sprint(int32(r)), "only a new process can use the GPU again"}
	s.Zero(device.Whole(b))
	s.Record(e)
	other.Wait(e)
	for _, err := range []error{s.Sync(), s.Sync(), e.Wait(), other.Sync()} {
		oneLine(t, err, append(want, "device cuda:0: Zero on stream compute: ")...)
	}
	_, err = d.Alloc("more", 100)
	oneLine(t, err, want...)
	_, err = d.NewStream("late")
	oneLine(t, err, want...)
	_, err = d.NewEvent()
	oneLine(t, err, want...)
	oneLine(t, s.Close(), want...)
	oneLine(t, other.Close(), want...)
	for _, c := range []interface{ Close() error }{e, b, d} {
		mustClose(t, c)
	}
}

// Each call of the driver fails once. The error is one line, no call hangs, everything is released, and a failure that
// is not reported does no harm.
func TestEachCallFails(t *testing.T) {
	t.Parallel()
	accounts := hostmem.New()
	life := func(d *rig) (err error) {
		defer func() { err = errors.Join(err, d.Device.Close()) }()
		r, err := accounts.Reserve("state", 1<<14)
		if err != nil {
			return err
		}
		defer r.Close()
		var undo []func() error
		defer func() {
			for i := len(undo) - 1; i >= 0; i-- {
				err = errors.Join(err, undo[i]())
			}
		}()
		host, err := d.Register(r)
		if err != nil {
			return err
		}
		undo = append(undo, host.Close)
		b, err := d.Alloc("arena", 1<<14)
		if err != nil {
			return err
		}
		undo = append(undo, b.Close)
		var streams [2]device.Stream
		for i := range streams {
			if streams[i], err = d.NewStream(fmt.Sprint("lane ", i)); err != nil {
				return err
			}
			undo = append(undo, streams[i].Close)
		}
		e, err := d.NewEvent()
		if err != nil {
			return err
		}
		undo = append(undo, e.Close)
		mem := device.Whole(b)
		m := func(i int64) device.Mat { return device.NewMat(mem.Slice(i<<10, 1<<10), tensor.F32, 16, 16) }
		streams[0].Copy(mem, device.Whole(host))
		streams[0].Add(m(0), m(1), m(2))
		streams[0].MatMul(m(3), m(0), m(1), device.MatMulFlags{})
		streams[0].Record(e)
		streams[1].Wait(e)
		streams[1].MatMul(m(4), m(0), m(1), device.MatMulFlags{})
		streams[1].Zero(device.Whole(host).Slice(0, 1<<12))
		streams[1].Record(e)
		streams[0].Wait(e)
		streams[0].Copy(device.Whole(host), mem)
		return errors.Join(e.Wait(), streams[0].Sync(), streams[1].Sync())
	}
	var calls []string
	var mu sync.Mutex
	count := open(t, standin.Options{Fail: func(call string, n int) driver.Result {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, call)
		return driver.Success
	}}, library)
	if err := life(count); err != nil {
		t.Fatal(err)
	}
	// Most calls are about loading kernels, which are all the same: of what is called often, the first ones, the last
	// ones, and some.
	seen, total := map[string]int{}, map[string]int{}
	for _, call := range calls {
		total[call]++
	}
	for n, call := range calls {
		seen[call]++
		if few := total[call] <= 16 || seen[call] <= 2 || seen[call] > total[call]-2 || n%37 == 0; !few || raceEnabled && n%13 != 0 {
			continue
		}
		var hit string // threads of the loader may take another order
		d, err := tryOpen(standin.Options{Fail: func(call string, k int) driver.Result {
			if k == n+1 {
				mu.Lock()
				defer mu.Unlock()
				hit = call
				return driver.NotSupported
			}
			return driver.Success
		}}, library)
		if err == nil {
			err = life(d)
		}
		mu.Lock()
		failed := hit
		mu.Unlock()
		at := fmt.Sprintf("call %d, %s", n+1, failed)
		switch {
		case err == nil:
			t.Errorf("%s: the failure is not reported", at)
		case !strings.Contains(err.Error(), "cuda:0: ") || !strings.Contains(err.Error(), "CUDA_ERROR_NOT_SUPPORTED"):
			t.Errorf("%s: %v", at, err)
		}
		if failed == "CtxSetCurrent" {
			continue // without a context nothing can be given back
		}
		for line := range strings.Lines(err.Error()) {
			if !strings.Contains(line, "CUDA_ERROR_NOT_SUPPORTED") {
				t.Errorf("%s: a line that is not about it: %s", at, line)
			}
		}
		if d != nil {
			if err := d.gpu.Check(); err != nil {
				t.Errorf("%s: %v", at, err)
			}
		}
	}
	if n, _ := accounts.Total(); n != 0 {
		t.Errorf("%d bytes of host memory are still reserved", n)
	}
}

// When the driver compiles for long, people are told that it does, whether it will again, and how long it took.
func TestSlowCompiler(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until patience ends")
	}
	t.Setenv("CUDA_CACHE_DISABLE", "1")
	gpu := standin.New(standin.Options{Load: loadOnce})
	o := options(gpu, ownProducts, 0)
	told := make(chan struct{}) // closed at the first note
	load := o.API.ModuleLoadData
	o.API.ModuleLoadData = func(m *driver.Module, image *byte) driver.Result {
		if *image == '\n' || *image == '.' { // PTX begins with its version
			<-told
		}
		return load(m, image)
	}
	var mu sync.Mutex
	var notes []string
	o.Note = func(line string) {
		mu.Lock()
		defer mu.Unlock()
		if notes = append(notes, line); len(notes) == 1 {
			close(told)
		}
	}
	d, err := cuda.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, &rig{d, gpu})
	mu.Lock()
	defer mu.Unlock()
	said := strings.Join(notes, "\n")
	want := regexp.MustCompile(`^device cuda:0: the driver is compiling kernels for this GPU, at each start, since CUDA_CACHE_DISABLE is 1
device cuda:0: [0-9]+ kernels were compiled in [0-9]+ s$`)
	if !want.MatchString(said) {
		t.Errorf("said:\n%s", said)
	}
}

// Machine code for the GPU's architecture is what is loaded where there is some, and PTX takes the place of what the
// driver refuses.
func TestMachineCode(t *testing.T) {
	if raceEnabled && testing.Short() {
		t.Skip("with -race -short only: one goroutine loads and checks code, so there is no race to find; make test runs it")
	}
	kernels, err := cudakernels.Load("sm80")
	if err != nil {
		t.Fatal(err)
	}
	all := len(kernels.Names())
	for _, c := range []struct {
		capability   [2]int32
		architecture string
		target       string
		refused      int
		driver       int32
		want         string // empty: it does not open
	}{
		{[2]int32{8, 0}, "sm_80", "sm80", 0, 12000, `sm_80 machine code [0-9a-f]{12}`},
		{[2]int32{9, 0}, "sm_90a", "sm90a", 0, 12020, `sm_90a machine code [0-9a-f]{12}`},
		{[2]int32{12, 1}, "sm_120", "sm80", 0, 12080, `sm_120 machine code [0-9a-f]{12}`},
		{[2]int32{8, 9}, "sm_89", "sm80", 2, 12040,
			fmt.Sprintf(`sm_89 machine code [0-9a-f]{12}, 2 of %d kernels [0-9a-f]{12} as sm80 PTX`, all)},
		{[2]int32{8, 9}, "sm_89", "sm80", 2, 12030, ""},
		{[2]int32{8, 9}, "sm_89", "sm80", all, 12040, `sm80 kernels [0-9a-f]{12}`},
		{[2]int32{11, 0}, "", "sm80", all, 12040, `sm80 kernels [0-9a-f]{12}`},
		{[2]int32{11, 0}, "", "sm80", all, 12030, ""},
	} {
		t.Run(fmt.Sprint(c.capability, c.refused, c.driver), func(t *testing.T) {
			set, err := cudakernels.Load(c.target)
			if err != nil {
				t.Fatal(err)
			}
			text := map[[32]byte]string{} // PTX by the sum of the code that was made from it
			if c.architecture != "" {
				code, err := cudakernels.LoadCode(c.architecture)
				if err != nil {
					t.Fatal(err)
				}
				for i, name := range set.Names() {
					if k, _ := set.Find(name); i >= c.refused {
						text[sha256.Sum256(code[name])] = k.PTX
					}
				}
			}
			var asPTX atomic.Int64
			gpu := standin.New(standin.Options{Capability: c.capability, DriverVersion: c.driver,
				SharedOptinBytes: 227 << 10, Load: func(image []byte) (*standin.Image, error) {
					asPTX.Add(1)
					return loadOnce(image)
				}, Code: func(image []byte) (*standin.Image, error) {
					if ptx, ok := text[sha256.Sum256(image)]; ok {
						return loadOnce([]byte(ptx))
					}
					return nil, errors.New("this code is not known, or not for this GPU")
				}})
			d, err := cuda.Open(options(gpu, ownProducts, 0))
			if c.want == "" {
				oneLine(t, err, "device cuda:0: kernel ", "there is no machine code that the driver takes for this GPU",
					"must support CUDA 12.4, not 12.3; install NVIDIA's driver 550 or newer")
				if err := gpu.Check(); err != nil {
					t.Error(err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer mustClose(t, &rig{d, gpu})
			if ok, _ := regexp.MatchString(", "+c.want+", own", d.Info().Numerics); !ok {
				t.Errorf("computed on %q, want %s", d.Info().Numerics, c.want)
			}
			if n := int(asPTX.Load()); n != c.refused {
				t.Errorf("%d kernels were loaded as PTX, want %d", n, c.refused)
			}
		})
	}
}

// A device without the library for products says so where plans and benchmarks see it.
func TestWarning(t *testing.T) {
	if d := open(t, standin.Options{}, library); d.Info().Warning != "" {
		t.Errorf("with a library: %q", d.Info().Warning)
	} else {
		mustClose(t, d)
	}
	t.Setenv("PATH", "")
	gpu := standin.New(standin.Options{Load: loadOnce})
	var notes []string
	d, err := cuda.Open(cuda.Options{API: gpu.API(), Note: func(line string) { notes = append(notes, line) }})
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, &rig{d, gpu})
	warning := d.Info().Warning
	if warning == "" {
		t.Skip("the real library is installed here, and opens without a context of its driver")
	}
	if strings.HasPrefix(d.Info().Name, "cuBLASLt") || !strings.HasPrefix(warning, "matrix products run on this program's own kernels, which are slower: ") ||
		strings.Contains(warning, "\n") || len(notes) != 1 || notes[0] != "device cuda:0: "+warning {
		t.Errorf("%q warns %q and notes %q", d.Info().Name, warning, notes)
	}
}

// The codes of 8-bit moments are those of the CPU device, which holds them against bitsandbytes.
func TestCodes(t *testing.T) {
	for _, signed := range []bool{true, false} {
		codes, want := make([]uint8, 256), make([]float32, 256)
		for i := range codes {
			codes[i] = uint8(i)
		}
		kernels.Dequantize8(want, codes, []float32{1}, signed)
		for i, v := range cuda.CodeValues(signed) {
			if v != want[i] {
				t.Errorf("signed %v, code %d: %v, want %v", signed, i, v, want[i])
			}
		}
	}
}
