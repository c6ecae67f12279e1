package kernels

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// TrailingPointers counts the pointers that a kernel takes after its arguments: scratch memory of Triton's, which no
// kernel here uses. Zeros are passed for them.
const TrailingPointers = 2

// Targets are the targets that kernels are compiled for.
var Targets = []string{"sm80", "sm90a"}

// Target is the target for a GPU of a compute capability.
func Target(major, minor int) (string, error) {
	switch {
	case major < 8:
		return "", fmt.Errorf("the GPU has compute capability %d.%d; kernels need 8.0 (Ampere) or more", major, minor)
	case major == 9 && minor == 0:
		return "sm90a", nil
	}
	return "sm80", nil
}

// Type is the type of an argument.
type Type uint8

// The types of arguments.
const (
	Ptr Type = iota // a device address
	I32
	I64
	F32
	F64
)

var typeNames = []string{Ptr: "ptr", I32: "i32", I64: "i64", F32: "f32", F64: "f64"}

// String is the type's name in the manifest.
func (t Type) String() string { return typeNames[t] }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *Type) UnmarshalText(text []byte) error {
	i := slices.Index(typeNames, string(text))
	if i < 0 {
		return fmt.Errorf("no argument type %q", text)
	}
	*t = Type(i)
	return nil
}

// Bytes is the size of an argument, and its alignment.
func (t Type) Bytes() int {
	if t == I32 || t == F32 {
		return 4
	}
	return 8
}

// Arg is an argument of a kernel.
type Arg struct {
	Name   string `json:"name"`
	Type   Type   `json:"type"`
	Offset int    `json:"-"` // in the parameter buffer, in bytes
}

// Figures have the resources of a kernel as assembled, by architecture ("sm_80", "sm_120"), and the most that it may
// take.
type Figures struct {
	Registers  map[string]int `json:"registers"`   // of a thread
	SpillBytes map[string]int `json:"spill_bytes"` // of a thread
	CubinBytes map[string]int `json:"cubin_bytes"` // of the machine code, where there is some
	Loop       *Loop          `json:"loop"`        // of sm_80's or sm_90a's machine code; nil where the loop has no limits
	Limits     Limits         `json:"limits"`
}

// Limits are the most that a kernel may take on any architecture. A build that takes more fails.
type Limits struct {
	Registers  int   `json:"registers"`
	SpillBytes int   `json:"spill_bytes"`
	Loop       *Loop `json:"loop"` // products are not limited
}

// Loop counts the instructions of a kernel's hot loop. build.py says which loop that is.
type Loop struct {
	Instructions int `json:"instructions"`
	Products     int `json:"products"`     // of matrices, or fused ones in a kernel of fp32
	GlobalLoads  int `json:"global_loads"` // copies to shared memory aside
	Local        int `json:"local"`        // loads and stores of local memory, where spilled registers are
}

// Kernel is one kernel, compiled for one target. Its fields are only read.
type Kernel struct {
	Name    string
	Entry   string // the symbol in PTX
	Source  string // the file that it was compiled from
	Args    []Arg
	Aligned []string       // names of arguments that must be multiples of 16
	Most    map[string]int // the greatest values that arguments may have
	// Exact: the bits are those of IEEE arithmetic in the order of the source; nothing is fused.
	Exact       bool
	Threads     int // of a block, in one dimension
	SharedBytes int // dynamic shared memory of a block
	Constants   map[string]int
	Grid        []string // expressions of [Kernel.Programs], one to three
	PTX         string   // a module with this one entry
	Figures

	grid       []product
	aligned    []int
	limits     []limit
	paramBytes int
}

// limit is the greatest value of an argument.
type limit struct {
	arg  int
	most int64
}

// Set is all kernels of a target.
type Set struct {
	Target  string
	kernels map[string]*Kernel
}

// The manifest of a source, as build.py writes it.
type manifest struct {
	Source           string `json:"source"`
	SourceSHA256     string `json:"source_sha256"`
	RegistrySHA256   string `json:"registry_sha256"`
	BuildSHA256      string `json:"build_sha256"`
	Triton           string `json:"triton"`
	PTXAS            string `json:"ptxas"`
	PTXVersion       string `json:"ptx_version"`
	TrailingPointers int    `json:"trailing_pointers"`
	// CubinSHA256 is of the machine code of all kernels of the source, by architecture.
	CubinSHA256 map[string]string `json:"cubin_sha256"`
	Kernels     []entry           `json:"kernels"`
}

// An entry is a kernel of a manifest.
type entry struct {
	Name    string           `json:"name"`
	Entry   string           `json:"entry"`
	Args    []Arg            `json:"args"`
	Aligned []string         `json:"aligned"`
	Most    map[string]int   `json:"most"`
	Exact   bool             `json:"exact"`
	Grid    []string         `json:"grid"`
	Targets map[string]build `json:"targets"`
}

// ptxBytes are the sizes of a kernel's PTX, by target.
func (e *entry) ptxBytes() map[string]int {
	sizes := map[string]int{}
	for target, b := range e.Targets {
		sizes[target] = b.PTXBytes
	}
	return sizes
}

// codeBytes are the sizes of a kernel's machine code, by architecture.
func (e *entry) codeBytes() map[string]int {
	sizes := map[string]int{}
	for _, b := range e.Targets {
		maps.Copy(sizes, b.CubinBytes)
	}
	return sizes
}

// A build has what differs between the targets of a kernel.
type build struct {
	PTXBytes    int            `json:"ptx_bytes"`
	PTXSHA256   string         `json:"ptx_sha256"`
	Warps       int            `json:"warps"`
	Stages      int            `json:"stages"`
	SharedBytes int            `json:"shared_bytes"`
	Constants   map[string]int `json:"constants"`
	Figures
}

// folder has what build.py compiled.
type folder struct {
	fs.FS
	dir string
}

// program is the folder of the kernels that the program launches.
var program = folder{compiled, "compiled"}

// manifests reads those of all sources.
func (f folder) manifests() ([]manifest, error) {
	files, err := fs.ReadDir(f, f.dir)
	if err != nil {
		return nil, err
	}
	var all []manifest
	for _, file := range files {
		if path.Ext(file.Name()) != ".json" {
			continue
		}
		text, err := fs.ReadFile(f, path.Join(f.dir, file.Name()))
		if err != nil {
			return nil, err
		}
		var m manifest
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&m); err != nil {
			return nil, fmt.Errorf("%s: %w", file.Name(), err)
		}
		all = append(all, m)
	}
	return all, nil
}

// unpack is the file of a source that has its kernels' PTX (.ptx.zst) or machine code (.cubin.zst): the texts or
// code of a kernel for all targets or architectures, in the order of their names, then those of the next kernel.
func (f folder) unpack(m *manifest, extension string) ([]byte, error) {
	name := strings.TrimSuffix(m.Source, ".py") + extension
	packed, err := fs.ReadFile(f, path.Join(f.dir, name))
	if err != nil {
		return nil, err
	}
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	all, err := d.DecodeAll(packed, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return all, nil
}

// cut takes a kernel's parts off the front of an unpacked file. sizes are theirs, by target or architecture; it returns
// the part that is asked for, and the parts of the next kernels. The part is nil if sizes do not name it, or if
// the file ends before the part does.
func cut(unpacked []byte, sizes map[string]int, wanted string) (part, rest []byte) {
	rest = unpacked
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		size := sizes[name]
		if size <= 0 || size > len(rest) {
			return nil, rest
		}
		if name == wanted {
			part = rest[:size]
		}
		rest = rest[size:]
	}
	return part, rest
}

// Load unpacks the kernels of a target. It takes a tenth of a second; keep the set.
func Load(target string) (*Set, error) {
	if !slices.Contains(Targets, target) {
		return nil, fmt.Errorf("there are kernels for %s, not for %q", strings.Join(Targets, " and "), target)
	}
	all, err := program.manifests()
	if err != nil {
		return nil, fmt.Errorf("compiled kernels: %w", err)
	}
	s := &Set{Target: target, kernels: map[string]*Kernel{}}
	for _, m := range all {
		if err := s.add(&m); err != nil {
			return nil, fmt.Errorf("compiled kernels of %s: %w", m.Source, err)
		}
	}
	return s, nil
}

func (s *Set) add(m *manifest) error {
	unpacked, err := program.unpack(m, ".ptx.zst")
	if err != nil {
		return err
	}
	if m.TrailingPointers != TrailingPointers {
		return fmt.Errorf("take %d trailing pointers, not %d", m.TrailingPointers, TrailingPointers)
	}
	for _, e := range m.Kernels {
		var text []byte
		text, unpacked = cut(unpacked, e.ptxBytes(), s.Target)
		if text == nil {
			return fmt.Errorf("%s has no PTX for %s", e.Name, s.Target)
		}
		k, err := m.kernel(&e, s.Target, string(text))
		if err != nil {
			return err
		}
		if s.kernels[k.Name] != nil {
			return fmt.Errorf("%s: there are two", k.Name)
		}
		s.kernels[k.Name] = k
	}
	if len(unpacked) > 0 {
		return fmt.Errorf("%d bytes of PTX belong to no kernel", len(unpacked))
	}
	return nil
}

// kernel is an entry for a target, with its PTX.
func (m *manifest) kernel(e *entry, target, text string) (*Kernel, error) {
	b := e.Targets[target]
	k := &Kernel{Name: e.Name, Entry: e.Entry, Source: m.Source, Args: e.Args, Aligned: e.Aligned, Most: e.Most,
		Exact: e.Exact, Threads: 32 * b.Warps, SharedBytes: b.SharedBytes, Constants: b.Constants, Grid: e.Grid, PTX: text,
		Figures: b.Figures}
	if err := k.prepare(); err != nil {
		return nil, fmt.Errorf("%s: %w", e.Name, err)
	}
	return k, nil
}

// prepare computes what follows from the manifest.
func (k *Kernel) prepare() error {
	for i := range k.Args {
		a := &k.Args[i]
		a.Offset = roundUp(k.paramBytes, a.Type.Bytes())
		k.paramBytes = a.Offset + a.Type.Bytes()
	}
	k.paramBytes = roundUp(k.paramBytes, 8) + 8*TrailingPointers
	for _, name := range k.Aligned {
		i := k.Arg(name)
		if i < 0 {
			return fmt.Errorf("no argument %s is aligned", name)
		}
		k.aligned = append(k.aligned, i)
	}
	for name, most := range k.Most {
		i := k.Arg(name)
		if i < 0 {
			return fmt.Errorf("no argument %s has a limit", name)
		}
		k.limits = append(k.limits, limit{arg: i, most: int64(most)})
	}
	if len(k.Grid) < 1 || len(k.Grid) > 3 {
		return fmt.Errorf("a grid of %d dimensions", len(k.Grid))
	}
	for _, text := range k.Grid {
		p, err := parseProduct(text, k)
		if err != nil {
			return err
		}
		k.grid = append(k.grid, p)
	}
	return nil
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// Names are the names of all kernels, sorted.
func (s *Set) Names() []string { return slices.Sorted(maps.Keys(s.kernels)) }

// Find looks a kernel up by its whole name.
func (s *Set) Find(name string) (*Kernel, bool) {
	k, ok := s.kernels[name]
	return k, ok
}

// Variants are the last words of names, the quickest first: they say which operands a kernel is for. Some names have
// none of them.
var Variants = []string{".narrow", ".c2048", ".c4096", ".c8192", ".a16", ".any"}

// Choose finds the kernel of an operation for the values of its arguments: the quickest variant, or the one without
// that word, that there is and that takes them.
func (s *Set) Choose(op string, values []uint64) (*Kernel, error) {
	for _, variant := range append(slices.Clone(Variants), "") {
		if k, ok := s.kernels[op+variant]; ok && k.Takes(values) {
			return k, nil
		}
	}
	return nil, fmt.Errorf("no kernel %s takes these operands", op)
}

// Arg is the index of an argument, or -1.
func (k *Kernel) Arg(name string) int {
	return slices.IndexFunc(k.Args, func(a Arg) bool { return a.Name == name })
}

// Takes reports whether those values that must be multiples of 16 are, and none is too great. values has one entry
// for each argument, in order: addresses, integers with their sign extended, bits of floating-point numbers.
func (k *Kernel) Takes(values []uint64) bool {
	if len(values) != len(k.Args) {
		panic(fmt.Sprintf("kernels: %s takes %d arguments, not %d", k.Name, len(k.Args), len(values)))
	}
	for _, i := range k.aligned {
		if values[i]%16 != 0 {
			return false
		}
	}
	for _, l := range k.limits {
		if int64(values[l.arg]) > l.most {
			return false
		}
	}
	return true
}

// Params is the parameter buffer of a launch: the values of [Kernel.Takes] at their offsets, and zeros for the
// trailing pointers.
func (k *Kernel) Params(values []uint64) []byte {
	if !k.Takes(values) {
		panic(fmt.Sprintf("kernels: %s is launched with operands that it does not take", k.Name))
	}
	params := make([]byte, k.paramBytes)
	for i, a := range k.Args {
		if at := params[a.Offset:]; a.Type.Bytes() == 4 {
			binary.NativeEndian.PutUint32(at, uint32(values[i]))
		} else {
			binary.NativeEndian.PutUint64(at, values[i])
		}
	}
	return params
}
