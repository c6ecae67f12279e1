package devicetest

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"path"
	"sync"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

// rig has a device under test with a stream and a stretch of memory, of which the host has an image. The reference has
// a wide copy of that memory.
type rig struct {
	*testing.T
	suite     Suite
	dev       device.Device
	stream    device.Stream
	reference *referenceStream
	rng       *rand.Rand

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

// rigBytes bounds the operands of one case together.
const rigBytes = 8 << 20

// poison fills everything that is not an input: as F32, BF16 or F64 it is a NaN.
const poison = 0xff

// rigMemory is the image and the reference's memory. Rigs use it one after the other: to clear it takes longer than
// most tests.
type rigMemory struct {
	image []byte
	twin  *referenceBuffer
}

var rigMemories = sync.Pool{New: func() any {
	return &rigMemory{make([]byte, rigBytes), newWideBuffer(rigBytes)}
}}

func newRig(t *testing.T, s Suite) *rig {
	h := fnv.New64a()
	h.Write([]byte(path.Base(t.Name()))) // the same numbers for every driver and configuration
	memory := rigMemories.Get().(*rigMemory)
	t.Cleanup(func() { rigMemories.Put(memory) })
	r := &rig{T: t, suite: s, dev: s.Open(), rng: rand.New(rand.NewPCG(h.Sum64(), 0)), image: memory.image}
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
	r.reference = &referenceStream{twin: memory.twin}
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

// matrix names an operand.
type matrix struct {
	device.Mat
	name string
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
	n := (max(rows, 1)-1)*stride + cols
	end := r.used + n*size
	if end+64 > len(r.image) {
		r.Fatalf("%s: the case does not fit in %d bytes", name, rigBytes)
	}
	mem := r.mem.Slice(int64(r.used), int64(n*size))
	m := &matrix{device.Mat{Mem: mem, DType: d, Rows: rows, Cols: cols, Stride: stride}, name}
	for i := max(0, r.used-64); i < end+64; i++ {
		r.image[i] = poison
	}
	r.used = end + 64
	r.mats = append(r.mats, m)
	return m
}

// pad draws a stride for a matrix of cols columns: half of the time more than that.
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
	row := make([]float64, m.Cols)
	eachRow(m.Mat, func(first int, at int64) {
		for i := range row {
			row[i] = f(first + i)
		}
		store(m.DType, r.image[at:], row)
	})
	return m
}

// ints places an I32 vector.
func (r *rig) ints(name string, v []int32) *matrix {
	return r.filled(r.place(name, tensor.I32, 1, len(v), len(v)), func(i int) float64 { return float64(v[i]) })
}

// run uploads the image, runs f on the device and on the reference, and downloads what became of the device's memory.
func (r *rig) run(f func(s device.Stream)) {
	r.Helper()
	n := int64(r.used)
	copy(r.host, r.image[:n])
	r.stream.Copy(r.mem.Slice(0, n), r.staging.Slice(0, n))
	f(r.stream)
	r.stream.Copy(r.staging.Slice(0, n), r.mem.Slice(0, n))
	r.must(r.stream.Sync())
	r.refer(f)
}

// refer runs f on the reference, with the numbers of the image.
func (r *rig) refer(f func(s device.Stream)) {
	copy(r.reference.twin.bytes, r.image[:r.used])
	clear(r.reference.twin.wide[:r.used/2+1])
	f(r.reference)
}

// prepare changes the image as f changes the memory of the reference.
func (r *rig) prepare(f func(s device.Stream)) {
	r.refer(f)
	copy(r.image, r.reference.twin.bytes[:r.used])
}

// near compares an output with that of the reference before it was rounded; scale is the magnitude of the terms that
// were summed.
func (r *rig) near(what string, m *matrix, scale float64) {
	r.Helper()
	tol := r.suite.tolerance(m.DType)
	r.compare(what, m, r.reference.numbers(m.Mat), func(got, want float64) bool {
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

// exact compares an output with that of the reference, bit by bit.
func (r *rig) exact(what string, m *matrix) {
	r.Helper()
	r.compare(what, m, numbers(m.Mat, r.reference.twin.bytes), sameBits)
}

// same compares two outputs of the device, bit by bit.
func (r *rig) same(what string, m, other *matrix) {
	r.Helper()
	r.compare(what, m, numbers(other.Mat, r.host), sameBits)
}

// sameBits reports whether two numbers are equal. NaNs are, zeros are not if they differ in sign.
func sameBits(a, b float64) bool {
	return math.Float64bits(a) == math.Float64bits(b) || a != a && b != b
}

func (r *rig) compare(what string, m *matrix, want []float64, same func(got, want float64) bool) {
	r.Helper()
	var written []byte
	bad, got, size := 0, make([]float64, m.Cols), int(m.DType.Bytes())
	eachRow(m.Mat, func(first int, at int64) {
		row := r.host[at:][:len(got)*size]
		load(m.DType, got, row)
		for i, v := range got {
			if same(v, want[first+i]) {
				continue
			}
			r.failed = true
			if bad++; bad <= 3 {
				r.Errorf("%s: %s[%d, %d] = %v, want %v", what, m.name, first/m.Cols, i, v, want[first+i])
			}
		}
		// Checked elements are no longer compared with the image.
		copy(r.image[at:], row)
		written = append(written, row...)
	})
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

// types lists the types of activations.
var types = []tensor.DType{tensor.F32, tensor.BF16}
