package harness

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/millrace/millrace/device/cpu/isa"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
)

func TestSeries(t *testing.T) {
	s := Series{8, 2, 4}
	if q := s.Over(Series{4, 4, 1}); !slices.Equal(q, Series{2, 0.5, 4}) || q.Median() != 2 {
		t.Errorf("quotients %v, their median %v", q, q.Median())
	}
	if m := (Series{4, 1, 2, 8}).Median(); m != 3 {
		t.Errorf("the median of an even number of figures is %v", m)
	}
	if low, high := (Series{5, 3, 1, 2, 4}).Quartiles(); low != 2 || high != 4 {
		t.Errorf("quartiles %v and %v", low, high)
	}
	if low, high := (Series{7}).Quartiles(); low != 7 || high != 7 {
		t.Errorf("quartiles of one turn: %v and %v", low, high)
	}
	if !slices.Equal(s, Series{8, 2, 4}) {
		t.Errorf("the turns have another order now: %v", s)
	}
}

func TestLevel(t *testing.T) {
	all := []isa.Level{isa.Plain, isa.AVX2, isa.AVX512, isa.AVX512BF16, isa.AMX}
	for i, name := range []string{"plain", "avx2", "avx512", "avx512bf16", "amx"} {
		if got := Level("-level", name, all); got != all[i] {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The written config.json is that of the model it is named after.
func TestLlama(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	if err := SmolLM2.Write(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil || !json.Valid(text) {
		t.Fatal(err)
	}
	m := Must(model.New(Must(hf.ParseConfig("SmolLM2", text))))
	if n, _ := m.Params(); n != 134_515_008 || len(m.BlockParts) != 30 || !m.Tied {
		t.Errorf("%d parameters, %d blocks, tied %t", n, len(m.BlockParts), m.Tied)
	}
}

func TestStep(t *testing.T) {
	m := Model("qwen2.5-1.5b", 2)
	on := Must(plan.FindMachine("h100-sxm"))
	r := plan.Request{Model: m, Device: on.Device, Machine: on.Machine, DeviceBytes: on.DeviceBytes, Numerics: Numerics(0)}
	s, ok := PlanStep(r, 16384, 8192)
	if !ok || len(m.BlockParts) != 2 || s.Numerics.MicroBatch != 4 || s.Numerics.MicroBatches != 2 {
		t.Fatalf("a plan: %t; %d blocks, %+v", ok, len(m.BlockParts), s.Numerics)
	}
	flops := 8 * m.TrainFLOPs([]int{SequenceLen})
	if want := float64(flops) / s.Predicted.StepSeconds / 1e12; math.Abs(s.ModelTFLOPS()/want-1) > 1e-12 {
		t.Errorf("%v model TFLOP/s, want %v", s.ModelTFLOPS(), want)
	}
	if busy := s.Busy(plan.LaneCompute); !(busy > 0 && busy <= 100) {
		t.Errorf("the compute lane is busy for %v%%", busy)
	}
	r.DeviceBytes = 1 << 20
	if _, ok := PlanStep(r, 16384, 8192); ok {
		t.Error("1 MiB is enough")
	}
}
