package cublaslt

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Each algorithm that can do it is timed, and the fastest one is used from then on, by a library that takes over the choice as well.
func TestTune(t *testing.T) {
	for _, c := range []struct {
		name    string
		seconds map[uint64]float64 // by algorithm
		want    uint64
	}{
		{"the last", map[uint64]float64{42: 3, 43: 2, 45: 1}, 45},
		{"the first", map[uint64]float64{42: 1, 43: 2, 45: 3}, 42},
		{"noise", map[uint64]float64{42: 1, 43: 0.99, 45: 1.5}, 42},
		{"more than noise", map[uint64]float64{42: 1, 43: 0.97, 45: 0.96}, 43},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, b := newFake(t)
			f.memory = make([]float32, 64)
			m := Matrix{At: 16, Rows: 4, Cols: 4, Stride: 4}
			p := &Product{C: m, A: m, B: m, Base: m}
			for range 2 { // the second time there is nothing to do
				err := b.Tune(p, 4096, 9, func(enqueue func() error) (float64, error) {
					err := enqueue()
					return c.seconds[f.ran[len(f.ran)-1]], err
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			if want := []uint64{42, 43, 45}; !slices.Equal(f.ran, want) {
				t.Errorf("it timed %v, want %v", f.ran, want)
			}
			if done, err := b.MatMul(p, 4096, 9); !done || err != nil {
				t.Fatal(done, err)
			}
			if got := f.ran[len(f.ran)-1]; got != c.want {
				t.Errorf("it multiplies with %d, want %d", got, c.want)
			}
			lines := b.Algorithms()
			if len(lines) != 1 || !strings.HasSuffix(lines[0], fmt.Sprintf("%016x", c.want)) {
				t.Errorf("the choices are %q", lines)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A choice that was written down is used without asking the heuristic, unless the library does not take it.
func TestUseAlgorithms(t *testing.T) {
	m := Matrix{At: 16, Rows: 4, Cols: 4, Stride: 4}
	p := &Product{C: m, A: m, B: m, Base: m}
	line := func(word uint64) string { return choiceLine(transposed(p), algorithm{7: word}) }
	for _, c := range []struct {
		name  string
		word  uint64
		needs int
		want  uint64
	}{{"good", 45, 32 << 20, 45}, {"of another library", 99, 0, 42}, {"too much workspace", 45, 32<<20 + 1, 42}} {
		t.Run(c.name, func(t *testing.T) {
			f, b := newFake(t)
			f.memory, f.needs = make([]float32, 64), c.needs
			if err := b.UseAlgorithms([]string{line(c.word)}); err != nil {
				t.Fatal(err)
			}
			if done, err := b.MatMul(p, 4096, 9); !done || err != nil {
				t.Fatal(done, err)
			}
			if f.ran[0] != c.want || (f.asked == 0) != (c.want == c.word) {
				t.Errorf("it multiplies with %v, want %d, and asked %d times", f.ran, c.want, f.asked)
			}
			if got := b.Algorithms(); (len(got) == 1) != (c.want == c.word) {
				t.Errorf("the choices are %q", got)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	_, b := newFake(t)
	for _, bad := range []string{"", "x", line(45) + " ", " " + line(45), strings.ToUpper(line(45)), line(45)[:100]} {
		if err := b.UseAlgorithms([]string{line(45), bad}); err == nil || len(b.Algorithms()) != 0 {
			t.Errorf("%q: %v, and the choices are %q", bad, err, b.Algorithms())
		}
	}
}

func TestTuneFails(t *testing.T) {
	f, b := newFake(t)
	f.memory = make([]float32, 64)
	m := Matrix{At: 16, Rows: 4, Cols: 4, Stride: 4}
	broken := errors.New("broken")
	err := b.Tune(&Product{C: m, A: m, B: m, Base: m}, 4096, 9, func(func() error) (float64, error) { return 0, broken })
	if !errors.Is(err, broken) || len(b.Algorithms()) != 0 {
		t.Errorf("%v, and the choices are %q", err, b.Algorithms())
	}
	f.refuse = true
	m.Stride = 5
	if err := b.Tune(&Product{C: m, A: m, B: m, Base: m}, 4096, 9, nil); err != nil || len(b.Algorithms()) != 0 {
		t.Errorf("without an algorithm: %v, and the choices are %q", err, b.Algorithms())
	}
	m.At = 8
	if err := b.Tune(&Product{C: m, A: m, B: m, Base: m}, 4096, 9, nil); err != nil {
		t.Errorf("of operands that do not suit: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func TestChoiceLine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.IntRange(0, 1<<40)
		s := shape{m: number.Draw(t, "m"), n: number.Draw(t, "n"), k: number.Draw(t, "k"), lda: number.Draw(t, "lda"), ldb: 5, ldc: 6, ldd: 7,
			operands: BF16, result: F32, transA: rapid.Bool().Draw(t, "a"), transB: rapid.Bool().Draw(t, "b"), alignA: 16, alignB: 256,
			alignC: 16, alignD: 256}
		a := algorithm{rapid.Uint64().Draw(t, "first"), 2, 3, 4, 5, 6, 7, rapid.Uint64().Draw(t, "last")}
		s2, a2, err := parseChoice(choiceLine(s, a))
		if err != nil || s2 != s || a2 != a {
			t.Fatalf("%v %v becomes %v %v (%v)", s, a, s2, a2, err)
		}
	})
}

func FuzzParseChoice(f *testing.F) {
	f.Add(choiceLine(shape{m: 1, n: 2, k: 3}, algorithm{9}))
	f.Fuzz(func(t *testing.T, line string) {
		if s, a, err := parseChoice(line); err == nil && choiceLine(s, a) != line {
			t.Errorf("%q becomes %q", line, choiceLine(s, a))
		}
	})
}
