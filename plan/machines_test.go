package plan_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
)

func TestMachines(t *testing.T) {
	for _, m := range plan.Machines() {
		if err := m.Machine.Check(); err != nil {
			t.Error(err)
		}
		if m.Device.Unified || m.DeviceBytes <= 0 || m.DeviceBytes >= m.Device.MemoryBytes || m.HostBytes <= 0 || m.DiskBytes <= 0 ||
			m.RatedWriteBytes < m.DiskBytes || m.Machine.DiskReadBytesPerSec < m.Machine.DiskWriteBytesPerSec || len(m.Sources) < 5 {
			t.Errorf("%+v", m)
		}
		if several := strings.Contains(m.Name, fmt.Sprintf("-x%d-", m.Devices)); several != (m.Devices > 1) {
			t.Errorf("%s has %d devices", m.Name, m.Devices)
		}
		r := m.Machine // what runs at once has the RAM's rate in all, and gains nothing by it
		times := 1.0
		if m.Name == "gb10-128gb" { // a copy reads and writes the RAM
			times = 2
		}
		all := times*(r.UploadUnderAdamWBytesPerSec+r.DownloadUnderAdamWBytesPerSec) + r.AdamWUnderCopiesBytesPerSec
		if all > 1.001*r.HostBytesPerSec || all < 0.999*r.HostBytesPerSec ||
			times*(r.DuplexUploadBytesPerSec+r.DuplexDownloadBytesPerSec) > 1.001*r.HostBytesPerSec ||
			times*r.UploadBytesPerSec > 1.001*r.HostBytesPerSec ||
			r.UploadUnderAdamWBytesPerSec > r.DuplexUploadBytesPerSec || r.DuplexUploadBytesPerSec > r.UploadBytesPerSec {
			t.Errorf("%s: rates of what runs at once: %+v", m.Name, r)
		}
		if older := m.Name == "rtx2060-laptop-6gb" || m.Name == "dgx-2"; older != strings.HasPrefix(m.Sources[0], "what-if: this GPU has no bf16") {
			t.Errorf("%s: %s", m.Name, m.Sources[0])
		}
		nvlink := strings.Contains(strings.Join(m.Sources, "\n"), "NVLink: ")
		if peers := m.Request(nil, plan.Numerics{}).Device.PeerCopies; peers != nvlink ||
			peers && r.PeerCopyBytesPerSec < 5*r.UploadBytesPerSec {
			t.Errorf("%s: GPUs copy from each other: %v, with %v bytes/s", m.Name, peers, r.PeerCopyBytesPerSec)
		}
		if got, err := plan.FindMachine(m.Name); err != nil || !cmp.Equal(got.Machine, m.Machine) {
			t.Errorf("%s: %v", m.Name, err)
		}
	}
	for _, name := range []string{"rtx4090-pc-128gb", "rtx4090-pc-192gb", "rtx4090-pc-256gb", "rtx5090-pc-192gb"} {
		one, err := plan.FindMachine(name)
		if err != nil {
			t.Fatal(err)
		}
		two, err := plan.FindMachine(name + "-2drives")
		if err != nil {
			t.Fatal(err)
		}
		if two.RatedWriteBytes != one.RatedWriteBytes || two.DiskSpace() != 2*one.DiskSpace() ||
			len(two.Machine.Drives) != 2 || len(two.Request(nil, plan.Numerics{}).Drives) != 2 ||
			two.Machine.DiskWriteBytesPerSec != 2*one.Machine.DiskWriteBytesPerSec ||
			two.Machine.DiskReadBytesPerSec != 2*one.Machine.DiskReadBytesPerSec || two.HostBytes != one.HostBytes {
			t.Errorf("%s is not %s with two drives: %+v, %+v", two.Name, one.Name, two, one)
		}
		two.Machine.DiskReadBytesPerSec = one.Machine.DiskReadBytesPerSec
		two.Machine.DiskWriteBytesPerSec, two.Machine.Name = one.Machine.DiskWriteBytesPerSec, one.Machine.Name
		two.Machine.Drives = nil
		if !cmp.Equal(two.Machine, one.Machine) || !strings.Contains(strings.Join(two.Sources, "\n"), "two, as memory.path") {
			t.Errorf("%s differs from %s in more than its drives", two.Name, one.Name)
		}
	}
	_, err := plan.FindMachine("rtx4090-pc")
	oneLine(t, err, "rtx4090-pc-128gb, rtx4090-pc-128gb-2drives", "dgx-2")
	_, err = plan.FindMachine("")
	oneLine(t, err, "known are rtx2060")
}

// Each machine says which share of its data sheet is taken, and from where; the rates are these shares of the sheet's
// figures.
func TestSharesOfMachinesHaveSources(t *testing.T) {
	sheets := map[string][2]float64{ // TFLOPS in 16 bits, GB/s of the device's memory
		"rtx2060-laptop-6gb": {18.4, 336}, "rtx3090-pc-24gb-64gb": {71, 936}, "rtx3090-pc-24gb-128gb": {71, 936},
		"rtx4090-pc-128gb": {165.2, 1008}, "rtx4090-pc-256gb": {165.2, 1008},
		"rtx4090-pc-128gb-2drives": {165.2, 1008}, "rtx4090-pc-192gb": {165.2, 1008},
		"rtx4090-pc-192gb-2drives": {165.2, 1008}, "rtx4090-pc-256gb-2drives": {165.2, 1008},
		"rtx5060ti-pc-16gb-64gb": {47.4, 448}, "rtx5060ti-pc-16gb-128gb": {47.4, 448},
		"rtx5090-pc-192gb": {209.5, 1792}, "rtx5090-pc-192gb-2drives": {209.5, 1792},
		"h100-pcie5": {756, 2000}, "h100-sxm": {989, 3350}, "h200-1.5tb": {989, 4800},
		"gh200-480gb": {989, 4000}, "dgx-2": {125, 900},
		"rtx5090-pc-128gb": {209.5, 1792}, "rtx5090-pc-256gb": {209.5, 1792}, "rtxa6000-256gb": {154.8, 768},
		"rtx6000ada-256gb": {364.2, 960}, "l40s-512gb": {362.05, 864}, "a100-40gb-256gb": {312, 1555},
		"a100-80gb-512gb": {312, 2039}, "b200-2tb": {2250, 7700}, "gb10-128gb": {125, 273},
		"rtx4090-x2-256gb": {165.2, 1008}, "rtx4090-x4-512gb": {165.2, 1008}, "rtx4090-x8-1.5tb": {165.2, 1008},
		"a100-x8-2tb": {312, 2039}, "h100-x4-1tb": {989, 3350}, "h100-x8-2tb": {989, 3350}, "b200-x8-2tb": {2250, 7700},
	}
	named := map[string]string{"rtx2060-laptop-6gb": "all assumed", "rtx3090-pc-24gb-64gb": "MegaTrain", "rtx3090-pc-24gb-128gb": "MegaTrain",
		"rtx4090-pc-128gb": "SlideFormer", "rtx4090-pc-256gb": "SlideFormer", "h100-pcie5": "issue 95",
		"rtx4090-pc-128gb-2drives": "SlideFormer", "rtx4090-pc-192gb": "SlideFormer",
		"rtx4090-pc-192gb-2drives": "SlideFormer", "rtx4090-pc-256gb-2drives": "SlideFormer",
		"rtx5060ti-pc-16gb-64gb": "of an RTX 5090", "rtx5060ti-pc-16gb-128gb": "of an RTX 5090",
		"rtx5090-pc-192gb": "issue 200", "rtx5090-pc-192gb-2drives": "issue 200",
		"h100-sxm": "issue 79", "h200-1.5tb": "4.3 TB/s", "gh200-480gb": "H100 SXM", "dgx-2": "issue 140",
		"rtx5090-pc-128gb": "issue 200", "rtx5090-pc-256gb": "issue 200", "rtxa6000-256gb": "123.3", "rtx6000ada-256gb": "269.2",
		"l40s-512gb": "269.2", "a100-40gb-256gb": "issue 108", "a100-80gb-512gb": "264.5", "b200-2tb": "1,696",
		"gb10-128gb": "pull request 283", "rtx4090-x2-256gb": "SlideFormer", "rtx4090-x4-512gb": "SlideFormer",
		"rtx4090-x8-1.5tb": "SlideFormer", "a100-x8-2tb": "264.5", "h100-x4-1tb": "issue 79", "h100-x8-2tb": "issue 79",
		"b200-x8-2tb": "1,696"}
	for _, m := range plan.Machines() {
		text := strings.Join(m.Sources, "\n")
		sheet := sheets[m.Name]
		want := fmt.Sprintf("bf16 products %.2f, fp32 products", m.Machine.BF16FLOPsPerSec/sheet[0]/1e12)
		memory := fmt.Sprintf("device memory %.2f: ", m.Machine.DeviceBytesPerSec/sheet[1]/1e9)
		for _, want := range []string{want, memory, named[m.Name], "assumed for every machine: link 0.80"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in\n%s", m.Name, want, text)
			}
		}
	}
}

// The parameters that model cards state, in billions. Those of Qwen 3.5 are of the decoder: 35B-A3B has
// 35.95 with the vision tower and the layer of multi-token prediction.
func TestShapes(t *testing.T) {
	billions := map[string]float64{"llama-3-8b": 8.03, "llama-3-70b": 70.55, "qwen2.5-1.5b": 1.54, "qwen2.5-7b": 7.62, "qwen2.5-7b-1m": 7.62, "qwen2.5-14b": 14.77,
		"qwen2.5-32b": 32.76, "qwen2.5-72b": 72.71, "qwen3-8b": 8.19, "qwen3-32b": 32.76, "dense-123b": 122.61,
		"dense-180-layers": 125.11,
		"smollm2-135m":     0.135, "qwen3-30b-a3b": 30.532, "qwen3-235b-a22b": 235.094,
		"gpt-oss-20b": 20.915, "gpt-oss-120b": 116.829, "glm-4.5-air": 106.852, "phi-4": 14.660,
		"gemma-3-12b": 11.766, "gemma-3-27b": 27.009, "gemma-4-12b": 11.907, "gemma-4-31b": 30.697,
		"gemma-4-26b-a4b": 25.233, "gemma-4-e2b": 4.629, "gemma-4-e4b": 7.463,
		"olmo-3-32b":   32.234,
		"llama-3.2-1b": 1.236, "llama-3.2-3b": 3.213, "qwen3-4b": 4.022, "qwen3-14b": 14.768, "mistral-7b": 7.248,
		"qwen3.5-4b": 4.206, "qwen3.5-27b": 26.896, "qwen3.5-35b-a3b": 34.661, "qwen3.5-122b-a10b": 122.112,
		"deepseek-v3": 671.026, "kimi-k2": 1026.408}
	// Of a token, embedding and head included. The models' cards say 3.3, 22, 3.6, 5.1, 12, 37, 32 and 3.8, all but the
	// first two and the last without the embedding.
	active := map[string]float64{"qwen3-30b-a3b": 3.353, "qwen3-235b-a22b": 22.191, "gpt-oss-20b": 4.187,
		"gpt-oss-120b": 5.710,
		"glm-4.5-air":  13.424, "qwen3.5-35b-a3b": 3.455, "qwen3.5-122b-a10b": 9.771,
		"deepseek-v3": 37.552, "kimi-k2": 32.861, "gemma-4-26b-a4b": 3.823}
	for _, name := range plan.Shapes() {
		text, err := plan.Shape(name)
		if err != nil {
			t.Fatal(err)
		}
		c, err := hf.ParseConfig(name, text)
		if err != nil {
			t.Fatal(err)
		}
		m, err := model.New(c)
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := m.Params(); math.Abs(float64(n)/1e9-billions[name]) > 0.006 {
			t.Errorf("%s has %.3fB parameters, want %.2fB", name, float64(n)/1e9, billions[name])
		}
		want, mixture := active[name]
		if n, _ := m.Params(); !mixture {
			want = float64(n) / 1e9
		}
		if n := m.Active(); math.Abs(float64(n)/1e9-want) > 0.006 {
			t.Errorf("%s: a token uses %.3fB parameters, want %.2fB", name, float64(n)/1e9, want)
		}
	}
	if len(plan.Shapes()) != len(billions) {
		t.Errorf("shapes %v", plan.Shapes())
	}
	_, err := plan.Shape("qwen2.5-3b")
	oneLine(t, err, "qwen2.5-3b", "known are deepseek-v3")
}

// A part of a name, or a slip, is answered with the names that it may mean.
func TestUnknownNamesAreAnswered(t *testing.T) {
	_, machineErr := plan.FindMachine("4090")
	_, shapeErr := plan.Shape("70b")
	_, slipErr := plan.Shape("lama-3-8b")
	for want, err := range map[string]error{"did you mean rtx4090-": machineErr, "did you mean llama-3-70b?": shapeErr, "did you mean llama-3-8b?": slipErr} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
