package stream

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
)

// Fill writes the weights of every part into a store, by calling read with the place of each of their pieces there.
// Moments are left as they are: a new store has zeros. Only the host that owns a part has its low halves.
func Fill(ctx context.Context, p *plan.Plan, s store.Store, read func(*model.Part, model.Values) error) error {
	specs := make([][store.Kinds]store.Spec, len(p.Model.Parts))
	for _, spec := range p.Extents() {
		specs[spec.Part][spec.Kind] = spec
	}
	for i := range p.Model.Parts {
		if err := fillPart(ctx, p, s, &p.Model.Parts[i], specs[i], read); err != nil {
			return err
		}
	}
	return nil
}

// FillPart is Fill for one part. No engine may be in a step.
func FillPart(ctx context.Context, p *plan.Plan, s store.Store, part int, read func(*model.Part, model.Values) error) error {
	var specs [store.Kinds]store.Spec
	for _, spec := range p.Extents() {
		if spec.Part == part {
			specs[spec.Kind] = spec
		}
	}
	return fillPart(ctx, p, s, &p.Model.Parts[part], specs, read)
}

func fillPart(ctx context.Context, p *plan.Plan, s store.Store, part *model.Part, specs [store.Kinds]store.Spec,
	read func(*model.Part, model.Values) error) error {
	weights, low := specs[store.Weights], specs[store.Low]
	forms := p.Numerics.Scheme().Forms()
	versions := [2]uint64{s.Version(weights.ID), 0}
	if low.Bytes > 0 {
		versions[1] = s.Version(low.ID)
	}
	for off, n := range weights.Pieces() {
		place := model.Values{First: off / forms[store.Weights].Bytes(1), Of24: p.Numerics.Master == optim.Split24}
		lease, err := s.Borrow(ctx, trace.Update.Of(0), weights.ID, off, n, store.Write, versions[0])
		if err != nil {
			return err
		}
		if p.Numerics.Master == optim.F32 {
			place.F32 = hostmem.F32(lease.Bytes())
		} else {
			place.High = hostmem.U16(lease.Bytes())
		}
		var lowLease *store.Lease
		if at := forms[store.Low].Bytes(place.First); at < low.Bytes {
			lowLease, err = s.Borrow(ctx, trace.Update.Of(0), low.ID, at, min(low.Piece, low.Bytes-at), store.Write,
				versions[1])
			if err != nil {
				lease.Release()
				return err
			}
			if forms[store.Low].Type == tensor.I8 {
				place.Low8 = hostmem.I8(lowLease.Bytes())
			} else {
				place.Low = hostmem.I16(lowLease.Bytes())
			}
		}
		err = read(part, place)
		lease.Release()
		if lowLease != nil {
			lowLease.Release()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Viewer gives the weights of parts, one at a time in memory that it uses again: of parts that another host owns,
// without low halves. No engine may be in a step.
func Viewer(p *plan.Plan, s store.Store) func(ctx context.Context, part int) (model.Values, error) {
	var b values
	return func(ctx context.Context, part int) (model.Values, error) {
		b.fit(p, part)
		err := b.read(ctx, p, s, part)
		return b.Values, err
	}
}

// values are the weights of one part in memory of their own, whereas a store has them in pieces.
type values struct {
	model.Values
	low   []int16 // memory for Low
	low8  []int8  // and for Low8
	bytes [store.Kinds][]byte
}

// fit makes the values as long as a part's extents, in the memory that they have if it suffices.
func (b *values) fit(p *plan.Plan, part int) {
	l, forms := p.Model.Parts[part].Layout, p.Numerics.Scheme().Forms()
	if p.Numerics.Master == optim.F32 {
		b.F32 = resize(b.F32, l.WeightElems)
		b.bytes[store.Weights] = bytesOf(b.F32)
		return
	}
	b.High = resize(b.High, l.WeightElems)
	b.bytes[store.Weights] = bytesOf(b.High)
	b.Low, b.Low8, b.bytes[store.Low] = nil, nil, nil
	switch {
	case !p.Owns(part):
	case forms[store.Low].Type == tensor.I8:
		b.low8 = resize(b.low8, l.StateElems)
		b.Low8, b.bytes[store.Low] = b.low8, bytesOf(b.low8)
	case forms[store.Low].Type == tensor.I16:
		b.low = resize(b.low, l.StateElems)
		b.Low, b.bytes[store.Low] = b.low, bytesOf(b.low)
	}
}

func resize[T any](x []T, n int64) []T {
	if int64(cap(x)) < n {
		return make([]T, n)
	}
	return x[:n]
}

// read copies the store's pieces.
func (b *values) read(ctx context.Context, p *plan.Plan, s store.Store, part int) error {
	for _, spec := range p.Extents() {
		if mem := b.bytes[spec.Kind]; spec.Part == part && mem != nil {
			if err := ReadExtent(ctx, s, spec, mem); err != nil {
				return err
			}
		}
	}
	return nil
}

// move copies an extent from the store, or into it.
func move(ctx context.Context, s store.Store, spec store.Spec, mem []byte, access store.Access) error {
	version := s.Version(spec.ID)
	for off, n := range spec.Pieces() {
		l, err := s.Borrow(ctx, trace.Update.Of(0), spec.ID, off, n, access, version)
		if err != nil {
			return err
		}
		if access == store.Read {
			copy(mem[off:off+n], l.Bytes())
		} else {
			copy(l.Bytes(), mem[off:off+n])
		}
		l.Release()
	}
	return nil
}

// ReadExtent copies a whole extent from a store into dst, which is as long. No engine may be in a step.
func ReadExtent(ctx context.Context, s store.Store, spec store.Spec, dst []byte) error {
	return move(ctx, s, spec, dst, store.Read)
}

// WriteExtent makes a whole extent what src holds. No engine may be in a step.
func WriteExtent(ctx context.Context, s store.Store, spec store.Spec, src []byte) error {
	return move(ctx, s, spec, src, store.Write)
}

func bytesOf[T float32 | uint16 | int16 | int8](x []T) []byte {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), len(x)*int(unsafe.Sizeof(x[0])))
}

// GradFields reads fields of the gradients that the store has, until the next computation, one part's at a time: it
// keeps the latest part's for the next call. Fields are of trained tensors, in parts that this host owns. No engine may
// be in a step.
func GradFields(p *plan.Plan, s store.Store) func(ctx context.Context) model.Fields {
	read, grads := -1, []float32(nil)
	return func(ctx context.Context) model.Fields {
		return func(part, field int, dst []float32, first int64) (err error) {
			if part != read {
				read = -1
				if grads, err = Grads(ctx, p, s, part); err != nil {
					return err
				}
				read = part
			}
			copy(dst, grads[p.Model.Parts[part].Layout.Fields[field].State+first:])
			return nil
		}
	}
}

// Grads reads the stored gradient extent of a part as fp32, indexed by tensor.Placed.State. The host that owns the part
// has it.
func Grads(ctx context.Context, p *plan.Plan, s store.Store, part int) ([]float32, error) {
	if p.Model.Parts[part].Trained() && !p.Owns(part) {
		return nil, fmt.Errorf("the gradient of %s is on host %d, which owns the part, and this is host %d",
			p.Model.Parts[part].Name, p.Owner(part), p.Cluster.Host)
	}
	g := make([]float32, p.Model.Parts[part].Layout.StateElems)
	for _, spec := range p.Extents() {
		if spec.ID != (store.ID{Part: part, Kind: store.Grad}) {
			continue
		}
		if p.Numerics.Scheme().Forms()[store.Grad].Type == tensor.F32 {
			return g, ReadExtent(ctx, s, spec, bytesOf(g))
		}
		half := make([]uint16, len(g))
		if err := ReadExtent(ctx, s, spec, bytesOf(half)); err != nil {
			return nil, err
		}
		for i, h := range half {
			g[i] = tensor.F32FromBF16(h)
		}
	}
	return g, nil
}
