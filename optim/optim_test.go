package optim

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/millrace/millrace/tensor"
)

// The rates are those of transformers, at every step. testdata/schedules.py has written them.
func TestSchedulesOfTransformers(t *testing.T) {
	doc, err := os.ReadFile("testdata/schedules.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Peak  float64
		Cases []struct {
			Shape  Shape
			Floor  float64
			Warmup int
			Rates  []*float64
		}
	}
	if err := json.Unmarshal(doc, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Cases) < 40 {
		t.Fatalf("%d cases", len(golden.Cases))
	}
	for _, c := range golden.Cases {
		s := Schedule{c.Shape, golden.Peak, c.Floor, c.Warmup, len(c.Rates)}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		for i, want := range c.Rates {
			if got := s.At(i + 1); want != nil && math.Abs(got-*want) > 1e-12*golden.Peak {
				t.Errorf("%+v at step %d: %v, want %v", s, i+1, got, *want)
			}
		}
	}
}

// Steps that transformers does not have: after the last one, and the warm-up of a schedule with a floor, which begins
// at 0 in every shape.
func TestSchedulesBeyondTransformers(t *testing.T) {
	for _, c := range []struct {
		Schedule
		step int
		want float64
	}{
		{Schedule{Linear, 1, 0, 4, 10}, 11, 0}, {Schedule{Linear, 1, 0.2, 4, 10}, 11, 0.2}, {Schedule{WSD, 1, 0, 4, 10}, 11, 0},
		{Schedule{WSD, 1, 0.2, 4, 10}, 11, 0.2}, {Schedule{Constant, 1, 0, 4, 10}, 1000, 1},
		{Schedule{Cosine, 1, 0.2, 4, 10}, 1, 0},
		// A warm-up as long as the run, and longer; the tenth that WSD falls in is rounded down, and at least one step.
		{Schedule{Linear, 1, 0.5, 10, 10}, 11, 1}, {Schedule{Linear, 1, 0.5, 10, 10}, 12, 0.5}, {Schedule{Linear, 1, 0.5, 10, 10}, 13, 0.5}, {Schedule{Linear, 1, 0, 20, 10}, 11, 0.5},
		{Schedule{WSD, 1, 0, 0, 9}, 9, 1}, {Schedule{WSD, 1, 0, 0, 9}, 10, 0}, {Schedule{WSD, 1, 0, 0, 39}, 37, 1},
		{Schedule{WSD, 1, 0, 0, 39}, 38, 2. / 3},
		{Schedule{WSD, 1, 0.2, 4, 10}, 3, 0.5}, {Schedule{Linear, 1, 0.2, 4, 10}, 3, 0.5},
	} {
		if got := c.At(c.step); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%+v at step %d: %v, want %v", c.Schedule, c.step, got, c.want)
		}
	}
}

func TestScheduleCheck(t *testing.T) {
	for name, s := range map[string]Schedule{
		"shape": {"sine", 1, 0, 0, 10}, "steps": {Cosine, 1, 0, 0, 0}, "warm-up": {Cosine, 1, 0, -1, 10},
		"negative": {Cosine, -1, 0, 0, 10}, "nan": {Cosine, math.NaN(), 0, 0, 10}, "infinite": {Cosine, math.Inf(1), 0, 0, 10},
		"negative floor": {Cosine, 1, -1, 0, 10}, "floor nan": {Cosine, 1, math.NaN(), 0, 10},
		"floor above the peak": {Cosine, 1, 2, 0, 10}, "floor of a constant": {Constant, 1, 0.1, 0, 10},
	} {
		if s.Check() == nil {
			t.Errorf("%s: accepted %+v", name, s)
		}
	}
	for _, s := range []Schedule{{Constant, 0, 0, 0, 1}, {Cosine, 1, 1, 20, 10}, {WSD, 1, 0, 0, 9}} {
		if err := s.Check(); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
	for _, floor := range []float64{0, 1e-6, 1e-5} {
		if err := (Schedule{Cosine, 1e-5, floor, 3, 10}).Check(); err != nil {
			t.Error(err)
		}
	}
}

func TestBytesPerParam(t *testing.T) {
	for _, c := range []struct {
		Scheme
		with, without float64
	}{
		{Scheme{Split, MomentsF32}, 14, 12}, {Scheme{F32, MomentsF32}, 16, 12},
		{Scheme{Split24, MomentsF32}, 13, 11}, {Scheme{Split24, Dynamic8}, 7 + 2*4.0/256, 5 + 2*4.0/256},
		{Scheme{Split, Dynamic8}, 8 + 2*4.0/256, 6 + 2*4.0/256}, {Scheme{F32, Dynamic8}, 10 + 2*4.0/256, 6 + 2*4.0/256},
		{Scheme{Split, Dynamic8Root4}, 7.546875, 5.546875}, {Scheme{F32, Dynamic8Root4}, 9.546875, 5.546875},
		{Scheme{Split, Power4Root4}, 7.0625, 5.0625}, {Scheme{F32, Power4Root4}, 9.0625, 5.0625},
	} {
		if a, b := c.BytesPerParam(true), c.BytesPerParam(false); a != c.with || b != c.without {
			t.Errorf("%v master, %v moments: %v and %v bytes, want %v and %v", c.Master, c.Moments, a, b, c.with, c.without)
		}
	}
	for _, name := range []string{"split", "split24", "f32"} {
		var m Master
		if err := m.UnmarshalText([]byte(name)); err != nil || m.String() != name {
			t.Errorf("master %s is read as %v, error %v", name, m, err)
		}
	}
	for _, name := range []string{"f32", "8bit", "8+4", "4bit"} {
		var m Moments
		if err := m.UnmarshalText([]byte(name)); err != nil || m.String() != name {
			t.Errorf("moments %s are read as %v, error %v", name, m, err)
		}
	}
	if (Scheme{Master: Split}).Forms()[0].Type != tensor.BF16 {
		t.Error("split streams bf16")
	}
}
