package standin

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/workshop/cudatest/ptx"
)

// Image is a module that was read.
type Image struct {
	Version string // of PTX, such as "8.4"; "" for kernels in Go
	Target  string // such as "sm_80" or "sm_90a"; "" runs anywhere
	// Kernel finds a kernel by its name; nil if there is no such kernel.
	Kernel func(name string) *Kernel
	// Has says whether there is a kernel. With it, Kernel is called when something asks for the kernel's facts; nil:
	// when something asks for the kernel.
	Has func(name string) bool
}

// find returns what gets the facts of a kernel, nil if there is no such kernel.
func (i *Image) find(name string) func() *Kernel {
	if i.Has != nil {
		if !i.Has(name) {
			return nil
		}
		return sync.OnceValue(func() *Kernel { return i.Kernel(name) })
	}
	k := i.Kernel(name)
	if k == nil {
		return nil
	}
	return func() *Kernel { return k }
}

// Kernel has the facts that a launch needs, and the function that runs it.
type Kernel struct {
	Params       []Param
	SharedBytes  int  // its own, without the bytes that a launch asks for
	MaxThreads   int  // of a block; 0: no limit of its own
	ExactThreads bool // a block must have MaxThreads

	// Run computes all blocks. Params is the parameter block. The error loses the context.
	Run func(mem ptx.Memory, grid, block [3]uint32, sharedBytes uint32, params []byte) error
}

// Param is the place of a parameter in the parameter block.
type Param struct{ Offset, Bytes int }

// paramBytes is the size of the parameter block.
func (k *Kernel) paramBytes() int {
	if len(k.Params) == 0 {
		return 0
	}
	last := k.Params[len(k.Params)-1]
	return last.Offset + last.Bytes
}

type module struct {
	card    *card
	image   *Image
	pending atomic.Int64 // launches that are queued or running
	site    string
}

type function struct {
	module *module
	owner  driver.Module
	name   string
	kernel func() *Kernel // its facts
	// dynamicBytes is the limit that FuncSetAttribute set.
	dynamicBytes atomic.Int32
}

func (d *Driver) moduleLoadData(h *driver.Module, image *byte) driver.Result {
	c, r := d.enter("ModuleLoadData")
	if r != driver.Success {
		return r
	}
	if image == nil {
		return d.refuse(driver.InvalidValue, "ModuleLoadData: no image")
	}
	var read *Image
	var err error
	if isELF(image) {
		if d.options.Code == nil {
			d.log("ModuleLoadData: machine code")
			return driver.NoBinaryForGPU
		}
		if read, err = d.options.Code(elf(image)); err != nil {
			d.log("ModuleLoadData: %v", err)
			return driver.InvalidImage
		}
	} else if read, err = d.options.Load(untilNUL(image)); err != nil {
		d.log("ModuleLoadData: %v", err)
		return driver.InvalidPTX
	}
	// Machine code is of no PTX version.
	if newest := newestPTX(d.options.DriverVersion); !isELF(image) && comparePTX(read.Version, newest) > 0 {
		d.log("ModuleLoadData: PTX %s, and this driver reads up to %s", read.Version, newest)
		return driver.UnsupportedPTXVersion
	}
	if is := c.capability(); !runsOn(read.Target, is) {
		d.log("ModuleLoadData: PTX for %s on sm_%d%d", read.Target, is[0], is[1])
		return driver.InvalidPTX
	}
	d.making.Lock()
	defer d.making.Unlock()
	*h = driver.Module(d.handle())
	d.modules.set(*h, &module{card: c, image: read, site: callSite()})
	return driver.Success
}

func isELF(image *byte) bool {
	for i, c := range []byte("\x7fELF") {
		if *(*byte)(unsafe.Add(unsafe.Pointer(image), i)) != c { // text may end before
			return false
		}
	}
	return true
}

// elf is the bytes of a 64-bit ELF file, whose end is that of its section headers or of its program headers, as ptxas
// lays it out.
func elf(image *byte) []byte {
	header := unsafe.Slice(image, 64)
	word := func(at int) int { return int(binary.LittleEndian.Uint16(header[at:])) }
	end := func(offset, entries, bytes int) int {
		return int(binary.LittleEndian.Uint64(header[offset:])) + word(entries)*word(bytes)
	}
	return unsafe.Slice(image, max(end(0x28, 0x3c, 0x3a), end(0x20, 0x38, 0x36)))
}

// untilNUL is a C string's bytes.
func untilNUL(p *byte) []byte {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return unsafe.Slice(p, n)
}

func (d *Driver) moduleUnload(h driver.Module) driver.Result {
	c, r, proceed := d.enterRelease("ModuleUnload")
	if !proceed {
		return r
	}
	d.making.Lock()
	defer d.making.Unlock()
	m, ok := d.modules.get(h)
	if !ok {
		return first(r, d.refuse(driver.InvalidHandle, "ModuleUnload: %#x is no module, or it was unloaded", h))
	}
	if owned := c.owns("ModuleUnload", "module", m.card, m.site); owned != driver.Success {
		return first(r, owned)
	}
	var pending int64
	unordered(func() { pending = m.pending.Load() })
	if pending > 0 {
		d.misused("ModuleUnload: %d launches of its kernels are pending", pending)
	}
	for f, fn := range d.funcs.all() {
		if fn.owner == h {
			d.funcs.remove(f)
		}
	}
	d.modules.remove(h)
	return r
}

func (d *Driver) moduleGetFunction(h *driver.Function, m driver.Module, name *byte) driver.Result {
	c, r := d.enter("ModuleGetFunction")
	if r != driver.Success {
		return r
	}
	d.making.Lock()
	defer d.making.Unlock()
	mod, ok := d.modules.get(m)
	if !ok {
		return d.refuse(driver.InvalidHandle, "ModuleGetFunction: %#x is no module, or it was unloaded", m)
	}
	if r := c.owns("ModuleGetFunction", "module", mod.card, mod.site); r != driver.Success {
		return r
	}
	want := string(untilNUL(name))
	for f, fn := range d.funcs.all() {
		if fn.owner == m && fn.name == want {
			*h = f
			return driver.Success
		}
	}
	kernel := mod.image.find(want)
	if kernel == nil {
		d.log("ModuleGetFunction: no kernel %q", want)
		return driver.NotFound
	}
	*h = driver.Function(d.handle())
	d.funcs.set(*h, &function{module: mod, owner: m, name: want, kernel: kernel})
	return driver.Success
}

func (c *card) useFunction(call string, h driver.Function) (*function, driver.Result) {
	if f, ok := c.driver.funcs.get(h); ok {
		return f, c.owns(call, "module", f.module.card, f.module.site)
	}
	return nil, c.driver.refuse(driver.InvalidHandle, "%s: %#x is no function, or its module was unloaded", call, h)
}

func (d *Driver) funcSetAttribute(h driver.Function, a driver.FunctionAttribute, value int32) driver.Result {
	c, r := d.enter("FuncSetAttribute")
	if r != driver.Success {
		return r
	}
	f, r := c.useFunction("FuncSetAttribute", h)
	if r != driver.Success {
		return r
	}
	if a != driver.MaxDynamicSharedSizeBytes {
		return d.refuse(driver.InvalidValue, "FuncSetAttribute: the stand-in does not know attribute %d", a)
	}
	// A kernel has at most plainSharedBytes of its own (PTX ISA, ".shared").
	left := int(d.options.SharedOptinBytes) - int(value)
	if value < 0 || left < plainSharedBytes && f.kernel().SharedBytes > left {
		d.log("FuncSetAttribute: %s: %d bytes of shared memory and %d of its own; a block has %d",
			f.name, value, f.kernel().SharedBytes, d.options.SharedOptinBytes)
		return driver.InvalidValue
	}
	f.dynamicBytes.Store(value)
	return driver.Success
}
