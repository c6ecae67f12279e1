package plan_test

import (
	"math"
	"strings"
	"testing"

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
			m.RatedWriteBytes < m.DiskBytes || m.Machine.DiskReadBytesPerSec < m.Machine.DiskWriteBytesPerSec || len(m.Sources) < 3 {
			t.Errorf("%+v", m)
		}
		if older := m.Name == "rtx2060-laptop-6gb" || m.Name == "dgx-2"; older != strings.HasPrefix(m.Sources[0], "what-if: this GPU has no bf16") {
			t.Errorf("%s: %s", m.Name, m.Sources[0])
		}
		if got, err := plan.FindMachine(m.Name); err != nil || got.Machine != m.Machine {
			t.Errorf("%s: %v", m.Name, err)
		}
	}
	_, err := plan.FindMachine("rtx4090-pc")
	oneLine(t, err, "rtx4090-pc-128gb or rtx4090-pc-256gb", "dgx-2")
	_, err = plan.FindMachine("")
	oneLine(t, err, "known are rtx2060")
}

// The parameters that model cards state, in billions.
func TestShapes(t *testing.T) {
	billions := map[string]float64{"llama-3-8b": 8.03, "llama-3-70b": 70.55, "qwen2.5-1.5b": 1.54, "qwen2.5-7b": 7.62, "qwen2.5-7b-1m": 7.62, "qwen2.5-14b": 14.77,
		"qwen2.5-32b": 32.76, "qwen2.5-72b": 72.71, "qwen3-8b": 8.19, "qwen3-32b": 32.76, "dense-123b": 122.61, "dense-180-layers": 125.11}
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
	}
	if len(plan.Shapes()) != len(billions) {
		t.Errorf("shapes %v", plan.Shapes())
	}
	_, err := plan.Shape("qwen2.5-3b")
	oneLine(t, err, "qwen2.5-3b", "known are dense-123b")
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
