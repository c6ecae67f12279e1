package ptx

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"
)

// Each comparison of each type is that of the numbers which the bits stand for.
func TestComparisons(t *testing.T) {
	number := map[string]func(uint64) float64{ // NaN where the bits are
		"f32": func(x uint64) float64 { return float64(f32(uint32(x))) },
		"f64": f64,
		"f16": func(x uint64) float64 { return formatF16.value(uint32(x & 0xffff)) },
	}
	values := []uint64{0, 1, 2, 0x7fff, 0x8000, 0xffff, 0x3c00, 0x7fffffff, 0x80000000, 0xffffffff, 0x3f800000,
		inf32, nan32, 1 << 32, 1 << 63, 1<<63 - 1, math.MaxUint64, math.Float64bits(-2), math.Float64bits(math.NaN())}
	for _, typ := range []string{"s16", "u16", "s32", "u32", "s64", "u64", "f32", "f64", "f16"} {
		ops := []string{"eq", "ne", "lt", "le", "gt", "ge"}
		switch typ[0] {
		case 'u':
			ops = append(ops, "lo", "ls", "hi", "hs")
		case 'f':
			ops = append(ops, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
		}
		operands := map[string]string{"16": "%h0, %h1", "32": "%r0, %r1", "64": "%rd0, %rd1"}[typ[1:]]
		for _, op := range ops {
			for i := range values {
				var in [lanes][slots]uint64
				for l := range in {
					in[l][0], in[l][1] = values[i], values[l%len(values)]
				}
				got := lanewise(t, fmt.Sprintf("setp.%s.%s %%p1, %s;", op, typ, operands), 1, in)
				for l, x := range in {
					order, isNaN := 0, false
					if value := number[typ]; value != nil {
						a, b := value(x[0]), value(x[1])
						if isNaN = a != a || b != b; !isNaN {
							order = big.NewFloat(a).Cmp(big.NewFloat(b))
						}
					} else {
						s := types[typ]
						a, b := extend(s, x[0]), extend(s, x[1])
						if order = new(big.Int).SetUint64(a).Cmp(new(big.Int).SetUint64(b)); typ[0] == 's' {
							order = big.NewInt(int64(a)).Cmp(big.NewInt(int64(b)))
						}
					}
					holds := map[string][]int{"eq": {0}, "ne": {-1, 1}, "lt": {-1}, "lo": {-1}, "le": {-1, 0},
						"ls": {-1, 0}, "gt": {1}, "hi": {1}, "ge": {0, 1}, "hs": {0, 1}, "nu": {-1, 0, 1}}[op[:2]]
					want := slices.Contains(holds, order)
					if isNaN {
						want = strings.HasSuffix(op, "u") || op == "nan"
					} else if op == "nan" {
						want = false
					}
					if (got[l] == 1) != want {
						t.Errorf("%#x %s.%s %#x is %d", x[0], op, typ, x[1], got[l])
					}
				}
			}
		}
	}
}
