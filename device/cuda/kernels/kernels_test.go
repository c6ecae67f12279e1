package kernels

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/workshop/cudatest/ptx"
)

func load(t testing.TB, target string) *Set {
	t.Helper()
	s, err := Load(target)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// all calls f with every kernel of every target.
func all(t *testing.T, f func(t *testing.T, target string, k *Kernel)) {
	for _, target := range Targets {
		s := load(t, target)
		for _, name := range s.Names() {
			k, _ := s.Find(name)
			t.Run(target+"/"+name, func(t *testing.T) { f(t, target, k) })
		}
	}
}

func sum(text []byte) string {
	s := sha256.Sum256(text)
	return hex.EncodeToString(s[:])
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

var imports = regexp.MustCompile(`(?m)^from (\w+) import`)

// withImports is a source, and below it the files that it imports from here, but the registry.
func withImports(t *testing.T, source string) []byte {
	t.Helper()
	text := slices.Clone(read(t, source))
	for _, name := range imports.FindAllSubmatch(text, -1) {
		if module := string(name[1]); module != "registry" {
			text = append(text, read(t, module+".py")...)
		}
	}
	return text
}

// The compiled files were compiled from the sources in this folder, from all of them, and nothing else is embedded.
func TestNothingIsStale(t *testing.T) {
	found, err := program.manifests()
	if err != nil {
		t.Fatal(err)
	}
	var wantFiles []string
	registry, builder := sum(read(t, "registry.py")), sum(read(t, "build.py"))
	compiledFrom := map[string]bool{}
	for _, m := range found {
		compiledFrom[m.Source] = true
		if m.SourceSHA256 != sum(withImports(t, m.Source)) || m.RegistrySHA256 != registry || m.BuildSHA256 != builder {
			t.Errorf("%s or the build has changed since it was compiled: run build.py %s (README.md says how)", m.Source, m.Source)
		}
		if m.PTXAS != found[0].PTXAS || m.PTXAS == "" {
			t.Errorf("%s is assembled by ptxas %q, %s by %q", m.Source, m.PTXAS, found[0].Source, found[0].PTXAS)
		}
		if m.Triton != found[0].Triton || !strings.Contains(string(read(t, "requirements.txt")), "triton=="+m.Triton+" \\\n") {
			t.Errorf("%s is compiled by Triton %s; requirements.txt has another", m.Source, m.Triton)
		}
		stem := strings.TrimSuffix(m.Source, ".py")
		wantFiles = append(wantFiles, stem+".cubin.zst", stem+".json", stem+".ptx.zst")
	}
	sources, err := filepath.Glob("*.py")
	if err != nil {
		t.Fatal(err)
	}
	declares := regexp.MustCompile(`(?m)^KERNELS\b`)
	for _, source := range sources {
		if declares.Match(read(t, source)) != compiledFrom[source] {
			t.Errorf("%s: declares kernels: %t; is compiled: %t", source, !compiledFrom[source], compiledFrom[source])
		}
	}
	entries, err := fs.ReadDir(compiled, "compiled")
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, e := range entries {
		files = append(files, e.Name())
	}
	slices.Sort(wantFiles)
	if !slices.Equal(files, wantFiles) {
		t.Errorf("compiled/ has %v, want %v", files, wantFiles)
	}
}

// The PTX is what the manifest's checksum was taken of.
func TestChecksums(t *testing.T) {
	found, err := program.manifests()
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range Targets {
		s := load(t, target)
		for _, m := range found {
			for _, e := range m.Kernels {
				if k, _ := s.Find(e.Name); sum([]byte(k.PTX)) != e.Targets[target].PTXSHA256 {
					t.Errorf("%s: %s: the PTX is another", target, e.Name)
				}
			}
		}
	}
}

var paramLine = regexp.MustCompile(`^\t\.param \.(\w+) (?:\.ptr [^,]*?)?(\w+_param_(\d+)),?$`)

// A module is for its target, claims the PTX version that drivers of CUDA 12.4 take, and has one entry, with the
// arguments of the manifest and the threads that a launch gives it.
func TestPTX(t *testing.T) {
	types := map[Type]string{Ptr: "u64", I64: "u64", I32: "u32", F32: "f32", F64: "f64"}
	all(t, func(t *testing.T, target string, k *Kernel) {
		head := fmt.Sprintf(".version 8.4\n.target %s\n.address_size 64\n", strings.Replace(target, "sm", "sm_", 1))
		if !strings.HasPrefix(k.PTX, head) {
			t.Errorf("begins %q, want %q", k.PTX[:min(len(k.PTX), len(head))], head)
		}
		if n := strings.Count(k.PTX, ".entry"); n != 1 {
			t.Errorf("%d entries", n)
		}
		_, rest, ok := strings.Cut(k.PTX, ".visible .entry "+k.Entry+"(\n")
		list, rest, ok2 := strings.Cut(rest, "\n)\n")
		if !ok || !ok2 {
			t.Fatalf("no entry %s", k.Entry)
		}
		if want := fmt.Sprintf(".reqntid %d\n", k.Threads); !strings.HasPrefix(rest, want) {
			t.Errorf("the entry does not begin with %q", want)
		}
		var got, want []string
		for line := range strings.SplitSeq(list, "\n") {
			p := paramLine.FindStringSubmatch(line)
			if p == nil || p[2] != k.Entry+"_param_"+p[3] || p[3] != fmt.Sprint(len(got)) {
				t.Fatalf("parameter %d is %q", len(got), line)
			}
			got = append(got, p[1])
		}
		for _, a := range k.Args {
			want = append(want, types[a.Type])
		}
		for range TrailingPointers {
			want = append(want, types[Ptr])
		}
		if !slices.Equal(got, want) {
			t.Errorf("parameters are %v, want %v", got, want)
		}
		for _, word := range []string{".loc", ".file", "//", ".debug", "/work", "/home", "/root"} {
			if strings.Contains(k.PTX, word) {
				t.Errorf("has %q", word)
			}
		}
	})
}

// A block's shared memory and a thread's registers are what the GPUs of the target have. Registers, spilled bytes and
// the hot loop's instructions are within the limits of the source; every kernel of products that demands alignment
// has limits of its loop.
func TestLimits(t *testing.T) {
	architectures := map[string][]string{"sm80": {"sm_100", "sm_120", "sm_80", "sm_86", "sm_89", "sm_90a"}, "sm90a": {"sm_90a"}}
	shared := map[string]int{"sm80": 99 << 10, "sm90a": 227 << 10}
	all(t, func(t *testing.T, target string, k *Kernel) {
		if k.SharedBytes > shared[target] {
			t.Errorf("%d bytes of shared memory", k.SharedBytes)
		}
		for _, figures := range []map[string]int{k.Registers, k.SpillBytes} {
			if got := slices.Sorted(maps.Keys(figures)); !slices.Equal(got, architectures[target]) {
				t.Errorf("assembled for %v", got)
			}
		}
		for a, n := range k.Registers {
			if n*k.Threads > 65536 {
				t.Errorf("%s: %d registers for each of %d threads", a, n, k.Threads)
			}
			if n > k.Limits.Registers || n == 0 {
				t.Errorf("%s: %d registers, the limit is %d", a, n, k.Limits.Registers)
			}
			if k.SpillBytes[a] > k.Limits.SpillBytes {
				t.Errorf("%s: %d bytes are spilled, the limit is %d", a, k.SpillBytes[a], k.Limits.SpillBytes)
			}
		}
		products := []string{"matmul", "attention", "attention_dkdv", "attention_dq", "expert_matmul",
			"expert_weight_grad"}
		op, _, _ := strings.Cut(k.Name, ".")
		scans := []string{"delta_scan_terms", "delta_scan_grad_terms"}
		want := slices.Contains(products, op) && strings.HasSuffix(k.Name, ".a16") || slices.Contains(scans, op)
		if (k.Loop != nil) != want || (k.Limits.Loop != nil) != want {
			t.Fatalf("figures of the loop %+v, limits %+v", k.Loop, k.Limits.Loop)
		} else if !want {
			return
		}
		got, most := *k.Loop, *k.Limits.Loop
		if got.Instructions > most.Instructions || got.GlobalLoads > most.GlobalLoads || got.Local > most.Local {
			t.Errorf("the hot loop has %+v, the limits are %+v", got, most)
		}
		if got.Products < 1 || got.Products >= got.Instructions {
			t.Errorf("%d products in a hot loop of %d instructions", got.Products, got.Instructions)
		}
		if most.Instructions > got.Instructions+got.Instructions/10 {
			t.Errorf("the hot loop has %d instructions, its limit of %d would not show a tenth more", got.Instructions, most.Instructions)
		}
	})
}

// The variants that demand alignment make use of it, so a matrix does not go through one element at a time.
func TestAlignedMovesVectors(t *testing.T) {
	wide := regexp.MustCompile(`(ld\.global\.v[24]\.b32|cp\.async\.c[ag]\.shared\.global \[[^\]]*\], \[[^\]]*\], 0x10)`)
	all(t, func(t *testing.T, target string, k *Kernel) {
		if len(k.Aligned) > 0 && !wide.MatchString(k.PTX) {
			t.Error("has no wide load")
		}
	})
}

// Kernels whose bits are defined leave nothing to the assembler: no product that it may fuse, no approximation, no
// flushed denormal.
func TestExact(t *testing.T) {
	n := 0
	all(t, func(t *testing.T, target string, k *Kernel) {
		if !k.Exact {
			return
		}
		n++
		for _, word := range []string{".ftz", ".approx", ".full", "fma."} {
			if strings.Contains(k.PTX, word) {
				t.Errorf("has %s", word)
			}
		}
		if target != "sm80" {
			return
		}
		m, err := ptx.Parse([]byte(k.PTX))
		if err != nil {
			t.Fatal(err)
		}
		if lines := m.Kernel(k.Entry).MayFuse(); len(lines) > 0 {
			t.Errorf("lines %v may be fused", lines)
		}
	})
	if n < 2*(4+12) {
		t.Errorf("only %d kernels are exact", n)
	}
}

// Products of bf16 are the tensor cores' work, by the newer instructions where a GPU has them; those of f32 are not,
// since TF32 would round their operands. There are no atomics: sums do not depend on timing, and so neither do bits.
func TestInstructionsOfProducts(t *testing.T) {
	for _, target := range Targets {
		set := load(t, target)
		for _, name := range set.Names() {
			k, _ := set.Find(name)
			op, rest, _ := strings.Cut(name, ".")
			product := op == "matmul" || op == "expert_matmul" || op == "expert_weight_grad"
			if !product && !strings.HasPrefix(op, "attention") {
				continue
			}
			want := "fma.rn.f32"
			switch {
			case op == "attention_delta" || op == "attention_fold":
				want = ""
			case rest == "bf16.h512.a16" && op != "attention": // its tiles have 32 rows, and the newer ones need 64
				want = "mma.sync"
			case strings.HasPrefix(rest, "bf16") && target == "sm90a" && (product || strings.HasSuffix(rest, ".a16")):
				want = "wgmma.mma_async"
			case strings.HasPrefix(rest, "bf16"):
				want = "mma.sync"
			}
			text := strings.ReplaceAll(k.PTX, "\t", " ")
			for _, instruction := range []string{"wgmma.mma_async", "mma.sync", "tf32", " atom.", " red.",
				"fma.rn.f32"} {
				has := strings.Contains(text, instruction)
				if has && instruction != want && instruction != "fma.rn.f32" || !has && instruction == want {
					t.Errorf("%s of %s: has %s: %t", name, target, instruction, has)
				}
			}
		}
	}
}

func TestTarget(t *testing.T) {
	for _, c := range []struct {
		major, minor int
		want         string
	}{{7, 5, ""}, {8, 0, "sm80"}, {8, 6, "sm80"}, {8, 9, "sm80"}, {9, 0, "sm90a"}, {10, 0, "sm80"}, {12, 0, "sm80"}} {
		got, err := Target(c.major, c.minor)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("Target(%d, %d) = %q, %v", c.major, c.minor, got, err)
		}
		if got != "" {
			load(t, got)
		}
	}
	if _, err := Load("sm70"); err == nil {
		t.Error("there are kernels for sm70")
	}
}

// values returns a value for each argument: the named ones, and 0 for the others.
func values(t testing.TB, k *Kernel, named map[string]uint64) []uint64 {
	t.Helper()
	v := make([]uint64, len(k.Args))
	for name, x := range named {
		i := k.Arg(name)
		if i < 0 {
			t.Fatalf("%s has no argument %s", k.Name, name)
		}
		v[i] = x
	}
	return v
}

func TestChoose(t *testing.T) {
	s := load(t, "sm80")
	for _, c := range []struct {
		op   string
		args map[string]uint64
		want string
	}{
		{"add.bf16", map[string]uint64{"y": 4096, "a": 8192, "b": 16, "rows": 3, "cols": 48, "sy": 48, "sa": 64, "sb": 96},
			"add.bf16.a16"},
		{"add.bf16", map[string]uint64{"cols": 40}, "add.bf16.any"},
		{"add.bf16", map[string]uint64{"a": 8}, "add.bf16.any"},
		{"rmsnorm.f32", map[string]uint64{"d": 256, "rstd": 4}, "rmsnorm.f32.narrow"},
		{"rmsnorm.f32", map[string]uint64{"d": 272}, "rmsnorm.f32.a16"},
		{"rmsnorm.f32", map[string]uint64{"d": 17}, "rmsnorm.f32.any"},
		{"rmsnorm_grad.f32.resid", map[string]uint64{"d": 128}, "rmsnorm_grad.f32.resid.narrow"},
		{"rmsnorm_grad.f32", map[string]uint64{"d": 272}, "rmsnorm_grad.f32.c2048"},
		{"rmsnorm_grad.f32", map[string]uint64{"d": 3584}, "rmsnorm_grad.f32.c4096"},
		{"rmsnorm_grad.f32", map[string]uint64{"d": 8192}, "rmsnorm_grad.f32.c8192"},
		{"rmsnorm_grad.f32", map[string]uint64{"d": 8208}, "rmsnorm_grad.f32.a16"},
		{"rmsnorm_grad.f32", map[string]uint64{"d": 3580}, "rmsnorm_grad.f32.any"},
		{"layernorm.bf16", map[string]uint64{"n": 4096}, "layernorm.bf16.a16"},
		{"layernorm_grad.bf16", map[string]uint64{"n": 4090}, "layernorm_grad.bf16.any"},
		{"sum_fold", map[string]uint64{"dst": 8}, "sum_fold"},
	} {
		k, _ := s.Find(c.want)
		got, err := s.Choose(c.op, values(t, k, c.args))
		if err != nil || got != k {
			t.Errorf("%s for %v: %v, %v, want %s", c.op, c.args, got, err, c.want)
		}
	}
	if _, err := s.Choose("add.f16", nil); err == nil {
		t.Error("there is an operation add.f16")
	}
}

// The offsets of parameters are PTX's.
func TestParams(t *testing.T) {
	s := load(t, "sm80")
	for _, name := range s.Names() {
		k, _ := s.Find(name)
		m, err := ptx.Parse([]byte(k.PTX))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		v := make([]uint64, len(k.Args))
		for i := range v {
			v[i] = uint64(i+1) * 16
		}
		if len(k.Most) > 0 {
			continue
		}
		block := k.Params(v)
		entry := m.Kernel(k.Entry)
		if len(block) != entry.ParamBytes() {
			t.Errorf("%s: %d bytes of parameters, PTX has %d", name, len(block), entry.ParamBytes())
			continue
		}
		for i, p := range entry.Params() {
			want := byte(0)
			if i < len(v) {
				want = byte(v[i])
				if p.Offset != k.Args[i].Offset || p.Bytes != k.Args[i].Type.Bytes() || p.Pointer != (k.Args[i].Type == Ptr) {
					t.Errorf("%s: %s at %d, %d bytes; PTX has %+v", name, k.Args[i].Name, k.Args[i].Offset, k.Args[i].Type.Bytes(), p)
				}
			}
			if block[p.Offset] != want {
				t.Errorf("%s: parameter %d is %d, want %d", name, i, block[p.Offset], want)
			}
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	for b.Loop() {
		load(b, "sm80")
	}
}

// Devices say how wide the heads of gated delta nets are that the kernels take.
func TestMostDeltaDim(t *testing.T) {
	all(t, func(t *testing.T, _ string, k *Kernel) {
		for _, dim := range []string{"keydim", "valuedim"} {
			if k.Source == "delta.py" && k.Arg(dim) >= 0 && k.Most[dim] != device.GPUMaxDeltaDim {
				t.Errorf("%s takes a %s of %d, and devices say %d", k.Name, dim, k.Most[dim], device.GPUMaxDeltaDim)
			}
		}
	})
}

// Devices say how many experts the kernels take.
func TestMostExperts(t *testing.T) {
	all(t, func(t *testing.T, _ string, k *Kernel) {
		if name := strings.Split(k.Name, "."); strings.HasPrefix(name[0], "route") && name[len(name)-1] == "any" &&
			k.Most["experts"] != device.GPUMaxExperts {
			t.Errorf("%s takes %d experts, and devices say %d", k.Name, k.Most["experts"], device.GPUMaxExperts)
		}
	})
}
