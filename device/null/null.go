// Package null is a device that computes nothing and counts everything.
//
// A rehearsal runs the real executor on it: buffers are numbers, streams finish what they are given at once, and
// [Counts] tells what the run would have reserved, moved and computed. Its host stream may work on regions without
// memory (hostmem.AddressOnly), since no byte is ever touched.
//
// It checks the operations that it does not compute: every operand must be inside an open buffer of this device and
// have the shape and type that its operation wants (device.Operands). A closed stream takes no work.
package null

import (
	"fmt"
	"maps"
	"sort"
	"sync"
	"time"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

// Options say what the device pretends to be.
type Options struct {
	Name        string // for people; empty: "null device"
	MemoryBytes int64  // what can be allocated; 0: any amount
	Unified     bool   // operations may use registered host memory in place

	Product func(device.Product) // called for each MatMul, if not nil
}

// Counts record the requests to a device since it was made.
type Counts struct {
	Purposes []PurposeBytes // of Alloc, by name

	AllocatedBytes, AllocatedPeakBytes   int64 // over all purposes
	RegisteredBytes, RegisteredPeakBytes int64 // host memory made known to the device

	Ops map[string]OpCount // by the operation's name, "MatMul"; copies included

	// Bytes that Copy moved, by direction. Registered memory is the host's. Where the device is not unified, so are those
	// that other operations read and wrote there.
	HostToDeviceBytes, DeviceToHostBytes, DeviceToDeviceBytes, HostToHostBytes int64
	// PeerBytes are those that Copy took from another device.
	PeerBytes int64
}

// PurposeBytes counts what is allocated for one purpose now, and was at most.
type PurposeBytes struct {
	Purpose          string
	Bytes, PeakBytes int64
}

// OpCount counts the runs of an operation and the floating-point operations of its matrix products: 2*M*N*K for
// MatMul; for Attention 4*HeadDim for each head and each pair of a query and a key that causality and the window leave,
// as if there were one document, and 2.5 times that for its gradient. Elementwise work counts as 0.
type OpCount struct{ Calls, FLOPs int64 }

// FLOPs is the sum over all operations.
func (c Counts) FLOPs() int64 {
	var n int64
	for _, o := range c.Ops {
		n += o.FLOPs
	}
	return n
}

// Device counts. Its methods, and its streams', may be called from any goroutine.
type Device struct {
	options Options

	mu       sync.Mutex
	counts   Counts
	purposes map[string]*PurposeBytes
	open     int // buffers and streams that are not closed
}

var (
	_ device.Device     = (*Device)(nil)
	_ device.PeerCopier = (*Device)(nil)
)

// New makes a device.
func New(o Options) *Device {
	if o.Name == "" {
		o.Name = "null device"
	}
	return &Device{options: o, purposes: map[string]*PurposeBytes{}, counts: Counts{Ops: map[string]OpCount{}}}
}

// Counts is a copy of the counts so far.
func (d *Device) Counts() Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.counts
	c.Ops = maps.Clone(c.Ops)
	for _, p := range d.purposes {
		c.Purposes = append(c.Purposes, *p)
	}
	sort.Slice(c.Purposes, func(i, j int) bool { return c.Purposes[i].Purpose < c.Purposes[j].Purpose })
	return c
}

// Info implements device.Device.
func (d *Device) Info() device.Info {
	return device.Info{Name: d.options.Name, Unified: d.options.Unified, ReachesHost: true, CutsRows: true,
		MemoryBytes: d.options.MemoryBytes,
		Workers:     1, Numerics: "nothing is computed"}
}

// Alloc implements device.Device.
func (d *Device) Alloc(purpose string, bytes int64) (device.Buffer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if bytes < 0 {
		return nil, fmt.Errorf("%s: %d bytes for %s is not a length", d.options.Name, bytes, purpose)
	}
	if left := d.options.MemoryBytes - d.counts.AllocatedBytes; d.options.MemoryBytes > 0 && bytes > left {
		return nil, fmt.Errorf("%s: %d bytes for %s do not fit: %d of %d are left; lower batch_tokens or raise memory.device",
			d.options.Name, bytes, purpose, left, d.options.MemoryBytes)
	}
	p := d.purposes[purpose]
	if p == nil {
		p = &PurposeBytes{Purpose: purpose}
		d.purposes[purpose] = p
	}
	reserve(&p.Bytes, &p.PeakBytes, bytes)
	reserve(&d.counts.AllocatedBytes, &d.counts.AllocatedPeakBytes, bytes)
	d.open++
	return &buffer{device: d, bytes: bytes, purpose: p}, nil
}

// Register implements device.Device.
func (d *Device) Register(r *hostmem.Region) (device.Buffer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	reserve(&d.counts.RegisteredBytes, &d.counts.RegisteredPeakBytes, r.Len())
	d.open++
	return &buffer{device: d, bytes: r.Len()}, nil
}

func reserve(now, peak *int64, bytes int64) {
	*now += bytes
	*peak = max(*peak, *now)
}

// PrepareAttention implements device.Device: there is nothing to reserve.
func (d *Device) PrepareAttention(positions, heads, headDim int, _ tensor.DType) error { return nil }

// CopiesFrom implements device.PeerCopier: of any null device.
func (d *Device) CopiesFrom(other device.Device) bool {
	_, isNull := other.(*Device)
	return isNull
}

// NewStream implements device.Device.
func (d *Device) NewStream(name string) (device.Stream, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open++
	return &stream{device: d, name: name}, nil
}

// NewEvent implements device.Device.
func (d *Device) NewEvent() (device.Event, error) { return &event{}, nil }

// Close implements device.Device. It fails when buffers or streams are open.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open != 0 {
		return fmt.Errorf("%s: close: %d buffers and streams are still open", d.options.Name, d.open)
	}
	return nil
}

// buffer is a length.
type buffer struct {
	device  *Device
	bytes   int64
	purpose *PurposeBytes // nil: registered host memory
	closed  bool
}

func (b *buffer) Bytes() int64 { return b.bytes }

func (b *buffer) Close() error {
	d := b.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	d.open--
	if b.purpose == nil {
		d.counts.RegisteredBytes -= b.bytes
		return nil
	}
	b.purpose.Bytes -= b.bytes
	d.counts.AllocatedBytes -= b.bytes
	return nil
}

// event is a time, since a stream is always done with all that it was given.
type event struct {
	mu       sync.Mutex
	recorded time.Time
}

func (e *event) Wait() error  { return nil }
func (e *event) Close() error { return nil }

func (e *event) Since(earlier device.Event) time.Duration {
	return e.at().Sub(earlier.(*event).at())
}

func (e *event) at() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.recorded.IsZero() {
		panic("null device: the time of an event that was not recorded")
	}
	return e.recorded
}

// stream does nothing, in order.
type stream struct {
	device   *Device
	name     string
	operands device.Operands
	closed   bool
}

// count takes down the operation that s.operands describes.
func (s *stream) count(flops int64) {
	d := s.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.closed {
		panic("null device: stream " + s.name + " is used after Close")
	}
	for _, o := range s.operands.List {
		b, ok := o.Buf.(*buffer)
		if !ok || b.closed || b.device != d && !s.operands.FromPeer(o) {
			panic("null device: " + s.operands.Op + ": " + o.Name + " is closed or belongs to another device")
		}
	}
	if !d.options.Unified && s.operands.Op != "Copy" {
		for i := range s.operands.List {
			if o := &s.operands.List[i]; o.Buf.(*buffer).purpose == nil {
				read, written := o.Moved()
				d.counts.HostToDeviceBytes += read
				d.counts.DeviceToHostBytes += written
			}
		}
	}
	n := d.counts.Ops[s.operands.Op]
	n.Calls++
	n.FLOPs += flops
	d.counts.Ops[s.operands.Op] = n
}

// Copy implements device.Stream.
func (s *stream) Copy(dst, src device.Mem) {
	s.operands.Copy(dst, src)
	s.count(0)
	d := s.device
	d.mu.Lock()
	defer d.mu.Unlock()
	from := src.Buf.(*buffer)
	toHost, fromHost := dst.Buf.(*buffer).purpose == nil, from.purpose == nil
	switch {
	case from.device != d:
		d.counts.PeerBytes += dst.Len
	case toHost && fromHost:
		d.counts.HostToHostBytes += dst.Len
	case toHost:
		d.counts.DeviceToHostBytes += dst.Len
	case fromHost:
		d.counts.HostToDeviceBytes += dst.Len
	default:
		d.counts.DeviceToDeviceBytes += dst.Len
	}
}

// Record implements device.Stream.
func (s *stream) Record(e device.Event) {
	n := e.(*event)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.recorded = time.Now()
}

// Wait implements device.Stream: whatever was recorded has happened.
func (s *stream) Wait(e device.Event) { _ = e.(*event) }

// Sync implements device.Stream.
func (s *stream) Sync() error { return nil }

// Close implements device.Stream.
func (s *stream) Close() error {
	d := s.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if !s.closed {
		s.closed = true
		d.open--
	}
	return nil
}

func matMulFLOPs(c, a device.Mat, f device.MatMulFlags) int64 {
	inner := a.Cols
	if f.TransA {
		inner = a.Rows
	}
	return 2 * int64(c.Rows) * int64(c.Cols) * int64(inner)
}

// attentionFLOPs counts two products of HeadDim for each pair that is seen.
func attentionFLOPs(rows int, spec device.AttentionSpec) int64 {
	t, w := int64(rows), int64(spec.Window)
	if w == 0 || w > t {
		w = t
	}
	pairs := w*(w+1)/2 + (t-w)*w
	return 4 * int64(spec.HeadDim) * int64(spec.Heads) * pairs
}
