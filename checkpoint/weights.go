package checkpoint

import (
	"fmt"
	"path/filepath"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// ConfigName is the attachment that has the config.json of the model.
const ConfigName = "config.json"

// Model returns the model that the checkpoint is of, from the config.json that the checkpoint has. Families are kinds
// of models in addition to those of package model, as the run had them.
func (c *Checkpoint) Model(families ...model.Family) (*model.Model, error) {
	doc, ok, err := c.Attachment(ConfigName)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("%s has no %s; it was not saved by this program", c.dir, ConfigName)
	}
	parsed, err := hf.ParseConfig(filepath.Join(c.dir, ConfigName), doc)
	if err != nil {
		return nil, err
	}
	m, err := model.New(parsed, families...)
	if err == nil {
		m, err = c.Manifest.Model.With(m)
	}
	if err != nil {
		return nil, err
	}
	if layoutHash(m.Parts) != c.Manifest.Model.LayoutSHA256 {
		return nil, fmt.Errorf("%s: this version of millrace lays out %s in another way; use the version that wrote it",
			c.dir, m.Type)
	}
	return m, nil
}

// Weights reads the weights of a checkpoint, one part at a time, into memory that the next call uses again. One
// goroutine may use it.
type Weights struct {
	from      *Checkpoint
	model     *model.Model
	main, low []byte
}

// Weights returns a reader of the checkpoint's weights. The model is that of [Checkpoint.Model].
func (c *Checkpoint) Weights(m *model.Model) *Weights { return &Weights{from: c, model: m} }

// Part reads the weights of a part, which are valid until the next call. With lowHalves they are the exact fp32 weights
// of the optimizer; without, they are the weights that the forward pass uses, and the low halves are not read.
func (w *Weights) Part(part int, lowHalves bool) (model.Values, error) {
	return w.Range(part, 0, w.model.Parts[part].Layout.WeightElems, lowHalves)
}

// Range is Part for n elements of a part, from first on. It takes memory for these alone.
func (w *Weights) Range(part int, first, n int64, lowHalves bool) (v model.Values, err error) {
	p := &w.model.Parts[part]
	id := ID{Part: p.Name, Kind: store.Weights}
	weights, ok := w.from.Extent(id)
	v.First = first
	switch {
	case ok && weights.DType == tensor.F32:
		w.main, err = w.read(id, w.main, 4*p.Layout.WeightElems, 4*first, 4*n)
		v.F32 = hostmem.F32(w.main)
		return v, err
	case ok && weights.DType == tensor.BF16:
		w.main, err = w.read(id, w.main, 2*p.Layout.WeightElems, 2*first, 2*n)
		v.High = hostmem.U16(w.main)
	default:
		err = fmt.Errorf("%s has no %v in a type that is known; it was not saved by this program", w.from.Dir(), id)
	}
	if n = min(n, p.Layout.StateElems-first); err != nil || !lowHalves || n <= 0 {
		return v, err
	}
	id.Kind = store.Low
	size := int64(2)
	if low, _ := w.from.Extent(id); low.DType == tensor.I8 { // a master of 24 bits
		size = 1
	}
	w.low, err = w.read(id, w.low, size*p.Layout.StateElems, size*first, size*n)
	if size == 1 {
		v.Low8 = hostmem.I8(w.low)
	} else {
		v.Low = hostmem.I16(w.low)
	}
	return v, err
}

// Tensor reads the exact fp32 values of a tensor, row by row. The name is that of Hugging Face, as
// [model.Model.Tensors] lists it. An unknown name is an error.
func (w *Weights) Tensor(name string) ([]float32, error) {
	return w.model.ReadTensor(name, func(part int) (model.Values, error) { return w.Part(part, true) })
}

// read reads n bytes at off of an extent that has size bytes into mem, and makes mem longer if it is too short.
func (w *Weights) read(id ID, mem []byte, size, off, n int64) ([]byte, error) {
	if e, ok := w.from.Extent(id); !ok || e.Bytes != size {
		return nil, fmt.Errorf("%s has no %v of %d bytes; it is of another model", w.from.Dir(), id, size)
	}
	if int64(cap(mem)) < n {
		mem = make([]byte, n)
	}
	return mem[:n], w.from.Read(id, off, mem[:n])
}
