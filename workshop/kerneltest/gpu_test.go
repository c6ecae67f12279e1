package kerneltest

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/device/cuda/kernels"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

// onStandIn is a GPU that the stand-in plays.
func onStandIn(t *testing.T, target string, capability [2]int32) (*backend, *standin.Driver) {
	t.Helper()
	d := standin.New(standin.Options{Capability: capability, SharedOptinBytes: 227 << 10})
	g, err := openGPU(d.API(), target, true)
	if err != nil {
		t.Fatal(err)
	}
	return &backend{target: target, gpu: g}, d
}

// What runs kernels on a GPU works on the stand-in: operands go there and come back, and nothing is left.
func TestKernelsRunOnStandIn(t *testing.T) {
	for _, name := range []string{"Add", "Loss", "Fold", "ScatterAdd", "Sum"} {
		t.Run(name, func(t *testing.T) {
			on, _ := onStandIn(t, "sm90a", [2]int32{9, 0})
			runs[slices.IndexFunc(runs, func(r kernelRun) bool { return r.name == name })].run(t, on)
			for kernel, o := range on.report.kernels {
				if o.failed || o.launches == 0 {
					t.Errorf("%s: %+v", kernel, *o)
				}
			}
			if err := on.gpu.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// What rounds to bf16 on the way to a result in fp32 may be further from the interpreter than what does not.
func TestNearly(t *testing.T) {
	b := benchFor(t, &backend{target: "sm80"}, 1)
	got, want := b.field(tensor.F32, 1, 2, 2), b.field(tensor.F32, 1, 2, 2)
	for i, x := range []float64{5, 0.25} {
		got.put(0, i, x)
		want.put(0, i, x)
	}
	for _, c := range []struct {
		kernel  string
		off     float64
		allowed bool
	}{
		{"attention_dkdv.f32.h16.any", 0.9e-4, true}, {"attention_dkdv.f32.h16.any", 1.1e-4, false},
		{"attention_dkdv.bf16.h256.a16", 3.9e-4, true}, {"attention_dkdv.bf16.h256.a16", 4.1e-4, false},
		{"adamw.f32.f32.any", 1e-6, false}, // whose bits are defined
	} {
		k, ok := b.set.Find(c.kernel)
		if !ok {
			t.Fatalf("no kernel %s", c.kernel)
		}
		got.put(0, 1, 0.25+5*c.off) // of the largest
		if share, at := got.differs(want.bytes, k); (share <= 1) != c.allowed {
			t.Errorf("%s, off by %g: %g of what is allowed at %s", c.kernel, c.off, share, at)
		}
	}
}

// A run is a process of its own, which a sanitizer may start.
func TestWrapped(t *testing.T) {
	for wrap, before := range map[string][]string{"": nil, "check --log  x.txt": {"check", "--log", "x.txt"}} {
		t.Setenv(WrapVariable, wrap)
		c := process("TestOnce", "code", "MatMul")
		want := append(before, os.Args[0], "-test.run=^TestOnce$", "-test.v", "-test.count=1")
		if !slices.Equal(c.Args, want) || !slices.Contains(c.Env, gpuRun+"=code MatMul") {
			t.Errorf("%q: %q, want %q", wrap, c.Args, want)
		}
	}
}

// complaints takes the place of a test that fails on purpose.
type complaints struct{ lines []string }

func (*complaints) Helper()             {}
func (c *complaints) Error(args ...any) { c.lines = append(c.lines, fmt.Sprint(args...)) }
func (c *complaints) Errorf(f string, args ...any) {
	c.lines = append(c.lines, fmt.Sprintf(f, args...))
}
func (c *complaints) Fatal(args ...any)            { c.Error(args...); panic(c) }
func (c *complaints) Fatalf(f string, args ...any) { c.Errorf(f, args...); panic(c) }

// recover is for the end of what may call Fatal.
func (c *complaints) recover() {
	if p := recover(); p != nil && p != any(c) {
		panic(p)
	}
}

// A kernel that computes something else, writes where it must not or ends the context is found out.
func TestWrongKernelsAreFound(t *testing.T) {
	address := regexp.MustCompile(`(st\.global\.b32 \[ %rd[0-9]+ \+) 0`)
	for _, c := range []struct {
		what  string
		alter func(ptx string) string
		want  string
		ends  bool // the context, so that no other kernel can run
	}{
		{"a subtraction", func(ptx string) string { return strings.ReplaceAll(ptx, "add.f32", "sub.f32") },
			"times what is allowed between the GPU and the interpreter", false},
		{"no PTX at all", func(string) string { return "nonsense" }, "cuModuleLoadData", false},
		{"a store outside", func(ptx string) string { return address.ReplaceAllString(ptx, "$1 2048") },
			"it wrote outside of its operands", false},
		{"an address that does not exist",
			func(ptx string) string { return address.ReplaceAllString(ptx, "$1 1073741824") }, "illegal address", true},
	} {
		t.Run(c.what, func(t *testing.T) {
			on, _ := onStandIn(t, "sm80", [2]int32{8, 0})
			on.gpu.load = func(k *kernels.Kernel) []byte { return append([]byte(c.alter(k.PTX)), 0) }
			said := &complaints{}
			b := benchFor(said, on, 1)
			x, y := b.normal(tensor.F32, 3, 48, 48), b.normal(tensor.F32, 3, 48, 48)
			func() {
				defer said.recover()
				b.run("add.f32.any", y, x, y, 3, 48, 48, 48, 48)
			}()
			text, outcome := strings.Join(said.lines, "\n"), *on.report.kernels["add.f32.any"]
			if !outcome.failed || !strings.Contains(text, c.want) {
				t.Errorf("said %q, want %q; %+v", text, c.want, outcome)
			}
			on.gpu.load = func(k *kernels.Kernel) []byte { return append([]byte(k.PTX), 0) }
			func() {
				defer said.recover()
				b.run("add.f32.a16", y, x, y, 3, 48, 48, 48, 48)
			}()
			if failed := on.report.kernels["add.f32.a16"].failed || on.gpu.lost != nil; failed != c.ends {
				t.Errorf("another kernel fails then: %t, want %t", failed, c.ends)
			}
		})
	}
}
