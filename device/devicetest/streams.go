package devicetest

import (
	"bytes"
	"errors"
	"math"
	"strings"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

func testMemory(r *rig) {
	for _, n := range []int64{1, 131, 1 << 20} {
		b, err := r.dev.Alloc("test", n)
		r.must(err)
		if b.Bytes() != n {
			r.Errorf("a buffer of %d bytes has %d", n, b.Bytes())
		}
		host := r.host[:n]
		for i := range host {
			host[i] = poison
		}
		r.stream.Copy(r.staging.Slice(0, n), device.Whole(b))
		r.must(r.stream.Sync())
		if !bytes.Equal(host, make([]byte, n)) {
			r.Errorf("a new buffer of %d bytes is not zero", n)
		}
		r.must(b.Close())
		r.must(b.Close())
	}
	if _, err := r.dev.Alloc("the whole of Middle-earth", 1<<60); err == nil {
		r.Error("an allocation of 2^60 bytes succeeds")
	} else if !strings.Contains(err.Error(), "the whole of Middle-earth") || strings.Contains(err.Error(), "\n") {
		r.Errorf("the error of a large allocation: %q", err)
	}
}

// testCopy moves bytes between all kinds of memory, at odd places.
func testCopy(r *rig) {
	for i := range r.host {
		r.host[i] = byte(r.rng.Uint32())
	}
	want := append([]byte(nil), r.host...)
	r.stream.Copy(r.mem, r.staging)
	for range 100 {
		n := 1 + r.rng.Int64N(1<<r.rng.IntN(20))
		dst, src := r.rng.Int64N(rigBytes/2-n), rigBytes/2+r.rng.Int64N(rigBytes/2-n)
		switch r.rng.IntN(4) {
		case 0:
			r.stream.Copy(r.mem.Slice(dst, n), r.mem.Slice(src, n))
			copy(want[dst:], want[src:src+n])
		case 1: // through the host, which holds the same bytes at src only until they change
			r.stream.Copy(r.staging.Slice(dst, n), r.mem.Slice(src, n))
			r.stream.Copy(r.mem.Slice(dst, n), r.staging.Slice(dst, n))
			copy(want[dst:], want[src:src+n])
		case 2:
			r.stream.Copy(r.staging.Slice(dst, n), r.staging.Slice(src, n))
			r.stream.Copy(r.mem.Slice(dst, n), r.staging.Slice(dst, n))
			copy(want[dst:], want[src:src+n])
		default:
			r.stream.Zero(r.mem.Slice(dst, n))
			clear(want[dst : dst+n])
		}
	}
	r.stream.Copy(r.staging, r.mem)
	r.must(r.stream.Sync())
	if !bytes.Equal(r.host, want) {
		r.Error("copies moved the wrong bytes")
	}
	if r.suite.Observe != nil {
		r.suite.Observe(r.Name(), r.host)
	}
}

// testPeerCopy copies from memory of another device at odd places, in the order of the stream.
func testPeerCopy(r *rig) {
	if r.suite.OpenPeer == nil {
		r.Skip("the driver opens one device alone")
	}
	peer := r.suite.OpenPeer()
	defer func() { r.must(peer.Close()) }()
	if !device.Peers([]device.Device{r.dev, peer}) {
		r.Fatal("the devices do not copy from each other")
	}
	const bytesThere = 1 << 16
	there, err := peer.Alloc("rows", bytesThere)
	r.must(err)
	defer func() { r.must(there.Close()) }()
	region, err := hostmem.New().Reserve("rows", bytesThere)
	r.must(err)
	defer func() { r.must(region.Close()) }()
	pinned, err := peer.Register(region)
	r.must(err)
	defer func() { r.must(pinned.Close()) }()
	s, err := peer.NewStream("peer")
	r.must(err)
	defer func() { r.must(s.Close()) }()
	for i := range region.Bytes() {
		region.Bytes()[i] = byte(r.rng.Uint32())
	}
	s.Copy(device.Whole(there), device.Whole(pinned).Slice(0, bytesThere))
	r.must(s.Sync())

	want := make([]byte, bytesThere)
	r.stream.Zero(r.mem.Slice(0, bytesThere))
	for range 50 {
		n := 1 + r.rng.Int64N(1<<r.rng.IntN(15))
		dst, src := r.rng.Int64N(bytesThere-n), r.rng.Int64N(bytesThere-n)
		r.stream.Copy(r.mem.Slice(dst, n), device.Whole(there).Slice(src, n))
		copy(want[dst:], region.Bytes()[src:src+n])
	}
	r.stream.Copy(r.staging.Slice(0, bytesThere), r.mem.Slice(0, bytesThere))
	r.must(r.stream.Sync())
	if !bytes.Equal(r.host[:bytesThere], want) {
		r.Error("copies from the other device moved the wrong bytes")
	}
}

// testInPlace computes on registered host memory where the device reaches it.
func testInPlace(r *rig) {
	if info := r.dev.Info(); !info.Unified && !info.ReachesHost {
		r.Skip("operations of the device do not reach host memory")
	}
	x := hostmem.F32(r.host[:4*131])
	for i := range x {
		x[i] = float32(i)
	}
	m := device.NewVec(r.staging, tensor.F32, len(x))
	r.stream.Add(m, m, m)
	r.must(r.stream.Sync())
	for i := range x {
		if x[i] != float32(2*i) {
			r.Fatalf("element %d is %v", i, x[i])
		}
	}
}

// ballast rows and columns make a matrix that takes much longer to multiply than to enqueue.
const ballast = 131

// counter counts in device memory.
type counter struct {
	r        *rig
	value    device.Mat
	one      device.Mat
	ballast  device.Mat
	readback device.Mem
}

// newCounter places a zero and a one.
func (r *rig) newCounter() *counter {
	one := r.filled(r.place("one", tensor.F32, 1, 1, 1), func(int) float64 { return 1 })
	value := r.filled(r.place("value", tensor.F32, 1, 1, 1), func(int) float64 { return 0 })
	heavy := r.normal("ballast", tensor.F32, ballast, ballast)
	copy(r.host, r.image[:r.used])
	r.stream.Copy(r.mem.Slice(0, int64(r.used)), r.staging.Slice(0, int64(r.used)))
	r.must(r.stream.Sync())
	return &counter{r: r, value: value.Mat, one: one.Mat, ballast: heavy.Mat, readback: r.staging.Slice(rigBytes-4, 4)}
}

// slow keeps a stream busy for a while.
func (c *counter) slow(s device.Stream) {
	out := c.r.mem.Slice(rigBytes/2, 4*ballast*ballast)
	s.MatMul(device.NewMat(out, tensor.F32, ballast, ballast), c.ballast, c.ballast, device.MatMulFlags{})
}

func (c *counter) add(s device.Stream) { s.Add(c.value, c.value, c.one) }

func (c *counter) is(want float32) {
	c.r.Helper()
	c.r.stream.Copy(c.readback, c.value.Mem)
	c.r.must(c.r.stream.Sync())
	if got := hostmem.F32(c.r.host[rigBytes-4:])[0]; got != want {
		c.r.Fatalf("the counter is %v, want %v", got, want)
	}
}

func testStreamOrder(r *rig) {
	c := r.newCounter()
	for range 500 {
		c.add(r.stream)
	}
	c.is(500)
	// Other ways to write the same place.
	r.stream.Zero(c.value.Mem)
	c.slow(r.stream)
	c.add(r.stream)
	r.stream.Cast(c.value, c.one)
	c.add(r.stream)
	c.is(2)
}

func testEvents(r *rig) {
	c := r.newCounter()
	a, b := r.newStream("a"), r.newStream("b")
	ab, ba := r.newEvent(), r.newEvent()

	// Waiting for an event that was never recorded returns at once.
	r.stream.Wait(ab)
	r.must(ab.Wait())

	// Two streams take turns at one number.
	for i := range 50 {
		if i%8 == 0 { // now and then, as some devices are slow themselves
			c.slow(a)
		}
		c.add(a)
		a.Record(ab)
		b.Wait(ab)
		c.add(b)
		b.Record(ba)
		a.Wait(ba)
	}
	r.stream.Wait(ba)
	c.is(100)

	// A wait refers to the latest record that was queued before it. If it referred to the second one, both streams would
	// wait for each other.
	a.Record(ab)
	b.Wait(ab)
	c.add(b)
	b.Record(ba)
	a.Wait(ba)
	c.slow(a)
	c.add(a)
	a.Record(ab)
	r.must(ab.Wait())
	c.is(102)

	// Several streams wait for one event.
	c.slow(a)
	c.add(a)
	a.Record(ab)
	b.Wait(ab)
	r.stream.Wait(ab)
	c.is(103)
	r.must(b.Sync())
	r.must(a.Sync())
}

func testEventTimes(r *rig) {
	c := r.newCounter()
	first, middle, last := r.newEvent(), r.newEvent(), r.newEvent()
	for _, e := range []device.Event{first, middle, last} {
		for range 5 {
			c.slow(r.stream)
		}
		r.stream.Record(e)
	}
	r.must(r.stream.Sync())
	if one, two := middle.Since(first), last.Since(first); one <= 0 || two <= one {
		r.Errorf("%v from the first event to the second, %v to the third", one, two)
	}
	if d := first.Since(first); d != 0 {
		r.Errorf("%v from an event to itself", d)
	}
}

func testStickyErrors(r *rig) {
	if r.suite.Fail == nil {
		r.Skip("the driver has no way to fail on demand")
	}
	c := r.newCounter()
	a, b := r.newStream("a"), r.newStream("b")
	before, after, beyond := r.newEvent(), r.newEvent(), r.newEvent()
	first, second := errors.New("the first"), errors.New("the second")

	c.add(a)
	a.Record(before)
	r.suite.Fail(a, first)
	c.add(a) // skipped
	r.suite.Fail(a, second)
	a.Record(after)
	b.Wait(after)
	c.add(b) // skipped: what it waited for did not happen
	b.Record(beyond)

	r.must(before.Wait())
	for name, err := range map[string]error{"event": after.Wait(), "event of the other stream": beyond.Wait(), "stream": a.Sync(),
		"stream, again": a.Sync(), "other stream": b.Sync()} {
		if !errors.Is(err, first) {
			r.Errorf("%s: the error is %v, want %v", name, err, first)
		}
	}
	c.is(1)
	// A new record on a healthy stream replaces the failed one.
	r.stream.Record(after)
	r.must(after.Wait())
}

// testBadCalls makes calls that break the text of an operation.
func testBadCalls(r *rig) {
	mat := func(d tensor.DType, rows, cols int) device.Mat { return r.output("", d, rows, cols).Mat }
	f32 := func(rows, cols int) device.Mat { return mat(tensor.F32, rows, cols) }
	x, ids := f32(4, 6), r.ints("", []int32{0, 1, 2, 3}).Mem
	spec := device.AttentionSpec{Heads: 3, KVHeads: 2, HeadDim: 2, Docs: device.Docs{Start: ids, End: ids, Positions: ids}}
	tally := r.place("", tensor.I64, 1, 2, 2).Mem
	outside := x
	outside.Off = rigBytes - 8
	wide := r.normal("wide", tensor.F32, 5, 7)
	for name, call := range map[string]func(s device.Stream){
		"inner dimensions":     func(s device.Stream) { s.MatMul(f32(4, 4), x, f32(5, 4), device.MatMulFlags{}) },
		"types of a product":   func(s device.Stream) { s.MatMul(f32(4, 4), x, mat(tensor.BF16, 6, 4), device.MatMulFlags{}) },
		"output is an input":   func(s device.Stream) { s.MatMul(x, x, f32(6, 6), device.MatMulFlags{}) },
		"no memory":            func(s device.Stream) { s.Add(x, x, device.Mat{}) },
		"outside of a buffer":  func(s device.Stream) { s.Add(outside, x, x) },
		"rows that overlap":    func(s device.Stream) { s.Add(x.RowRange(0, 3), x.RowRange(1, 3), f32(3, 6)) },
		"columns that overlap": func(s device.Stream) { s.Add(x.ColRange(0, 3), x.ColRange(2, 3), f32(4, 3)) },
		"an integer type":      func(s device.Stream) { s.Cast(mat(tensor.I32, 4, 6), x) },
		"a factor of NaN":      func(s device.Stream) { s.Scale(x, x, float32(math.NaN())) },
		"groups": func(s device.Stream) {
			s.RMSNorm(f32(4, 6), f32(4, 1), x, f32(1, 6), device.NormSpec{Groups: 4})
		},
		"an offset to no weight": func(s device.Stream) {
			s.RMSNorm(f32(4, 6), f32(4, 2), x, device.Mat{}, device.NormSpec{Groups: 2, Offset: 1})
		},
		"a limit of GELU": func(s device.Stream) {
			s.GLU(f32(4, 3), x, device.GLUSpec{Gate: device.GELU, Limit: 1})
		},
		"a limit of an ungated unit": func(s device.Stream) {
			s.GLU(f32(4, 6), x, device.GLUSpec{Limit: 1, Ungated: true})
		},
		"statistics of a layer norm": func(s device.Stream) {
			s.LayerNorm(f32(4, 6), f32(4, 1), x, f32(1, 6), device.Mat{}, 1e-5)
		},
		"heads that share":     func(s device.Stream) { s.Attention(f32(4, 6), r.stat("", 4, 3).Mat, x, f32(4, 4), f32(4, 4), spec) },
		"a negative soft cap":  func(s device.Stream) { s.LSEUpdate(r.stat("", 4, device.HeadStats).Mat, x, ids, 0, -1) },
		"sinks of other heads": func(s device.Stream) { s.SinkGrad(f32(1, 3), f32(1, 3), r.stat("", 4, 2).Mat, r.stat("", 4, 2).Mat) },
		"targets too short": func(s device.Stream) {
			s.LSEUpdate(r.stat("", 5, device.HeadStats).Mat, f32(5, 7), ids, 0, 0)
		},
		"picks of other rows": func(s device.Stream) { s.PickLogits(r.stat("", 3, 2).Mat, x, ids, 0, 0) },
		"too few draws": func(s device.Stream) {
			s.DrawTokens(device.Mat{}, r.stat("", 4, device.HeadStats).Mat, x, ids, 0, 6, 0)
		},
		"a vocabulary without tokens": func(s device.Stream) {
			draws := r.ints("", make([]int32, device.DrawWords)).Mem
			s.DrawTokens(device.Mat{}, r.stat("", 1, device.HeadStats).Mat, x.RowRange(0, 1), draws, 0, 0, 0)
		},
		"too few ids":         func(s device.Stream) { s.PutLogitGrads(x, f32(4, 6), r.stat("", 4, 6).Mat, ids, 0, 0) },
		"lengths of a copy":   func(s device.Stream) { s.Copy(r.mem.Slice(0, 8), r.staging.Slice(0, 9)) },
		"copy onto itself":    func(s device.Stream) { s.Copy(r.mem.Slice(0, 8), r.mem.Slice(7, 8)) },
		"a gradient too wide": func(s device.Stream) { s.BiasGrad(f32(1, 7), x) },
		"heads that do not join": func(s device.Stream) {
			s.JoinHeads(f32(4, 9), x, f32(4, 2), 3)
		},
		"low halves of F32": func(s device.Stream) {
			s.AdamW(device.AdamWArgs{Weights: f32(1, 6), Low: mat(tensor.I16, 1, 6), Grad: f32(1, 6), M: f32(1, 6), V: f32(1, 6)}, tally)
		},
		"parameters that begin between words made at once": func(s device.Stream) {
			s.AdamW(device.AdamWArgs{Weights: mat(tensor.BF16, 1, 6), Low: mat(tensor.I8, 1, 6), Grad: f32(1, 6),
				M: f32(1, 6), V: f32(1, 6),
				Draw: device.Draw{First: 2}}, tally)
		},
		"too many taps": func(s device.Stream) {
			s.CausalConv(f32(4, 6), x, f32(6, device.MostTaps+1), spec.Docs)
		},
		"a convolution that keeps nothing": func(s device.Stream) {
			s.ContinueConv(f32(4, 6), f32(4, 6), x, f32(6, 1), device.Continued{Docs: spec.Docs, Each: 4})
		},
		"a tail of some rows of a sequence": func(s device.Stream) {
			s.ContinueConv(f32(4, 6), f32(4, 6), x, f32(6, 4), device.Continued{Docs: spec.Docs, Each: 4})
		},
		"sequences without rows": func(s device.Stream) {
			stat := r.stat("", 4, 1).Mat
			s.ContinueDelta(f32(4, 2), r.stat("", 1, 4).Mat, x, stat, stat, device.DeltaSpec{KeyHeads: 1,
				Heads: 1, KeyDim: 2, ValueDim: 2, Docs: spec.Docs}, 0)
		},
		"a gate of 4 for 6 columns": func(s device.Stream) { s.Gate(f32(4, 6), x, f32(4, 4), device.SigmoidGate) },
		"a gate of an unknown kind": func(s device.Stream) { s.Gate(f32(4, 6), x, f32(4, 6), 99) },
		"a gradient that is its operand": func(s device.Stream) {
			s.CausalConvGrad(x, device.Mat{}, x, f32(4, 6), f32(6, 4), spec.Docs)
		},
		"a state too narrow": func(s device.Stream) {
			stat := r.stat("", 4, 1).Mat
			s.GatedDelta(f32(4, 2), r.stat("", 1, 3).Mat, x, stat, stat, device.DeltaSpec{KeyHeads: 1,
				Heads: 1, KeyDim: 2, ValueDim: 2, Docs: spec.Docs})
		},
		"a stride that is short": func(s device.Stream) { y := x; y.Stride = 5; s.Add(f32(4, 6), y, y) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					r.Errorf("%s: no panic", name)
				}
			}()
			call(r.stream)
		}()
	}
	// Column ranges of one matrix are no overlap, and a call that was refused leaves no trace.
	left, right := wide.columns(0, 3), wide.columns(4, 3)
	r.run(func(s device.Stream) { s.Add(left.Mat, right.Mat, right.Mat) })
	r.exact("after refusals", left)
	r.finish("after refusals")
}
