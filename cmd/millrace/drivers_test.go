package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/train"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

// The tests of the verbs say what happens on a machine without a GPU, wherever they run.
// noKernels is a loader for devices that are opened and not used.
func noKernels([]byte) (*standin.Image, error) {
	return &standin.Image{Kernel: func(string) *standin.Kernel { return &standin.Kernel{} }}, nil
}

// useGPU puts a stand-in of a driver in place.
func useGPU(t *testing.T, o standin.Options) {
	before := loadDriver
	t.Cleanup(func() { loadDriver = before })
	gpu := standin.New(o)
	loadDriver = func() (*driver.API, error) { return gpu.API(), nil }
	t.Cleanup(func() {
		if err := gpu.Check(); err != nil {
			t.Error(err)
		}
	})
}

// failsOnce has the first call of a function of the driver fail.
func failsOnce(call string) func(string, int) driver.Result {
	var failed atomic.Bool
	return func(c string, _ int) driver.Result {
		if c == call && failed.CompareAndSwap(false, true) {
			return driver.Unknown
		}
		return driver.Success
	}
}

func TestDevices(t *testing.T) {
	for _, c := range []struct {
		name string
		gpu  *standin.Options // nil: no driver
		want string           // in the device's name, or
		err  string           // in the error
		note string
		// devices counts those that compute; 0: any number passes.
		devices int
		hosts   hosts // processes that share the GPUs
	}{
		{name: "auto", gpu: &standin.Options{Cards: 5}, hosts: hosts{parts: 2}, want: "cuda:0", devices: 2},
		{name: "auto", gpu: &standin.Options{Cards: 5}, hosts: hosts{part: 1, parts: 2}, want: "cuda:2", devices: 3},
		{name: "cuda:0", gpu: &standin.Options{Cards: 2}, hosts: hosts{part: 1, parts: 2}, want: "cuda:0", devices: 1},
		{name: "cuda", gpu: &standin.Options{Cards: 5}, hosts: hosts{part: 1, parts: 2}, want: "cuda:2", devices: 1},
		{name: "cuda", gpu: &standin.Options{Cards: 5}, hosts: hosts{part: 0, parts: 2}, want: "cuda:0", devices: 1},
		{name: "cuda", gpu: &standin.Options{Cards: 2}, hosts: hosts{parts: 3}, err: "device cuda: 3 processes were " +
			"started on this machine, which has fewer GPUs than that (2): start as many as there are, or one for all " +
			"of them; where each sees a GPU of its own, set device to cuda:0"},
		{name: "auto", gpu: &standin.Options{Cards: 2}, hosts: hosts{parts: 3},
			err: "device auto: 3 processes were started on this machine, which has fewer GPUs than that (2): start"},
		{name: "auto", want: "CPU"},
		{name: "cpu", want: "CPU"},
		{name: "cpu, cpu", want: "CPU", gpu: &standin.Options{}},
		{name: "cpu,cuda:0", err: `"cpu,cuda:0": a step is shared by GPUs or by CPU devices, and not by both`},
		{name: "cuda:0,cuda:1", err: "device cuda:0,cuda:1: no NVIDIA driver"},
		{name: "cuda:1,cuda:0", gpu: &standin.Options{Cards: 2}, want: "cuda:1", devices: 2},
		{name: "cuda:0,cuda:2", gpu: &standin.Options{Cards: 2},
			err: "device cuda:2: there is no such GPU; there are cuda:0 ("},
		{name: "cuda:0, cuda:0", gpu: &standin.Options{Cards: 2}, err: "cuda:0 is named twice; name each GPU once"},
		{name: "cuda:0,cuda:1", gpu: &standin.Options{Cards: 2, Odd: map[int][2]int32{1: {8, 6}}},
			err: "cuda:0 (Stand-in sm_80, compute capability 8.0) and cuda:1 (Stand-in sm_86, compute capability " +
				"8.6) are of different kinds"},
		{name: "auto", gpu: &standin.Options{Cards: 3}, want: "cuda:0", devices: 3},
		{name: "first", gpu: &standin.Options{Cards: 3}, want: "cuda:0"},
		{name: "auto", gpu: &standin.Options{Cards: 4, Odd: map[int][2]int32{0: {7, 5}, 2: {8, 6}}},
			want: "cuda:1", devices: 2,
			note: "millrace: device auto: GPUs of other kinds than cuda:1 (Stand-in sm_80, compute capability 8.0) " +
				"are left out: cuda:2 (Stand-in sm_86, compute capability 8.6)"},
		{name: "auto", gpu: &standin.Options{Cards: 2, Fail: failsOnce("DevicePrimaryCtxRetain")}, want: "cuda:1",
			note: "millrace: device auto: the run computes without cuda:0: device cuda:0: cuDevicePrimaryCtxRetain: "},
		{name: "first", want: "CPU"},
		{name: "first", gpu: &standin.Options{Cards: 2, Fail: failsOnce("Init")}, want: "CPU",
			note: "millrace: computing on the CPU: device auto: cuInit: "},
		{name: "cpu,", err: `"" cannot be one of several; name GPUs by number, such as cuda:0, or cpu`},
		{name: "auto,cuda:0", err: `"auto" cannot be one of several`},
		{name: strings.Repeat("cpu,", 64) + "cpu", err: "65 devices are named, and there can be 64"},
		{name: "cuda", err: "device cuda: no NVIDIA driver"},
		{name: "cuda:0", err: "device cuda:0: no NVIDIA driver"},
		{name: "auto", gpu: &standin.Options{}, want: "cuda:0, compute capability 8.0"},
		{name: "cuda", gpu: &standin.Options{}, want: "cuda:0"},
		{name: "cuda:0", gpu: &standin.Options{}, want: "cuda:0"},
		{name: "cpu", gpu: &standin.Options{}, want: "CPU"},
		{name: "cuda:1", gpu: &standin.Options{}, err: "device cuda:1: there is no such GPU; there is only cuda:0 ("},
		{name: "cuda:one", gpu: &standin.Options{}, err: `"one" is not the number of a GPU; use cuda:0 for the first one`},
		{name: "cuda:", gpu: &standin.Options{}, err: "is not the number of a GPU"},
		{name: "cuda:-1", gpu: &standin.Options{}, err: "is not the number of a GPU"},
		{name: "cpu:0", err: "unknown: use auto, cpu, cuda or cuda:N"},
		{name: "rocm", gpu: &standin.Options{}, err: `device "rocm" is unknown`},
		{name: "auto", gpu: &standin.Options{Capability: [2]int32{7, 5}}, want: "CPU",
			note: "millrace: computing on the CPU: device cuda:0: "},
		{name: "cuda", gpu: &standin.Options{Capability: [2]int32{7, 5}}, err: "compute capability 7.5, and 8.0 or newer is needed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.gpu != nil {
				c.gpu.Load = noKernels
				useGPU(t, *c.gpu)
			}
			var stderr bytes.Buffer
			p := &program{stderr: &progress{w: &stderr}, hosts: c.hosts}
			computes, host, err := p.openDevice(c.name, hostmem.New())
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "\n") {
					t.Errorf("the error is %v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if n := len(computes); c.devices > 0 && n != c.devices {
				t.Errorf("%d devices compute, want %d", n, c.devices)
			}
			if name := computes[0].Info().Name; !strings.Contains(name, c.want) {
				t.Errorf("%q computes, want %q", name, c.want)
			}
			if name := host.Info().Name; !strings.HasPrefix(name, "CPU") {
				t.Errorf("%q is the host", name)
			}
			if n := strings.Count(stderr.String(), "matrix products run on"); n > 1 {
				t.Errorf("what several devices say is said %d times: %s", n, stderr.String())
			}
			if !strings.Contains(stderr.String(), c.note) {
				t.Errorf("notes %q, want %q", stderr.String(), c.note)
			}
			for _, d := range computes {
				if d != host {
					err = errors.Join(err, d.Close())
				}
			}
			if err := errors.Join(err, host.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// Verbs that compute nothing here leave the GPU alone: opening one takes seconds and some of its memory.
func TestVerbsWithoutDevice(t *testing.T) {
	w := newWorkshop(t)
	before := loadDriver
	t.Cleanup(func() { loadDriver = before })
	loadDriver = func() (*driver.API, error) {
		t.Error("the driver is loaded")
		return nil, driver.ErrMissing
	}
	for _, args := range [][]string{
		{"plan", "--shape", "qwen2.5-1.5b", "--machine", "h100-pcie5"},
		{"plan", w.path("run.yaml"), "--machine", "h100-pcie5"},
		{"preview", w.path("run.yaml")},
		{"export", w.path("model"), w.path("exported")},
		{"version"},
	} {
		invoke(t, args...).must(t)
	}
	if r := invoke(t, "import", w.path("none.gguf"), w.path("imported")); r.status != exitBadRequest {
		t.Errorf("status %d: %s", r.status, r.stderr)
	}
}

// A run file is trained on a GPU, with what it streams through a small budget, and gives nearly the CPU's losses.
func TestTrainOnGPU(t *testing.T) {
	if testing.Short() {
		t.Skip("interprets the GPU's kernels")
	}
	w := newWorkshop(t)
	run := func(out string, set ...string) train.Summary {
		args := []string{"train", w.path("run.yaml"), "--json", "--set", "output_dir=" + w.path(out), "--set", "max_steps=2"}
		for _, s := range append(set, "numerics={micro_batch: 1, head_chunk: 32}", "batch_tokens=64") {
			args = append(args, "--set", s)
		}
		return jsonOf[train.Summary](t, invoke(t, args...).must(t).stdout)
	}
	want := run("cpu")
	useGPU(t, standin.Options{})
	whole := run("gpu")
	own := jsonOf[plan.Plan](t, invoke(t, "plan", w.path("run.yaml"), "--json").must(t).stdout).DeviceDriverBytes
	small := run("streamed", fmt.Sprintf("memory.device=%dB", own+112<<10))
	if d := whole.LastLoss/want.LastLoss - 1; d < -0.01 || d > 0.01 || whole.LastLoss == want.LastLoss {
		t.Errorf("a loss of %v, on the CPU %v", whole.LastLoss, want.LastLoss)
	}
	if w.read("gpu/model/model.safetensors") != w.read("streamed/model/model.safetensors") {
		t.Error("streaming changes the weights")
	}
	if small.UploadBytes <= whole.UploadBytes {
		t.Errorf("%d bytes to the device with a small budget, %d with all of it", small.UploadBytes, whole.UploadBytes)
	}
	useGPU(t, standin.Options{Cards: 2, Peers: true})
	run("shared")
	if w.read("gpu/model/model.safetensors") != w.read("shared/model/model.safetensors") {
		t.Error("a second GPU changes the weights")
	}
	if last := w.read("shared/plan.json"); !strings.Contains(last, `"deal"`) ||
		!strings.Contains(last, `"peer_copies"`) {
		t.Errorf("the second GPU has no visits, or rows pass through host memory: %s", last)
	}
}

// GPUs that reach each other's memory copy rows from there, unless MILLRACE_PEER_COPIES=0 says otherwise.
func TestPeerCopies(t *testing.T) {
	w := newWorkshop(t)
	for value, peers := range map[string]bool{"": true, "0": false} {
		t.Setenv("MILLRACE_PEER_COPIES", value)
		useGPU(t, standin.Options{Cards: 2, Peers: true, Load: noKernels})
		p := jsonOf[plan.Plan](t, invoke(t, "plan", w.path("run.yaml"), "--json", "--set", "batch_tokens=64",
			"--set", "numerics={micro_batch: 1, head_chunk: 32}").must(t).stdout)
		if p.Ranks() != 2 || p.PeerCopies() != peers {
			t.Errorf("%q: %d GPUs, which copy from each other: %v", value, p.Ranks(), p.PeerCopies())
		}
	}
}

// MILLRACE_OWN_PRODUCTS=1 is for comparisons: no library is looked for, and none is missed.
func TestOwnProducts(t *testing.T) {
	for value, missed := range map[string]bool{"1": false, "": true} {
		t.Setenv("MILLRACE_OWN_PRODUCTS", value)
		useGPU(t, standin.Options{Load: noKernels})
		p := &program{stderr: &progress{w: &bytes.Buffer{}}}
		computes, host, err := p.openDevice("cuda:0", hostmem.New())
		if err != nil {
			t.Fatal(err)
		}
		if info := computes[0].Info(); missed != (info.Warning != "" || info.TunesProducts) {
			t.Errorf("%q: warning %q, a library multiplies: %t", value, info.Warning, info.TunesProducts)
		}
		if err := errors.Join(computes[0].Close(), host.Close()); err != nil {
			t.Error(err)
		}
	}
}
