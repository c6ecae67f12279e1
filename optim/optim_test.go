package optim

import (
	"math"
	"testing"

	"github.com/millrace/millrace/tensor"
)

// The rates are those of transformers' get_cosine_schedule_with_warmup and get_linear_schedule_with_warmup for peak 1,
// 4 warm-up steps and 10 steps, as written in its documentation's formula.
func TestSchedules(t *testing.T) {
	at := func(s Shape, step int) float64 { return Schedule{s, 1, 4, 10}.At(step) }
	for _, c := range []struct {
		shape Shape
		step  int
		want  float64
	}{
		{Cosine, 1, 0}, {Cosine, 3, 0.5}, {Cosine, 5, 1}, {Cosine, 8, 0.5}, {Cosine, 10, 0.5 * (1 + math.Cos(math.Pi*5/6))},
		{Linear, 2, 0.25}, {Linear, 5, 1}, {Linear, 8, 0.5}, {Linear, 11, 0},
		{Constant, 3, 0.5}, {Constant, 10, 1}, {Constant, 1000, 1},
		{WSD, 3, 0.5}, {WSD, 9, 1}, {WSD, 10, 1}, {WSD, 11, 0},
	} {
		if got := at(c.shape, c.step); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%s at step %d: %v, want %v", c.shape, c.step, got, c.want)
		}
	}
	if got := (Schedule{WSD, 2, 0, 100}).At(96); math.Abs(got-1) > 1e-12 {
		t.Errorf("wsd, half-way down: %v", got)
	}
}

func TestScheduleCheck(t *testing.T) {
	for name, s := range map[string]Schedule{
		"shape": {"sine", 1, 0, 10}, "steps": {Cosine, 1, 0, 0}, "warm-up": {Cosine, 1, -1, 10},
		"negative": {Cosine, -1, 0, 10}, "nan": {Cosine, math.NaN(), 0, 10}, "infinite": {Cosine, math.Inf(1), 0, 10},
	} {
		if s.Check() == nil {
			t.Errorf("%s: accepted %+v", name, s)
		}
	}
	if err := (Schedule{Cosine, 1e-5, 3, 10}).Check(); err != nil {
		t.Error(err)
	}
}

func TestBytesPerParam(t *testing.T) {
	for _, c := range []struct {
		Scheme
		with, without float64
	}{
		{Scheme{Split, MomentsF32}, 14, 12}, {Scheme{F32, MomentsF32}, 16, 12},
		{Scheme{Split, Dynamic8}, 8 + 2*4.0/256, 6 + 2*4.0/256}, {Scheme{F32, Dynamic8}, 10 + 2*4.0/256, 6 + 2*4.0/256},
	} {
		if a, b := c.BytesPerParam(true), c.BytesPerParam(false); a != c.with || b != c.without {
			t.Errorf("%v master, %v moments: %v and %v bytes, want %v and %v", c.Master, c.Moments, a, b, c.with, c.without)
		}
	}
	if (Scheme{Master: Split}).Types()[0] != tensor.BF16 {
		t.Error("split streams bf16")
	}
}

func TestClipScale(t *testing.T) {
	for _, c := range []struct{ norm, limit, want float64 }{
		{2, 1, 1 / (2 + 1e-6)}, {0.5, 1, 1}, {100, 0, 1}, {0, 1, 1},
	} {
		if got := ClipScale(c.norm, c.limit); got != c.want {
			t.Errorf("norm %v, limit %v: %v, want %v", c.norm, c.limit, got, c.want)
		}
	}
}

func TestScalars(t *testing.T) {
	a := AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.1}
	s := a.Scalars(1, 1e-3, 0.5, true)
	if s.StepSize != float32(1e-3/(1-0.9)) || s.Decay != float32(1-1e-4) || s.ClipScale != 0.5 {
		t.Errorf("%+v", s)
	}
	if s := a.Scalars(1, 1e-3, 1, false); s.Decay != 1 {
		t.Errorf("without decay: %v", s.Decay)
	}
}
