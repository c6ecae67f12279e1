package devicetest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"path"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

// rig is a device under test with a stream and a stretch of memory, of which the host has an image.
type rig struct {
	*testing.T
	suite  Suite
	dev    device.Device
	stream device.Stream
	rng    *rand.Rand

	mem, staging device.Mem
	host         []byte // the staging memory
	image        []byte // what the device's memory should hold
	used         int
	mats         []*matrix

	failures int     // cases that failed
	failed   bool    // the current case failed
	worst    float64 // of all errors, as a share of the tolerance
	where    string
}

// rigBytes is the memory that the operands of one case share.
const rigBytes = 8 << 20

// poison fills everything that is not an input: as F32, BF16 or F64 it is a NaN.
const poison = 0xff

func newRig(t *testing.T, s Suite) *rig {
	h := fnv.New64a()
	h.Write([]byte(path.Base(t.Name()))) // the same numbers for every driver and configuration
	r := &rig{T: t, suite: s, dev: s.Open(), rng: rand.New(rand.NewPCG(h.Sum64(), 0)), image: make([]byte, rigBytes)}
	accounts := hostmem.New()
	region, err := accounts.Reserve("staging", rigBytes)
	r.must(err)
	staging, err := r.dev.Register(region)
	r.must(err)
	mem, err := r.dev.Alloc("operands", rigBytes)
	r.must(err)
	r.mem, r.staging, r.host = device.Whole(mem), device.Whole(staging), region.Bytes()
	t.Cleanup(func() {
		for _, close := range []func() error{mem.Close, staging.Close, region.Close, r.dev.Close} {
			if err := close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
		if n, _ := accounts.Total(); n != 0 {
			t.Errorf("%d bytes of host memory are still reserved", n)
		}
	})
	r.stream = r.newStream("test")
	return r
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// newStream makes a stream that is closed before the device is.
func (r *rig) newStream(name string) device.Stream {
	s, err := r.dev.NewStream(name)
	r.must(err)
	r.Cleanup(func() { s.Close() })
	return s
}

func (r *rig) newEvent() device.Event {
	e, err := r.dev.NewEvent()
	r.must(err)
	r.Cleanup(func() { e.Close() })
	return e
}

// matrix is an operand: a place on the device, and the numbers that the reference computes with.
type matrix struct {
	device.Mat
	name string
	v    []float64 // [Rows*Cols], exactly what is stored
}

// begin forgets the operands of the last case.
func (r *rig) begin() {
	for i := range r.image[:r.used] {
		r.image[i] = poison
	}
	r.used, r.mats = 0, nil
}

// place finds room for a matrix, with poison on all sides.
func (r *rig) place(name string, d tensor.DType, rows, cols, stride int) *matrix {
	size := int(d.Bytes())
	align := max(size, r.suite.Align)
	if align == size { // not on a vector's boundary
		r.used += size * r.rng.IntN(16)
	}
	r.used = (r.used + 64 + align - 1) / align * align
	m := &matrix{name: name, v: make([]float64, rows*cols)}
	n := (max(rows, 1)-1)*stride + cols
	end := r.used + n*size
	if end+64 > len(r.image) {
		r.Fatalf("%s: the case does not fit in %d bytes", name, rigBytes)
	}
	m.Mat = device.Mat{Mem: r.mem.Slice(int64(r.used), int64(n*size)), DType: d, Rows: rows, Cols: cols, Stride: stride}
	for i := max(0, r.used-64); i < end+64; i++ {
		r.image[i] = poison
	}
	r.used = end + 64
	r.mats = append(r.mats, m)
	return m
}

// pad is a stride for a matrix of cols columns: half of the time more than that.
func (r *rig) pad(cols int) int {
	if r.rng.IntN(2) == 0 && (r.suite.Align == 0 || cols%r.suite.Align == 0) {
		return cols
	}
	p := cols + 1 + r.rng.IntN(7)
	if a := r.suite.Align; a > 0 {
		p = (p + a - 1) / a * a
	}
	return p
}

// output places a matrix full of poison.
func (r *rig) output(name string, d tensor.DType, rows, cols int) *matrix {
	return r.place(name, d, rows, cols, r.pad(cols))
}

// stat places a dense matrix full of poison.
func (r *rig) stat(name string, rows, cols int) *matrix {
	return r.place(name, tensor.F32, rows, cols, cols)
}

// normal places a matrix of normally distributed numbers.
func (r *rig) normal(name string, d tensor.DType, rows, cols int) *matrix {
	return r.filled(r.output(name, d, rows, cols), func(int) float64 { return r.rng.NormFloat64() })
}

// filled stores f(i) as element i, counted row by row.
func (r *rig) filled(m *matrix, f func(i int) float64) *matrix {
	for i := range m.v {
		at := r.image[m.element(i):]
		x := f(i)
		switch m.DType {
		case tensor.F32:
			binary.NativeEndian.PutUint32(at, math.Float32bits(float32(x)))
		case tensor.BF16:
			binary.NativeEndian.PutUint16(at, tensor.BF16FromF32(float32(x)))
		case tensor.U8:
			at[0] = uint8(x)
		case tensor.I16:
			binary.NativeEndian.PutUint16(at, uint16(int16(x)))
		case tensor.I32:
			binary.NativeEndian.PutUint32(at, uint32(int32(x)))
		case tensor.I64:
			binary.NativeEndian.PutUint64(at, uint64(int64(x)))
		default:
			r.Fatalf("%s: no numbers of type %v", m.name, m.DType)
		}
		m.v[i] = m.decode(r.image, i)
	}
	return m
}

// ints places an I32 vector.
func (r *rig) ints(name string, v []int32) *matrix {
	return r.filled(r.place(name, tensor.I32, 1, len(v), len(v)), func(i int) float64 { return float64(v[i]) })
}

// element is the place of element i in the rig's memory, in bytes.
func (m *matrix) element(i int) int {
	return int(m.Off) + (i/m.Cols*m.Stride+i%m.Cols)*int(m.DType.Bytes())
}

func (m *matrix) decode(image []byte, i int) float64 {
	at := image[m.element(i):]
	switch m.DType {
	case tensor.F32:
		return float64(math.Float32frombits(binary.NativeEndian.Uint32(at)))
	case tensor.BF16:
		return float64(tensor.F32FromBF16(binary.NativeEndian.Uint16(at)))
	case tensor.F64:
		return math.Float64frombits(binary.NativeEndian.Uint64(at))
	case tensor.U8:
		return float64(at[0])
	case tensor.I16:
		return float64(int16(binary.NativeEndian.Uint16(at)))
	case tensor.I32:
		return float64(int32(binary.NativeEndian.Uint32(at)))
	case tensor.I64:
		return float64(int64(binary.NativeEndian.Uint64(at)))
	}
	panic("devicetest: no numbers of type " + m.DType.String())
}

// run uploads the image, runs f and downloads what became of it.
func (r *rig) run(f func(s device.Stream)) {
	r.Helper()
	n := int64(r.used)
	copy(r.host, r.image[:n])
	r.stream.Copy(r.mem.Slice(0, n), r.staging.Slice(0, n))
	f(r.stream)
	r.stream.Copy(r.staging.Slice(0, n), r.mem.Slice(0, n))
	r.must(r.stream.Sync())
}

// near compares an output with the reference; scale is the size of what was summed.
func (r *rig) near(what string, m *matrix, want []float64, scale float64) {
	r.Helper()
	tol := r.suite.tolerance(m.DType)
	r.compare(what, m, want, func(got, want float64) bool {
		if got == want {
			return true
		}
		share := math.Abs(got-want) / (tol.Rel*math.Abs(want) + tol.Abs*scale)
		if !(share <= r.worst) {
			r.worst, r.where = share, what+" "+m.name
		}
		return share <= 1
	})
}

// tell says how near to the tolerance results were.
func (r *rig) tell() {
	if r.where != "" {
		r.Logf("the worst error is %.2g of what is allowed: %s", r.worst, r.where)
	}
}

// exact compares an output with the reference, which is rounded to the output's type first. NaNs are equal, zeros are
// not if they differ in sign.
func (r *rig) exact(what string, m *matrix, want []float64) {
	r.Helper()
	r.compare(what, m, want, func(got, want float64) bool {
		want = rounded(m.DType, want)
		return math.Float64bits(got) == math.Float64bits(want) || got != got && want != want
	})
}

// rounded is a number as a type has it, if that has fractions.
func rounded(d tensor.DType, x float64) float64 {
	switch d {
	case tensor.F32:
		return float64(float32(x))
	case tensor.BF16:
		return float64(tensor.F32FromBF16(tensor.BF16FromF32(float32(x))))
	}
	return x
}

func (r *rig) compare(what string, m *matrix, want []float64, same func(got, want float64) bool) {
	r.Helper()
	if len(want) != len(m.v) {
		r.Fatalf("%s: the reference has %d numbers, %s has %d", what, len(want), m.name, len(m.v))
	}
	var written []byte
	bad := 0
	for i := range want {
		if got := m.decode(r.host, i); !same(got, want[i]) {
			r.failed = true
			if bad++; bad <= 3 {
				r.Errorf("%s: %s[%d, %d] = %v, want %v", what, m.name, i/m.Cols, i%m.Cols, got, want[i])
			}
		}
		// Checked elements are no longer compared with the image.
		at, size := m.element(i), int(m.DType.Bytes())
		copy(r.image[at:at+size], r.host[at:at+size])
		written = append(written, r.host[at:at+size]...)
	}
	if bad > 3 {
		r.Errorf("%s: %s: %d of %d elements are wrong", what, m.name, bad, len(want))
	}
	if r.suite.Observe != nil {
		r.suite.Observe(r.Name()+" "+what+" "+m.name, written)
	}
}

// finish makes sure that nothing changed but the outputs that were compared, and forgets the case.
func (r *rig) finish(what string) {
	r.Helper()
	if !bytes.Equal(r.host[:r.used], r.image[:r.used]) {
		for i := range r.used {
			if r.host[i] != r.image[i] {
				r.failed = true
				r.Errorf("%s: byte %d changed from %#02x to %#02x; %s", what, i, r.image[i], r.host[i], r.around(i))
				break
			}
		}
	}
	r.begin()
	if r.failed {
		r.failures++
		r.failed = false
	}
	if r.failures >= max(r.suite.MostFailures, 1) {
		r.FailNow()
	}
}

// around says which operand is at or before a byte.
func (r *rig) around(at int) string {
	s := "it is in front of all operands"
	for _, m := range r.mats {
		if int(m.Off) <= at {
			s = fmt.Sprintf("%s %v [%d, %d] stride %d begins at %d", m.name, m.DType, m.Rows, m.Cols, m.Stride, m.Off)
		}
	}
	return s
}

// types are the types of activations.
var types = []tensor.DType{tensor.F32, tensor.BF16}
