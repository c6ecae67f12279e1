package ptx

import (
	"slices"
	"sync"
)

// A Module is a PTX text, read and checked. It does not change after Parse, so kernels of it may run at the same time.
type Module struct {
	Version string // of PTX, such as "8.4"
	Target  string // such as "sm_80"

	kernels []*Kernel
	data    []byte // of the module's .global and .const variables
}

// A Kernel is one .entry of a module.
type Kernel struct {
	Name string
	// MaxThreads is the block size that .reqntid or .maxntid states; 0 if none does. ExactThreads says that it was
	// .reqntid.
	MaxThreads   int
	ExactThreads bool
	// SharedBytes is the size of the kernel's own .shared variables, without the bytes that a launch asks for.
	SharedBytes int

	module     *Module
	params     []Param
	paramBytes int
	localBytes int
	code       []*instr
	rows       [2]int    // of the narrow and the wide register file
	registers  [2]int    // those of them, at the front, that are no constants
	idle       sync.Pool // of *block, for launches to come
	predicates int
	constants  []constant
	fusible    []int // lines of products that ptxas may fuse
}

// A Param is one argument of a kernel, at an offset of its parameter block.
type Param struct {
	Name   string
	Type   string // "u64", "f32", ...
	Offset int    // bytes
	Bytes  int
	// Pointer says that the PTX declares it as an address.
	Pointer bool
}

// Kernel is the entry of a name, nil if the module has none.
func (m *Module) Kernel(name string) *Kernel {
	if i := slices.IndexFunc(m.kernels, func(k *Kernel) bool { return k.Name == name }); i >= 0 {
		return m.kernels[i]
	}
	return nil
}

// Kernels lists the entries in the order of the text.
func (m *Module) Kernels() []*Kernel { return slices.Clone(m.kernels) }

// Params lists the kernel's parameters in order.
func (k *Kernel) Params() []Param { return slices.Clone(k.params) }

// ParamBytes is the size of the parameter block that Launch takes.
func (k *Kernel) ParamBytes() int { return k.paramBytes }

// MayFuse lists the lines of products without a rounding modifier that are added to something without one. The
// assembler may make one fused multiply-add of such a pair (PTX ISA, "add", "mul"), so the kernel's bits are not
// settled by its text.
func (k *Kernel) MayFuse() []int { return slices.Clone(k.fusible) }
