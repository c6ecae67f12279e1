package tensor

// Frozen is a layout of the same tensors at the same places in the weights extent, none of them trainable.
func (l *Layout) Frozen() *Layout {
	frozen := &Layout{Fields: append([]Placed(nil), l.Fields...), WeightElems: l.WeightElems}
	for i := range frozen.Fields {
		frozen.Fields[i].Trainable, frozen.Fields[i].Decay, frozen.Fields[i].State = false, false, -1
	}
	return frozen
}
