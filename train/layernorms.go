package train

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
)

// layerName is the name of a layer in records.
func (r *Run) layerName(layer int) string {
	switch layer {
	case 0:
		return "embedding"
	case r.plan.Model.Layers() - 1:
		return "head"
	}
	return fmt.Sprint("block_", layer)
}

// addLayerNorms gives a record the norms of the layers' gradients, of squares by part.
func (t *trainer) addLayerNorms(m *trace.Metrics, squares []float64) {
	of := make([]float64, t.plan.Model.Layers())
	for part, square := range squares {
		of[t.plan.Model.Parts[part].Layer] += square
	}
	if m.Objective == nil {
		m.Objective = map[string]float64{}
	}
	for layer, square := range of {
		m.Objective[trace.LayersPrefix+t.layerName(layer)+"/grad_norm"] = math.Sqrt(square)
	}
}

// layerNorms are the norms of the weights of each layer of a checkpoint and, over them, those of what u, the update
// that made them, changed; Step 0: no update did. Weights are taken as the forward pass uses them. The move of a weight
// is not kept, and follows from its moments, which are what the update left: the rule of the optimizer carries out an
// update without a gradient on copies of them, of weights that are 0. So it is as exact as the moments are kept.
func (r *Run) layerNorms(ctx context.Context, dir string, u *stream.Update) (map[string]float64, error) {
	c, err := checkpoint.Open(r.env.Files(), dir)
	if err != nil {
		return nil, err
	}
	m, err := newMover(r.session.Engine.Host, r.session.Env.Accounts, r.plan.Numerics.Scheme())
	if err != nil {
		return nil, err
	}
	defer m.close()
	weights, moves := make([]float64, r.plan.Model.Layers()), make([]float64, r.plan.Model.Layers())
	for i := range r.plan.Model.Parts {
		part := &r.plan.Model.Parts[i]
		m.part, m.from = checkpoint.ID{Part: part.Name}, c
		ranges := part.Layout.Stretches()
		for _, f := range part.Layout.Fields {
			if !f.Trainable {
				ranges = append(ranges, tensor.Stretch{First: f.First, State: -1, Elems: f.Elems})
			}
		}
		for _, of := range ranges {
			for first := int64(0); first < of.Elems; first += moverElems {
				piece := of
				piece.First, piece.Elems = of.First+first, min(moverElems, of.Elems-first)
				if of.State >= 0 {
					piece.State += first
				}
				weight, move, err := m.squares(piece, u)
				if err = errors.Join(err, ctx.Err()); err != nil {
					return nil, err
				}
				weights[part.Layer], moves[part.Layer] = weights[part.Layer]+weight, moves[part.Layer]+move
			}
		}
	}
	all := map[string]float64{}
	for layer, weight := range weights {
		name := trace.LayersPrefix + r.layerName(layer)
		all[name+"/weight_norm"] = math.Sqrt(weight)
		if u.Step > 0 && weight > 0 {
			all[name+"/update_ratio"] = math.Sqrt(moves[layer] / weight)
		}
	}
	return all, nil
}

// moverElems is the number of parameters that are measured at once: in a few MiB.
const moverElems = 1 << 18

// mover finds out how far an update has moved weights, from the state that it left in a checkpoint.
type mover struct {
	from    *checkpoint.Checkpoint
	part    checkpoint.ID
	forms   store.Forms
	rule    optim.Rule
	stream  device.Stream
	region  *hostmem.Region
	buffer  device.Buffer
	weights []byte
	tallyAt int64
	at      [store.Kinds]int64 // of each kind in the region
}

// newMover makes one that computes on a device of the host.
func newMover(host device.Device, accounts *hostmem.Accounts, s optim.Scheme) (*mover, error) {
	m := &mover{forms: s.Forms(), rule: s.Rule()}
	m.forms[store.Low], m.forms[store.GradSum], m.forms[store.Inputs] = store.Form{}, store.Form{}, store.Form{}
	m.weights = make([]byte, m.forms[store.Weights].Bytes(moverElems))
	copied := m.forms
	copied[store.Weights], copied[store.Grad] = store.Each(tensor.F32), store.Each(tensor.F32)
	bytes := int64(0)
	for kind, form := range copied {
		m.at[kind] = bytes
		bytes += form.Bytes(moverElems)
	}
	m.tallyAt = bytes
	var err error
	if m.region, err = accounts.Reserve("norms of layers", bytes+device.TallyBytes); err == nil {
		if m.buffer, err = host.Register(m.region); err == nil {
			m.stream, err = host.NewStream("norms of layers")
		}
	}
	if err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

// close gives back what the mover has.
func (m *mover) close() {
	if m.stream != nil {
		_ = m.stream.Close() // what it did was waited for
	}
	if m.buffer != nil {
		_ = m.buffer.Close()
	}
	if m.region != nil {
		_ = m.region.Close()
	}
}

// squares are the sums of the squares of weights, and of what an update changed in them; state below 0: nothing.
func (m *mover) squares(of tensor.Stretch, u *stream.Update) (weight, move float64, err error) {
	form := m.forms[store.Weights]
	text := m.weights[:form.Bytes(of.Elems)]
	m.part.Kind = store.Weights
	if err := m.from.Peek(m.part, form.Bytes(of.First), text); err != nil {
		return 0, 0, err
	}
	value := func(i int) float64 { return float64(hostmem.F32(text)[i]) }
	if form.Type == tensor.BF16 {
		value = func(i int) float64 { return float64(tensor.F32FromBF16(hostmem.U16(text)[i])) }
	}
	var moves []float32
	keep := 1.0
	if of.State >= 0 && u.Step > 0 {
		scalars := u.Scalars(of.ParamGroup, 1, of.Decay)
		if moves, err = m.moves(of, scalars); err != nil {
			return 0, 0, err
		}
		keep = float64(scalars.Decay)
	}
	for i := range int(of.Elems) {
		w := value(i)
		weight += float64(w * w)
		if moves != nil {
			x := (float64(w*(keep-1)) + float64(moves[i])) / keep // what w is now, less what it was
			move += float64(x * x)
		}
	}
	return weight, move, nil
}

// moves returns the numbers that an update with these scalars has added to weights, besides their decay.
func (m *mover) moves(of tensor.Stretch, scalars device.AdamWScalars) ([]float32, error) {
	n := (of.Elems + tensor.Align - 1) / tensor.Align * tensor.Align // as updates do: padding is zero
	mem, text := device.Whole(m.buffer), m.region.Bytes()
	var vectors [store.Kinds]device.Mat
	for kind, form := range m.forms {
		switch kind := store.Kind(kind); {
		case kind == store.Weights || kind == store.Grad:
			form = store.Each(tensor.F32)
			clear(text[m.at[kind]:][:form.Bytes(n)])
		case !form.Kept():
			continue
		default:
			m.part.Kind = kind
			if err := m.from.Peek(m.part, form.Bytes(of.State), text[m.at[kind]:][:form.Bytes(n)]); err != nil {
				return nil, err
			}
		}
		vectors[kind] = device.NewVec(mem.Slice(m.at[kind], form.Bytes(n)), form.Type, int(form.Elems(n)))
	}
	scalars.Decay, scalars.OneMinusBeta1, scalars.Beta2, scalars.OneMinusBeta2 = 1, 0, 1, 0 // moments stay as they are
	m.rule.Update(m.stream, &vectors, scalars, device.Draw{}, mem.Slice(m.tallyAt, device.TallyBytes))
	return hostmem.F32(text[m.at[store.Weights]:][:4*n]), m.stream.Sync()
}
