package cuda_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda"
	"github.com/millrace/millrace/device/devicetest"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/workshop/kerneltest"
)

// Tests on a GPU. They run with MILLRACE_GPU=1, and fail then if the machine has no GPU. `make gpu-check` packs them
// for a machine that has neither Go nor this tree.

func needGPU(t *testing.T) {
	t.Helper()
	if os.Getenv("MILLRACE_GPU") != "1" {
		t.Skip("needs a GPU: set MILLRACE_GPU=1")
	}
}

// openGPU opens the first GPU.
func openGPU(t testing.TB, p products) *cuda.Device {
	t.Helper()
	api, err := loadDriver()
	if err != nil {
		t.Fatal(err)
	}
	d, err := cuda.Open(cuda.Options{API: api, OwnProducts: p == ownProducts, OpenBLAS: gpuBLAS(api),
		Note: func(line string) { t.Log(line) }})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// shared is a device that several tests use one after the other: opening one takes a while.
type shared struct{ *cuda.Device }

func (shared) Close() error { return nil }

// onGPU runs the parts of a test at once, with the program's own matrix products and, where it is installed, with
// cuBLASLt. Each has a device of its own: the algorithms that one tunes for its shapes would change the bits of
// another.
func onGPU(t *testing.T, parts []string, f func(t *testing.T, part int, d *cuda.Device)) {
	needGPU(t)
	for p, name := range []string{ownProducts: "own products", library: "cuBLASLt"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := openGPU(t, products(p))
			t.Cleanup(func() { mustClose(t, first) })
			if products(p) == library && first.Info().Warning != "" {
				t.Skipf("this subtest multiplies with NVIDIA's cuBLASLt, which this machine cannot load; the subtest "+
					"\"own products\" runs the same without it. %s", first.Info().Warning)
			}
			t.Log(first.Info().Name)
			for i, part := range parts {
				t.Run(part, func(t *testing.T) {
					t.Parallel()
					d := first
					if i > 0 {
						d = openGPU(t, products(p))
						defer mustClose(t, d)
					}
					f(t, i, d)
				})
			}
		})
	}
}

// gpuF32 is how far fp32 results may be off: tensor cores add products in groups and truncate, and GPUs approximate
// exp and rsqrt.
var gpuF32 = devicetest.Tolerance{Rel: 1e-5, Abs: 1e-5}

// gpuSuite is the suite on an open device. Odd operands reach the kernels for any operands, aligned ones those of
// real models.
func gpuSuite(d *cuda.Device, align int) devicetest.Suite {
	return devicetest.Suite{Open: func() device.Device { return shared{d} }, F32: gpuF32, Align: align, MostFailures: 5}
}

// onGPUAligned runs a test of the suite for operands that are aligned and for others.
func onGPUAligned(t *testing.T, f func(t *testing.T, s devicetest.Suite)) {
	aligns := []int{0, 16}
	var parts []string
	for _, align := range aligns {
		parts = append(parts, fmt.Sprintf("aligned to %d", align))
	}
	onGPU(t, parts, func(t *testing.T, part int, d *cuda.Device) { f(t, gpuSuite(d, aligns[part])) })
}

// The suite of all drivers.
func TestGPUConformance(t *testing.T) {
	onGPUAligned(t, func(t *testing.T, s devicetest.Suite) {
		s.Fail = fail
		s.Run(t)
	})
}

// The bits do not depend on the occasion.
func TestGPURepeats(t *testing.T) {
	onGPUAligned(t, func(t *testing.T, s devicetest.Suite) {
		first := map[string]string{}
		for _, time := range []string{"once", "again"} {
			t.Run(time, func(t *testing.T) {
				s.Observe = func(test string, written []byte) {
					name := strings.TrimPrefix(test, t.Name())
					if time == "once" {
						first[name] = string(written)
					} else if first[name] != string(written) {
						t.Errorf("%s: other bits the second time", name)
					}
				}
				s.Run(t)
			})
		}
	})
}

// Every kernel, launched directly: what was compiled is right before anything else is asked.
func TestGPUKernels(t *testing.T) {
	needGPU(t)
	kerneltest.GPU(t, "TestGPUKernelsOnce")
}

// TestGPUKernelsOnce is a process of TestGPUKernels.
func TestGPUKernelsOnce(t *testing.T) { kerneltest.GPUOnce(t, loadDriver) }

// groups is the number of groups of variants that a GPU tests at once.
const groups = 4

// inGroups runs a test for variants in both types, and for all kinds of products. Such a test mostly waits for the
// host, so there are several at once.
func inGroups(t *testing.T, variants []string,
	test func(t *testing.T, variant string, compute tensor.DType, d *cuda.Device)) {
	var parts []string
	for g := range groups {
		parts = append(parts, fmt.Sprint("group ", g))
	}
	onGPU(t, parts, func(t *testing.T, g int, d *cuda.Device) {
		for i := g; i < len(variants); i += groups {
			for _, compute := range []tensor.DType{tensor.BF16, tensor.F32} {
				t.Run(variants[i]+" "+compute.String(), func(t *testing.T) { test(t, variants[i], compute, d) })
			}
		}
	})
}

// The engine's laws, and the losses of the CPU and of PyTorch.
func TestGPUTraining(t *testing.T) {
	needGPU(t)
	inGroups(t, modeltest.Variants(t), func(t *testing.T, variant string, compute tensor.DType, d *cuda.Device) {
		trainingLaws(t, variant, compute, lawSteps, func() device.Device { return shared{d} })
	})
}

// Text a few positions at a time. Whether a product of one row has the bits of many is the library's to say.
func TestGPUContinues(t *testing.T) {
	variants := []string{"qwen3", "gemma2", "gpt_oss", "deepseek_v3", "qwen3_5"}
	inGroups(t, variants, func(t *testing.T, variant string, compute tensor.DType, d *cuda.Device) {
		continuing(t, variant, compute, false, d)
		if variant == "qwen3" || variant == "gpt_oss" {
			samplesAsItTrains(t, variant, compute, map[tensor.DType]float64{tensor.F32: 1e-3, tensor.BF16: 0.1}[compute], d)
		}
	})
}

// TestGPUBadInput runs each mistake of a user, and each failure of a GPU, in a process of its own.
func TestGPUBadInput(t *testing.T) {
	needGPU(t)
	again := func(t *testing.T, test string, env ...string) {
		t.Helper()
		c := exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.v")
		c.Env = append(os.Environ(), append(env, "MILLRACE_GPU_AGAIN=1")...)
		out, err := c.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: "+test) {
			t.Errorf("%v\n%s", err, out)
		}
	}
	t.Run("no visible GPU", func(t *testing.T) { again(t, "TestGPUInvisible", "CUDA_VISIBLE_DEVICES=") })
	t.Run("lost context", func(t *testing.T) { again(t, "TestGPULostContext") })
	t.Run("wrong ordinal", func(t *testing.T) {
		api, err := loadDriver()
		if err != nil {
			t.Fatal(err)
		}
		_, err = cuda.Open(cuda.Options{Ordinal: 77, API: api})
		oneLine(t, err, "device cuda:77: there is no such GPU; there ", "cuda:0 (", "GiB)")
	})
	t.Run("no memory left", func(t *testing.T) {
		d := openGPU(t, ownProducts)
		defer mustClose(t, d)
		_, err := d.Alloc("arena", d.Info().MemoryBytes+(8<<30))
		oneLine(t, err, "device cuda:0: allocate ", " for arena: ", " are free: cuMemAlloc: out of memory (CUDA_ERROR_OUT_OF_MEMORY, 2)")
		b, err := d.Alloc("arena", d.Info().MemoryBytes-d.Info().OverheadBytes) // what is offered can be had
		if err != nil {
			t.Fatal(err)
		}
		mustClose(t, b)
	})
}

func needAgain(t *testing.T) {
	t.Helper()
	needGPU(t)
	if os.Getenv("MILLRACE_GPU_AGAIN") != "1" {
		t.Skip("runs in a process of its own, started by TestGPUBadInput")
	}
}

func TestGPUInvisible(t *testing.T) {
	needAgain(t)
	_, err := cuda.Open(cuda.Options{})
	oneLine(t, err, "device cuda:0: the driver shows no GPU", `CUDA_VISIBLE_DEVICES is ""`)
}

func TestGPULostContext(t *testing.T) {
	needAgain(t)
	d := openGPU(t, ownProducts)
	s, err := d.NewStream("compute")
	if err != nil {
		t.Fatal(err)
	}
	e, err := d.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	s.(*cuda.Stream).Crash()
	s.Record(e)
	oneLine(t, s.Sync(), "on stream compute: cu")
	for _, err := range []error{s.Sync(), e.Wait(), s.Close()} {
		oneLine(t, err, "device cuda:0: ", "; the operation that failed may be an earlier one")
	}
	_, err = d.Alloc("more", 1<<20)
	oneLine(t, err, "only a new process can use the GPU again")
	if err := errors.Join(e.Close(), d.Close()); err != nil {
		t.Errorf("closing: %v", err)
	}
}
