package cublaslt

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// square is a product that the fake library has the algorithms 42, 43 and 45 for.
func square(f *fake) *Product {
	f.memory = make([]float32, 64)
	m := Matrix{At: 16, Rows: 4, Cols: 4, Stride: 4}
	return &Product{C: m, A: m, B: m, Base: m}
}

// timed times an algorithm as a device does: seconds has the times.
func (f *fake) timed(seconds map[uint64]float64) Timer {
	return Timer{Seconds: func(times int, enqueue func() error) (float64, error) {
		for range times {
			if err := enqueue(); err != nil {
				return 0, err
			}
		}
		return seconds[f.ran[len(f.ran)-1]], nil
	}}
}

// Each algorithm that can do it is timed, and the fastest one is used from then on. One that takes far longer than
// another is timed once. One that does not start is left out; nothing is said of it, as another one does.
func TestTune(t *testing.T) {
	rounds := func(order []uint64) (all []uint64) {
		for range tuneRounds {
			for _, turns := range [][]uint64{order, backwards(order)} {
				for _, a := range turns {
					all = append(all, slices.Repeat([]uint64{a}, turnProducts)...)
				}
			}
		}
		return all
	}
	for _, c := range []struct {
		name    string
		seconds map[uint64]float64 // by algorithm
		broken  map[uint64]bool
		starts  []uint64 // of the first round
		more    []uint64 // that are compared in rounds
		want    uint64
	}{
		{"the last", map[uint64]float64{42: 3, 43: 2.1, 45: 2}, nil, []uint64{42, 42, 43, 43, 45, 45}, []uint64{43, 45}, 45},
		{"the first", map[uint64]float64{42: 1, 43: 2, 45: 3}, nil, []uint64{42, 42, 43, 43, 45, 45}, nil, 42},
		{"noise", map[uint64]float64{42: 1, 43: 0.99, 45: 1.5}, nil, []uint64{42, 42, 43, 43, 45, 45}, []uint64{42, 43}, 42},
		{"more than noise", map[uint64]float64{42: 1, 43: 0.97, 45: 0.96}, nil, []uint64{42, 42, 43, 43, 45, 45},
			[]uint64{42, 43, 45}, 43},
		{"the second does not start", map[uint64]float64{42: 1, 43: 0.1, 45: 0.9}, map[uint64]bool{43: true},
			[]uint64{42, 42, 43, 45, 45}, []uint64{42, 45}, 45},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, b := newFake(t)
			p := square(f)
			f.broken = c.broken
			for range 2 { // the second time there is nothing to do
				if err := b.Tune(p, 4096, 9, f.timed(c.seconds)); err != nil {
					t.Fatal(err)
				}
			}
			want := append(slices.Clone(c.starts), rounds(c.more)...)
			if !slices.Equal(f.ran, want) {
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
			if len(f.said) != 0 {
				t.Errorf("it says %q", f.said)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func backwards(list []uint64) []uint64 {
	list = slices.Clone(list)
	slices.Reverse(list)
	return list
}

// The clock of a card at its power limit falls from product to product. What comes first is no faster for that.
func TestTuneUnderDrift(t *testing.T) {
	for _, drift := range []float64{0.99, 1, 1.003, 1.01, 1.02} {
		for slow := range uint64(3) { // one of them is slower by 4% than the fastest, and one by 10%
			f, b := newFake(t)
			took, clock := map[uint64]float64{}, 1.0
			for i, a := range []uint64{42, 43, 45} {
				took[a] = []float64{1.04, 1, 1.1}[(uint64(i)+slow)%3]
			}
			timer := f.timed(nil)
			timer.Seconds = func(times int, enqueue func() error) (float64, error) {
				sum := 0.0
				for range times {
					if err := enqueue(); err != nil {
						return 0, err
					}
					sum += took[f.ran[len(f.ran)-1]] * clock
					clock *= drift
				}
				return sum / float64(times), nil
			}
			var told []Timed
			timer.Tell = func(all []Timed) { told = all }
			if err := b.Tune(square(f), 4096, 9, timer); err != nil {
				t.Fatal(err)
			}
			if i := slices.IndexFunc(told, func(c Timed) bool { return c.Chosen }); i < 0 ||
				!slices.Equal(b.Algorithms(), []string{told[i].Algorithm}) || !(told[i].FirstSeconds > 0) {
				t.Fatalf("drift %g, %v: it tells of %+v and chose %q", drift, took, told, b.Algorithms())
			}
			var chosen uint64
			line := b.Algorithms()[0]
			if _, err := fmt.Sscanf(line[len(line)-16:], "%x", &chosen); err != nil {
				t.Fatal(err)
			}
			if took[chosen] != 1 {
				t.Errorf("drift %g: it chose %d, and they take %v", drift, chosen, took)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A device is warmed before algorithms are compared, if there are several, and one that is refused meanwhile is found
// out in the rounds.
func TestTuneWarms(t *testing.T) {
	f, b := newFake(t)
	timer := f.timed(map[uint64]float64{42: 1, 43: 1.01, 45: 1.3})
	warmed := 0
	timer.Warm = func(enqueue func() error) error {
		warmed++
		if want := []uint64{42, 42, 43, 43, 45, 45}; !slices.Equal(f.ran, want) {
			t.Errorf("it is warmed after %v", f.ran)
		}
		f.broken = map[uint64]bool{42: true}
		return enqueue()
	}
	if err := b.Tune(square(f), 4096, 9, timer); err != nil || warmed != 1 {
		t.Fatalf("%v, warmed %d times", err, warmed)
	}
	if got := b.Algorithms(); len(got) != 1 || !strings.HasSuffix(got[0], fmt.Sprintf("%016x", 43)) {
		t.Errorf("the choices are %q", got)
	}
	broken := errors.New("broken")
	f, b = newFake(t)
	timer = f.timed(map[uint64]float64{42: 1, 43: 1, 45: 1})
	timer.Warm = func(func() error) error { return broken }
	if err := b.Tune(square(f), 4096, 9, timer); !errors.Is(err, broken) {
		t.Errorf("a device that cannot be warmed: %v", err)
	}
}

// An algorithm that the library offers and then refuses to start gives way to the next one, and the last one to our own
// kernel. The user is told once, and what is written down is what computes.
func TestRefusedProduct(t *testing.T) {
	for _, c := range []struct {
		name   string
		tuned  bool
		broken map[uint64]bool
		ran    []uint64 // of two products
		chosen string   // by its last digits
		says   string
	}{
		{"none", true, nil, []uint64{43, 43}, "2b", ""},
		{"the chosen one", true, map[uint64]bool{43: true}, []uint64{43, 42, 42}, "2a",
			"another one of its algorithms is used"},
		{"all", true, map[uint64]bool{42: true, 43: true, 45: true}, []uint64{43, 42, 45}, "",
			"this program's own kernel is used, which is slower"},
		{"the library's best one", false, map[uint64]bool{42: true}, []uint64{42, 43, 43}, "",
			"another one of its algorithms is used"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, b := newFake(t)
			p := square(f)
			if c.tuned {
				if err := b.Tune(p, 4096, 9, f.timed(map[uint64]float64{42: 2, 43: 1, 45: 2})); err != nil {
					t.Fatal(err)
				}
			}
			f.ran, f.broken = nil, c.broken
			for range 2 {
				if done, err := b.MatMul(p, 4096, 9); done != (len(c.broken) < 3) || err != nil {
					t.Fatal(done, err)
				}
			}
			if !slices.Equal(f.ran, c.ran) {
				t.Errorf("it ran %v, want %v", f.ran, c.ran)
			}
			if got := strings.Join(b.Algorithms(), ""); !strings.HasSuffix(got, c.chosen) || (got == "") != (c.chosen == "") {
				t.Errorf("the choices are %q", got)
			}
			want := "cuBLASLt 12.8.4 refuses a matrix product of 4 x 4 x 4 that it offered (cublasLtMatmul: a kernel failed " +
				"(CUBLAS_STATUS_EXECUTION_FAILED, 13)): " + c.says
			if c.says == "" && len(f.said) != 0 || c.says != "" && (len(f.said) != 1 || !strings.HasPrefix(f.said[0], want)) {
				t.Errorf("it says %q", f.said)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A choice that was written down is used if the library offers that algorithm, and else made again.
func TestUseAlgorithms(t *testing.T) {
	line := func(p *Product, a algorithm) string { return choiceLine(transposed(p), a) }
	for _, c := range []struct {
		name string
		algorithm
		want uint64
	}{
		{"good", algorithm{7: 45}, 45}, {"of another library", algorithm{7: 99}, 42},
		{"forged", algorithm{0: 0xdeadbeef, 7: 45}, 42},
		{"that cannot do it", algorithm{7: 44}, 42},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, b := newFake(t)
			p := square(f)
			if err := b.UseAlgorithms([]string{line(p, c.algorithm)}); err != nil {
				t.Fatal(err)
			}
			if got := b.Algorithms(); len(got) != 0 {
				t.Errorf("before the library is asked, the choices are %q", got)
			}
			if done, err := b.MatMul(p, 4096, 9); !done || err != nil {
				t.Fatal(done, err)
			}
			if f.ran[0] != c.want {
				t.Errorf("it multiplies with %v, want %d", f.ran, c.want)
			}
			if got := b.Algorithms(); (len(got) == 1) != (c.want == c.algorithm[7]) {
				t.Errorf("the choices are %q", got)
			}
			f.ran = nil
			if err := b.Tune(p, 4096, 9, f.timed(nil)); err != nil || (len(f.ran) == 0) != (c.want == c.algorithm[7]) {
				t.Errorf("tuning runs %v (%v)", f.ran, err)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	f, b := newFake(t)
	p := square(f)
	good := line(p, algorithm{7: 45})
	for _, bad := range []string{"", "x", good + " ", " " + good, strings.ToUpper(good), good[:100]} {
		if err := b.UseAlgorithms([]string{good, bad}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if done, err := b.MatMul(p, 4096, 9); !done || err != nil || f.ran[0] != 42 {
		t.Errorf("a line before one that is refused is used: %v, %v, %v", f.ran, done, err)
	}
}

func TestTuneFails(t *testing.T) {
	f, b := newFake(t)
	p := square(f)
	broken := errors.New("broken")
	err := b.Tune(p, 4096, 9, Timer{Seconds: func(int, func() error) (float64, error) { return 0, broken }})
	if !errors.Is(err, broken) || len(b.Algorithms()) != 0 {
		t.Errorf("%v, and the choices are %q", err, b.Algorithms())
	}
	f.broken = map[uint64]bool{42: true, 43: true, 45: true}
	for range 2 {
		if err := b.Tune(p, 4096, 9, f.timed(nil)); err != nil || len(b.Algorithms()) != 0 {
			t.Errorf("no algorithm starts: %v, and the choices are %q", err, b.Algorithms())
		}
		if done, err := b.MatMul(p, 4096, 9); done || err != nil {
			t.Errorf("no algorithm starts: %v, %v", done, err)
		}
	}
	if len(f.said) != 1 || !strings.Contains(f.said[0], "this program's own kernel is used") ||
		!slices.Equal(f.ran, []uint64{42, 43, 45}) {
		t.Errorf("it says %q after %v", f.said, f.ran)
	}
	f.refuse = true
	m := p.C
	m.Stride = 5
	if err := b.Tune(&Product{C: m, A: m, B: m, Base: m}, 4096, 9, Timer{}); err != nil || len(b.Algorithms()) != 0 {
		t.Errorf("without an algorithm: %v, and the choices are %q", err, b.Algorithms())
	}
	m.At = 8
	if err := b.Tune(&Product{C: m, A: m, B: m, Base: m}, 4096, 9, Timer{}); err != nil {
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
