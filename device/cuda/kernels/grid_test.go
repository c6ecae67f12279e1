package kernels

import (
	"math/big"
	"regexp"
	"strings"
	"testing"
)

func gridKernel(grid string) (*Kernel, error) {
	k := &Kernel{Name: "test",
		Args:      []Arg{{Name: "x", Type: Ptr}, {Name: "rows", Type: I32}, {Name: "n", Type: I64}, {Name: "eps", Type: F32}},
		Constants: map[string]int{"BLOCK": 128, "SLICES": 32, "NONE": 0}, Grid: []string{grid}}
	return k, k.prepare()
}

func TestPrograms(t *testing.T) {
	for _, c := range []struct {
		grid    string
		rows, n uint64
		want    uint32
	}{
		{"rows", 7, 0, 7},
		{"rows", 0, 0, 0},
		{"SLICES", 7, 0, 32},
		{"ceil(rows/BLOCK)", 0, 0, 0},
		{"ceil(rows/BLOCK)", 1, 0, 1},
		{"ceil(rows/BLOCK)", 128, 0, 1},
		{"ceil(rows/BLOCK)", 129, 0, 2},
		{"ceil(n/BLOCK)*rows", 3, 1 << 33, 3 << 26},
		{"ceil(rows/BLOCK)*ceil(n/BLOCK)*SLICES", 200, 300, 2 * 3 * 32},
		{"ceil(n/rows)", 3, 10, 4},
	} {
		k, err := gridKernel(c.grid)
		if err != nil {
			t.Fatal(err)
		}
		got, err := k.Programs([]uint64{0, c.rows, c.n, 0})
		if err != nil || got != [3]uint32{c.want, 1, 1} {
			t.Errorf("%s of rows %d, n %d: %v, %v, want %d", c.grid, c.rows, c.n, got, err, c.want)
		}
	}
	minusOne := ^uint64(0)
	for _, c := range []struct {
		grid    string
		rows, n uint64
	}{{"rows", minusOne, 0}, {"n", 0, 1 << 31}, {"rows*n", 1 << 16, 1 << 15}, {"n*n*n*n", 0, 1 << 20}, {"ceil(n/rows)", 0, 1}} {
		k, err := gridKernel(c.grid)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := k.Programs([]uint64{0, c.rows, c.n, 0}); err == nil {
			t.Errorf("%s of rows %d, n %d is %v", c.grid, int64(c.rows), int64(c.n), got)
		}
	}
}

// Dimensions y and z of a grid are smaller than x.
func TestGridLimits(t *testing.T) {
	k, err := gridKernel("rows")
	if err != nil {
		t.Fatal(err)
	}
	k.Grid, k.grid = append(k.Grid, "n"), append(k.grid, product{{over: operand{arg: 2}, under: operand{arg: -1, constant: 1}}})
	if got, err := k.Programs([]uint64{0, 1 << 20, 65535, 0}); err != nil || got != [3]uint32{1 << 20, 65535, 1} {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := k.Programs([]uint64{0, 1, 65536, 0}); err == nil {
		t.Errorf("y of 65536 is %v", got)
	}
}

func TestBadGrids(t *testing.T) {
	for _, grid := range []string{"", "*", "rows*", "x", "eps", "cols", "NONE", "7", "ceil(rows)", "ceil(rows/)", "ceil(/BLOCK)",
		"ceil(rows/BLOCK", "rows/BLOCK", "ceil(ceil(rows/BLOCK)/BLOCK)", " rows", "rows * n", "ceil(rows/NONE)", "(rows)"} {
		if _, err := gridKernel(grid); err == nil {
			t.Errorf("%q is a grid", grid)
		}
	}
}

// Every kernel's grid can be computed, and covers the first and last element of each thing that it counts.
func TestGridsOfKernels(t *testing.T) {
	all(t, func(t *testing.T, _ string, k *Kernel) {
		v := make([]uint64, len(k.Args))
		for i, a := range k.Args {
			if a.Type == I32 || a.Type == I64 {
				v[i] = 1
			}
		}
		if grid, err := k.Programs(v); err != nil || grid[0] < 1 || grid[1] < 1 || grid[2] < 1 {
			t.Errorf("for ones the grid is %v, %v", grid, err)
		}
	})
}

var grammar = regexp.MustCompile(`^(?:\w+|ceil\(\w+/\w+\))(?:\*(?:\w+|ceil\(\w+/\w+\)))*$`)

// Every expression that the parser takes is in the grammar, and its value is exact.
func FuzzGrid(f *testing.F) {
	for _, seed := range []string{"rows", "ceil(rows/BLOCK)*n", "ceil(n/rows)*SLICES", "ceil(rows/BLOCK", "rows**n", "ceil(NONE/n)"} {
		f.Add(seed, uint64(100), uint64(7))
	}
	f.Fuzz(func(t *testing.T, grid string, rows, n uint64) {
		k, err := gridKernel(grid)
		if err != nil {
			return
		}
		if !grammar.MatchString(grid) {
			t.Fatalf("%q is not in the grammar", grid)
		}
		got, err := k.Programs([]uint64{0, rows, n, 0})
		if err != nil {
			return
		}
		names := map[string]uint64{"rows": rows, "n": n, "BLOCK": 128, "SLICES": 32}
		want := big.NewInt(1)
		for part := range strings.SplitSeq(grid, "*") {
			over, under, divided := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(part, "ceil("), ")"), "/")
			x := new(big.Int).SetUint64(names[over])
			if divided {
				d := new(big.Int).SetUint64(names[under])
				x.Add(x, d).Sub(x, big.NewInt(1)).Quo(x, d)
			}
			want.Mul(want, x)
		}
		if !want.IsUint64() || want.Uint64() != uint64(got[0]) {
			t.Fatalf("%s of rows %d, n %d is %d, want %d", grid, rows, n, got[0], want)
		}
	})
}
