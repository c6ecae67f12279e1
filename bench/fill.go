package bench

import (
	"context"
	"runtime"
	"runtime/debug"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/train/session"
)

// fillAlike draws weights for those of the parts that are wanted: parts of one kind and layout take the same, so that
// a model of any depth is filled at the speed of memory. Cores share the drawing and the copies.
func (b *benchmark) fillAlike(ctx context.Context, s *session.Session, wanted func(part int) bool) error {
	type like struct {
		kind           model.PartKind
		weights, state int64
	}
	specs := map[int][]store.Spec{}
	for _, spec := range b.plan.Extents() {
		if spec.Kind == store.Weights || spec.Kind == store.Low {
			specs[spec.Part] = append(specs[spec.Part], spec)
		}
	}
	bar := b.out().Bar("initializing")
	defer bar.End()
	defer debug.FreeOSMemory() // what filling takes is not in the plan
	groups := map[like][]int{}
	var order []like
	for i, p := range b.plan.Model.Parts {
		if !wanted(i) {
			continue
		}
		key := like{p.Kind, p.Layout.WeightElems, p.Layout.StateElems}
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], i)
	}
	writers := runtime.GOMAXPROCS(0)
	if s.Disk != nil {
		writers = 1 // the disk tier has staging memory for a lane, and workers of its own
	}
	var done int64
	for _, key := range order {
		first := groups[key][0]
		var bytes [store.Kinds][]byte
		for _, spec := range specs[first] {
			bytes[spec.Kind] = make([]byte, spec.Bytes)
		}
		values := model.Values{High: hostmem.U16(bytes[store.Weights])}
		switch b.plan.Numerics.Master {
		case optim.F32:
			values = model.Values{F32: hostmem.F32(bytes[store.Weights])}
		case optim.Split:
			values.Low = hostmem.I16(bytes[store.Low])
		case optim.Split24:
			values.Low8 = hostmem.I8(bytes[store.Low])
		}
		if err := initShared(ctx, b.plan.Model, &b.plan.Model.Parts[first], values, initPiece); err != nil {
			return err
		}
		var extents []store.Spec
		for _, part := range groups[key] {
			extents = append(extents, specs[part]...)
		}
		if err := fault.Share(ctx, len(extents), writers, func(i int) error {
			return stream.WriteExtent(ctx, s.Store, extents[i], bytes[extents[i].Kind])
		}); err != nil {
			return err
		}
		done += int64(len(groups[key]))
		bar.Set(done, int64(len(b.plan.Model.Parts)))
	}
	return nil
}

// initPiece is the number of elements of a part that a core draws at a time: many rows, of which only those that two
// pieces share are drawn twice.
const initPiece = 1 << 20

// initShared is model.InitPart with the cores sharing the part, piece by piece: the same bits.
func initShared(ctx context.Context, m *model.Model, p *model.Part, values model.Values, piece int64) error {
	n := p.Layout.WeightElems
	if p.Layout.StateElems != n {
		piece = max(n, 1) // frozen tensors: the halves of a piece begin at different elements
	}
	return fault.Share(ctx, int((n+piece-1)/piece), runtime.GOMAXPROCS(0), func(i int) error {
		first := int64(i) * piece
		m.InitPart(1, p, model.Values{First: first, F32: pieceOf(values.F32, first, piece), High: pieceOf(values.High, first, piece),
			Low: pieceOf(values.Low, first, piece), Low8: pieceOf(values.Low8, first, piece)})
		return nil
	})
}

// pieceOf is the n elements of x from first on, or as many as there are.
func pieceOf[T any](x []T, first, n int64) []T {
	if len(x) == 0 {
		return nil
	}
	return x[first:min(first+n, int64(len(x)))]
}
