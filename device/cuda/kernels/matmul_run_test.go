package kernels_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/millrace/millrace/device/cuda/kernels"
	"github.com/millrace/millrace/device/cuda/ptx"
	"github.com/millrace/millrace/tensor"
)

// bench runs kernels in the interpreter of PTX, on matrices that lie in memory of their own: an access outside of them fails the
// launch. What lies between the rows is NaN, and is found changed by changed.
type bench struct {
	t        *testing.T
	set      *kernels.Set
	rng      *rand.Rand
	matrices []*field
	stride   int    // that of matrices which are not dense, if it is not 0: their rows are apart
	skip     uint64 // the first blocks of grids, which are not run
}

// field is a matrix or a vector.
type field struct {
	at                 uint64
	bytes              []byte
	dtype              tensor.DType
	rows, cols, stride int
	stored             int // the stride of bytes; that which kernels are told may be far longer
}

// apartBytes is from one matrix to the next: room for rows that are far apart.
const apartBytes = 1 << 44

// At implements ptx.Memory.
func (b *bench) At(addr uint64, n int) ([]byte, error) {
	for _, f := range b.matrices {
		if addr < f.at || addr >= f.at+apartBytes {
			continue
		}
		at, size := addr-f.at, uint64(f.dtype.Bytes())
		if f.stored != f.stride {
			row, within := at/(uint64(f.stride)*size), at%(uint64(f.stride)*size)
			if within+uint64(n) > uint64(f.stored)*size {
				break
			}
			at = row*uint64(f.stored)*size + within
		}
		if at+uint64(n) <= uint64(len(f.bytes)) {
			return f.bytes[at:][:n], nil
		}
	}
	return nil, fmt.Errorf("no matrix has [%#x, %#x)", addr, addr+uint64(n))
}

// field makes a matrix full of NaN. Its last row ends with its last column.
func (b *bench) field(d tensor.DType, rows, cols, stride int) *field {
	f := &field{at: uint64(len(b.matrices)+1) * apartBytes, dtype: d, rows: rows, cols: cols, stride: stride, stored: stride}
	f.bytes = make([]byte, int64((rows-1)*stride+cols)*d.Bytes())
	for i := range f.bytes {
		f.bytes[i] = 0xff
	}
	b.matrices = append(b.matrices, f)
	if b.stride != 0 && stride > cols {
		f.apart(b.stride)
	}
	return f
}

func (b *bench) normal(d tensor.DType, rows, cols, stride int) *field {
	f := b.field(d, rows, cols, stride)
	for r := range rows {
		for c := range cols {
			f.put(r, c, b.rng.NormFloat64())
		}
	}
	return f
}

// longStride is from row to row of matrices whose third row already begins at an offset of more than 32 bits.
const longStride = 1 << 30

// apart moves the rows of a matrix apart, for kernels: what lies between them is not there.
func (f *field) apart(stride int) *field {
	f.stride = stride
	return f
}

func (b *bench) ints(values []int32) *field {
	f := b.field(tensor.I32, 1, len(values), len(values))
	for i, x := range values {
		binary.LittleEndian.PutUint32(f.bytes[4*i:], uint32(x))
	}
	return f
}

// columns is a range of a matrix' columns.
func (f *field) columns(first, n int) *field {
	part := *f
	size := uint64(f.dtype.Bytes())
	part.at += uint64(first) * size
	part.bytes, part.cols = f.bytes[uint64(first)*size:], n
	return &part
}

func (f *field) put(r, c int, x float64) {
	i := r*f.stored + c
	if f.dtype == tensor.BF16 {
		binary.LittleEndian.PutUint16(f.bytes[2*i:], tensor.BF16FromF32(float32(x)))
	} else {
		binary.LittleEndian.PutUint32(f.bytes[4*i:], math.Float32bits(float32(x)))
	}
}

func (f *field) get(r, c int) float64 {
	i := r*f.stored + c
	if f.dtype == tensor.BF16 {
		return float64(tensor.F32FromBF16(binary.LittleEndian.Uint16(f.bytes[2*i:])))
	}
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(f.bytes[4*i:])))
}

// intact reports whether nothing was written between the rows.
func (f *field) intact() bool {
	size := int(f.dtype.Bytes())
	for i, x := range f.bytes {
		if i/size%f.stored >= f.cols && x != 0xff {
			return false
		}
	}
	return true
}

// run launches a kernel, which must take its operands. Arguments are fields, ints and float32s.
func (b *bench) run(name string, args ...any) {
	b.t.Helper()
	k, ok := b.set.Find(name)
	if !ok {
		b.t.Fatalf("no kernel %s", name)
	}
	var values []uint64
	for _, a := range args {
		switch a := a.(type) {
		case *field:
			values = append(values, a.at)
		case int:
			values = append(values, uint64(a))
		case float32:
			values = append(values, uint64(math.Float32bits(a)))
		}
	}
	if !k.Takes(values) {
		b.t.Fatalf("%s does not take %v", name, args)
	}
	grid, err := k.Programs(values)
	if err != nil {
		b.t.Fatal(err)
	}
	m, err := ptx.Parse([]byte(k.PTX))
	if err != nil {
		b.t.Fatalf("%s: %v", name, err)
	}
	err = m.Kernel(k.Entry).Run(b, ptx.Config{Grid: grid, Block: [3]uint32{uint32(k.Threads), 1, 1}, SharedBytes: uint32(k.SharedBytes),
		Params: k.Params(values), Workers: 2, Skip: b.skip})
	if err != nil {
		b.t.Fatal(err)
	}
}

// Every family of products, on shapes that fill no tile and several, with sizes that divide nothing where the kernel allows it.
func TestMatMulRuns(t *testing.T) { eachTarget(t, testMatMul) }

func testMatMul(t *testing.T, target string) {
	for _, c := range []struct {
		form       string // "" for any
		in, out    tensor.DType
		m, n, k    int
		transA     bool
		transB     bool
		accumulate bool
	}{
		{"nn.", tensor.BF16, tensor.BF16, 131, 144, 80, false, false, false},
		{"nt.", tensor.BF16, tensor.F32, 129, 16, 144, false, true, true},
		{"tn.", tensor.BF16, tensor.F32, 144, 32, 77, true, false, true},
		{"nt.", tensor.BF16, tensor.BF16, 1, 272, 16, false, true, true},
		{"nn.", tensor.F32, tensor.F32, 67, 80, 48, false, false, true},
		{"nt.", tensor.F32, tensor.F32, 65, 16, 32, false, true, false},
		{"tn.", tensor.F32, tensor.F32, 80, 64, 33, true, false, true},
		{"", tensor.BF16, tensor.BF16, 67, 70, 71, false, false, true},
		{"", tensor.BF16, tensor.F32, 5, 130, 33, true, true, false},
		{"", tensor.F32, tensor.BF16, 35, 37, 65, false, true, true},
		{"", tensor.F32, tensor.F32, 3, 1, 100, true, false, false},
		{"", tensor.F32, tensor.F32, 3, 5, 0, false, false, true},
	} {
		name := fmt.Sprintf("matmul.%s.%s.%s", typeWord(c.in), typeWord(c.out), c.form)
		t.Run(fmt.Sprintf("%s%dx%dx%d", name, c.m, c.n, c.k), func(t *testing.T) {
			b := benchFor(t, target, uint64(c.m*c.n+c.k))
			operand := func(rows, cols int, trans bool) *field {
				if trans {
					rows, cols = cols, rows
				}
				pad := 3
				if c.form != "" {
					pad = 16
				}
				return b.normal(c.in, max(rows, 1), max(cols, 1), max(cols, 1)+pad)
			}
			a, x := operand(c.m, c.k, c.transA).apart(longStride), operand(c.k, c.n, c.transB).apart(longStride)
			out := b.normal(c.out, c.m, c.n, c.n+16).apart(longStride)
			want := make([]float64, c.m*c.n)
			for i := range c.m {
				for j := range c.n {
					for l := range c.k {
						want[i*c.n+j] += pick(a, i, l, c.transA) * pick(x, l, j, c.transB)
					}
					if c.accumulate {
						want[i*c.n+j] += out.get(i, j)
					}
				}
			}
			args := []any{out, a, x, c.m, c.n, c.k, out.stride, a.stride, x.stride}
			if c.form == "" {
				args = append(args, bit(c.transA), bit(c.transB))
			}
			b.run(name+map[bool]string{true: "any", false: "a16"}[c.form == ""], append(args, bit(c.accumulate))...)
			rel := map[tensor.DType]float64{tensor.F32: 4e-6, tensor.BF16: 1.0 / 256}[c.out]
			for i := range c.m {
				for j := range c.n {
					w := want[i*c.n+j]
					if got := out.get(i, j); !(math.Abs(got-w) <= rel*math.Abs(w)+2e-6*math.Sqrt(float64(c.k)+1)) {
						t.Fatalf("[%d, %d] = %v, want %v", i, j, got, w)
					}
				}
			}
			if !out.intact() {
				t.Error("it writes between the rows")
			}
		})
	}
}

// Products of bf16 are the tensor cores' work, by the newer instructions where a GPU has them; those of f32 are not, since TF32 would
// round their operands. Sums wait for nobody, so that bits do not depend on timing: there are no atomics.
func TestInstructionsOfProducts(t *testing.T) {
	for _, target := range kernels.Targets {
		set, err := kernels.Load(target)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range set.Names() {
			k, _ := set.Find(name)
			op, rest, _ := strings.Cut(name, ".")
			if op != "matmul" && !strings.HasPrefix(op, "attention") {
				continue
			}
			want := "fma.rn.f32"
			switch {
			case op == "attention_delta":
				want = ""
			case strings.HasPrefix(rest, "bf16") && target == "sm90a" && (op == "matmul" || strings.HasSuffix(rest, ".a16")):
				want = "wgmma.mma_async"
			case strings.HasPrefix(rest, "bf16"):
				want = "mma.sync"
			}
			text := strings.ReplaceAll(k.PTX, "\t", " ")
			for _, instruction := range []string{"wgmma.mma_async", "mma.sync", "tf32", " atom.", " red.", "fma.rn.f32"} {
				if has := strings.Contains(text, instruction); has && instruction != want && instruction != "fma.rn.f32" || !has && instruction == want {
					t.Errorf("%s of %s: has %s: %t", name, target, instruction, has)
				}
			}
		}
	}
}

func typeWord(d tensor.DType) string {
	if d == tensor.BF16 {
		return "bf16"
	}
	return "f32"
}

func pick(f *field, r, c int, trans bool) float64 {
	if trans {
		r, c = c, r
	}
	return f.get(r, c)
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
