package stream

import (
	"context"

	"github.com/millrace/millrace/internal/hostmem"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
)

// Fill writes the weights of every part into a store, by calling read with the place for each. Moments are left as they
// are: a new store has zeros.
func Fill(ctx context.Context, p *plan.Plan, s store.Store, read func(*model.Part, model.Values) error) error {
	for i := range p.Model.Parts {
		v, release, err := lend(ctx, p, s, i, store.Write)
		if err != nil {
			return err
		}
		err = read(&p.Model.Parts[i], v)
		release()
		if err != nil {
			return err
		}
	}
	return nil
}

// View lends the weights of a part for reading, until release. No engine may be in a step.
func View(ctx context.Context, p *plan.Plan, s store.Store, part int) (v model.Values, release func(), err error) {
	return lend(ctx, p, s, part, store.Read)
}

func lend(ctx context.Context, p *plan.Plan, s store.Store, part int, access store.Access) (v model.Values, release func(), err error) {
	var leases []*store.Lease
	release = func() {
		for _, l := range leases {
			l.Release()
		}
	}
	types := p.Numerics.Scheme().Types()
	for _, spec := range store.PartSpecs(part, p.Model.Parts[part].Layout, types) {
		if spec.Kind != store.Weights && spec.Kind != store.Low {
			continue
		}
		l, err := s.Borrow(ctx, trace.Update, spec.ID, 0, spec.Bytes, access, s.Version(spec.ID))
		if err != nil {
			release()
			return v, nil, err
		}
		leases = append(leases, l)
		switch {
		case spec.Kind == store.Low:
			v.Low = hostmem.I16(l.Bytes())
		case p.Numerics.Master == optim.F32:
			v.F32 = hostmem.F32(l.Bytes())
		default:
			v.High = hostmem.U16(l.Bytes())
		}
	}
	return v, release, nil
}

// Grads reads the stored gradient extent of a part as fp32, indexed by tensor.Placed.State.
func Grads(ctx context.Context, p *plan.Plan, s store.Store, part int) ([]float32, error) {
	id := store.ID{Part: part, Kind: store.Grad}
	n := p.Model.Parts[part].Layout.StateElems
	t := p.Numerics.Scheme().Types()[store.Grad]
	l, err := s.Borrow(ctx, trace.Update, id, 0, n*t.Bytes(), store.Read, s.Version(id))
	if err != nil {
		return nil, err
	}
	defer l.Release()
	g := make([]float32, n)
	if t == tensor.F32 {
		copy(g, hostmem.F32(l.Bytes()))
		return g, nil
	}
	for i, h := range hostmem.U16(l.Bytes()) {
		g[i] = tensor.F32FromBF16(h)
	}
	return g, nil
}
