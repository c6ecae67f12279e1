package tensor

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// Tensors begin at multiples of Align unless they are glued, and frozen ones have a place in the weights alone. What the
// optimizer walks covers what is trained, cut where settings change and where a frozen tensor is between.
func TestLayout(t *testing.T) {
	l, err := NewLayout(
		Field{Name: "norm", Shape: Shape{10}, Trainable: true},
		Field{Name: "q", Shape: Shape{3, 100}, Trainable: true, Decay: true},
		Field{Name: "k", Shape: Shape{1, 100}, Trainable: true, Decay: true, Glued: true},
		Field{Name: "frozen", Shape: Shape{256}},
		Field{Name: "o", Shape: Shape{256}, Trainable: true, Decay: true},
		Field{Name: "up", Shape: Shape{257}, Trainable: true, Decay: true},
		Field{Name: "other", Shape: Shape{1}, Trainable: true, Decay: true, ParamGroup: 1},
	)
	if err != nil {
		t.Fatal(err)
	}
	want := []struct{ first, state, elems int64 }{{0, 0, 10}, {256, 256, 300}, {556, 556, 100}, {768, -1, 256}, {1024, 768, 256},
		{1280, 1024, 257}, {1792, 1536, 1}}
	for i, f := range l.Fields {
		if got := (struct{ first, state, elems int64 }{f.First, f.State, f.Elems}); got != want[i] {
			t.Errorf("%s is at %+v, want %+v", f.Name, got, want[i])
		}
	}
	if l.WeightElems != 2048 || l.StateElems != 1792 {
		t.Errorf("%d weights and %d states", l.WeightElems, l.StateElems)
	}
	if all, trained := l.Params(); all != 1180 || trained != 924 {
		t.Errorf("%d parameters, %d trained", all, trained)
	}
	runs := []Stretch{{0, 0, 10, false, 0}, {256, 256, 400, true, 0}, {1024, 768, 513, true, 0}, {1792, 1536, 1, true, 1}}
	if got := l.Stretches(); !slices.Equal(got, runs) {
		t.Errorf("runs %+v, want %+v", got, runs)
	}
	if f, ok := l.Field("k"); !ok || f.First != 556 {
		t.Errorf("k is %+v", f)
	}
	if _, ok := l.Field("v"); ok {
		t.Error("there is no v")
	}
	frozen := l.Frozen()
	if all, trained := frozen.Params(); all != 1180 || trained != 0 || frozen.StateElems != 0 || frozen.WeightElems != 2048 ||
		len(frozen.Stretches()) != 0 {
		t.Errorf("frozen: %+v", frozen)
	}
	for i, f := range frozen.Fields {
		if f.First != l.Fields[i].First || f.State != -1 || f.Decay || f.Trainable {
			t.Errorf("frozen %s: %+v", f.Name, f)
		}
	}
	if l.Fields[0].State != 0 || !l.Fields[1].Decay {
		t.Error("the layout that was frozen has changed")
	}
}

// A run continues over padding that is shorter than Align, in the weights and in the states alike.
func TestRunsOverPadding(t *testing.T) {
	for _, c := range []struct {
		elems []int
		want  []Stretch
	}{
		{[]int{1, 1}, []Stretch{{0, 0, 257, false, 0}}},
		{[]int{256, 256}, []Stretch{{0, 0, 512, false, 0}}},
		{[]int{255, 2, 300}, []Stretch{{0, 0, 812, false, 0}}},
	} {
		var fields []Field
		for i, n := range c.elems {
			fields = append(fields, Field{Name: fmt.Sprint(i), Shape: Shape{n}, Trainable: true})
		}
		l, err := NewLayout(fields...)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.Stretches(); !slices.Equal(got, c.want) {
			t.Errorf("%v: runs %+v, want %+v", c.elems, got, c.want)
		}
	}
}

func TestLayoutRefuses(t *testing.T) {
	a := Field{Name: "a", Shape: Shape{1}, Trainable: true}
	glued := func(f Field) Field { f.Name, f.Glued = "b", true; return f }
	frozen, decayed, other := a, a, a
	frozen.Trainable, decayed.Decay, other.ParamGroup = false, true, 1
	for want, fields := range map[string][]Field{
		`name "a" is empty or appears twice`: {a, a}, `name "" is empty`: {{Shape: Shape{1}}},
		"has shape [0]": {{Name: "a", Shape: Shape{0}}}, "has shape [-1]": {{Name: "a", Shape: Shape{-1}}},
		"has shape [144115188075855872]": {{Name: "a", Shape: Shape{1 << 57}}},
		`"a" is glued to a neighbour`:    {{Name: "a", Shape: Shape{1}, Glued: true}},
		`"b" is glued to a neighbour`:    {a, glued(frozen)},
	} {
		if _, err := NewLayout(fields...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	for _, f := range []Field{decayed, other} {
		if _, err := NewLayout(a, glued(f)); err == nil {
			t.Errorf("%+v is glued to a tensor that is updated otherwise", f)
		}
	}
	if _, err := NewLayout(a, glued(a)); err != nil {
		t.Error(err)
	}
	if l, err := NewLayout(Field{Name: "a", Shape: Shape{math.MaxInt64 / 64}}); err != nil || l.WeightElems <= 0 {
		t.Errorf("the largest: %v", err)
	}
}

func TestShape(t *testing.T) {
	for _, c := range []struct {
		Shape
		want int64
	}{
		{nil, 1}, {Shape{3, 4}, 12}, {Shape{0, 5}, 0}, {Shape{5, 0}, 0}, {Shape{-1}, -1}, {Shape{2, -1}, -1},
		{Shape{math.MaxInt64}, math.MaxInt64}, {Shape{math.MaxInt64, 1}, math.MaxInt64}, {Shape{1 << 62, 2}, -1}, {Shape{1 << 31, 1 << 31}, 1 << 62},
	} {
		if got := c.Elems(); got != c.want {
			t.Errorf("%v has %d elements, want %d", c.Shape, got, c.want)
		}
	}
	if s := (Shape{2048, 576}).String(); s != "[2048 576]" {
		t.Errorf("it is written as %s", s)
	}
	a := Shape{2, 3}
	for _, c := range []struct {
		Shape
		same bool
	}{{Shape{2, 3}, true}, {Shape{2}, false}, {Shape{2, 3, 1}, false}, {Shape{3, 3}, false}, {Shape{2, 2}, false}} {
		if a.Equal(c.Shape) != c.same || c.Equal(a) != c.same {
			t.Errorf("%v and %v: want %v", a, c.Shape, c.same)
		}
	}
}

func TestDType(t *testing.T) {
	for d, want := range map[DType]struct {
		name  string
		bytes int64
	}{F32: {"f32", 4}, F16: {"f16", 2}, BF16: {"bf16", 2}, F64: {"f64", 8}, I8: {"i8", 1}, U8: {"u8", 1}, I16: {"i16", 2},
		I32: {"i32", 4}, I64: {"i64", 8}} {
		var read DType
		if err := read.UnmarshalText([]byte(want.name)); err != nil || read != d || d.String() != want.name || d.Bytes() != want.bytes {
			t.Errorf("%v is read as %v (%v) and has %d bytes, want %+v", d, read, err, d.Bytes(), want)
		}
	}
	if d, err := ParseDType("invalid"); err == nil || d != Invalid || Invalid.Bytes() != 0 {
		t.Errorf("invalid is %v", d)
	}
	if s := DType(10).String(); s != "dtype(10)" {
		t.Errorf("it is written as %s", s)
	}
	if s := I64.String(); s != "i64" {
		t.Errorf("it is written as %s", s)
	}
}
