package plan

import (
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// PieceElems is the length of the pieces of a part's extents. A tile of the
// vocabulary is cut between rows, so that the embedding can be looked up and added to piece by piece.
func (p *Plan) PieceElems(part int) int64 {
	if p.over != nil { // of whose weights some may be frozen, and have other pieces
		return p.over.PieceElems(part)
	}
	l := p.Model.Parts[part].Layout
	if l.WeightElems != l.StateElems {
		return l.WeightElems // frozen in part: weights and state have other places, and go as one
	}
	unit := int64(tensor.Align)
	if k := p.Model.Parts[part].Kind; k.LookedUp() || k == model.HeadTile {
		unit = lcm(unit, int64(l.Fields[0].Shape[1]))
	}
	return max(p.Numerics.pieceElems()/unit, 1) * unit
}

func lcm(a, b int64) int64 {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// extents appends what the store keeps of a part, of Plan.forms: of one that another host owns, the weights. A tied
// tile that is streamed has its gradient sum there as well.
func (p *Plan) extents(specs []store.Spec, part int, forms store.Forms) []store.Spec {
	if !p.Owns(part) {
		forms = store.Forms{store.Weights: forms[store.Weights]}
	}
	if p.Tied(part) && !p.Bound() {
		forms[store.GradSum] = store.Each(tensor.F32)
	}
	if p.StateResident(part) {
		forms[store.Grad] = store.Form{}
	}
	first := len(specs)
	specs = store.AppendPartSpecs(specs, part, p.Model.Parts[part].Layout, forms, p.PieceElems(part))
	for i := first; i < len(specs); i++ {
		if specs[i].Kind == store.Grad {
			specs[i].Share = p.gradShare(part)
		}
		if cohorts := int64(p.Numerics.CohortCount()); specs[i].Kind == store.GradSum && cohorts > 1 {
			specs[i].Piece, specs[i].Bytes = p.tiedSumPiece(part), cohorts*p.TiedSumStride(part)
		}
	}
	return specs
}

// StateExtents are the extents of a part that a checkpoint has, whichever host keeps them: all but gradients and sums
// of them.
func (p *Plan) StateExtents(part int) []store.Spec {
	forms := p.forms()
	forms[store.Grad] = store.Form{}
	return store.AppendPartSpecs(nil, part, p.Model.Parts[part].Layout, forms, p.PieceElems(part))
}

// inputBytes is the input of a layer for one micro-batch: [T, Hidden].
func (p *Plan) inputBytes(layer int) int64 { return p.rowBytes(p.Model.Width(layer)) }

// widestInput is the longest of them.
func (p *Plan) widestInput() (most int64) {
	for i := range p.Model.Chains {
		most = max(most, p.rowBytes(p.Model.Chains[i].Hidden))
	}
	return most
}

// InputPieces cuts the input of a layer into pieces about as long as those of moments in fp32.
func (p *Plan) InputPieces(layer int) (pieces int, pieceBytes int64) {
	want := p.Numerics.pieceElems() * tensor.F32.Bytes()
	bytes := p.inputBytes(layer)
	n := (bytes + want - 1) / want
	each := ((bytes+n-1)/n + tensor.Align - 1) / tensor.Align * tensor.Align
	return int((bytes + each - 1) / each), each
}

// InputExtents are the saved inputs that are on disk.
func (p *Plan) InputExtents() []store.Spec {
	var specs []store.Spec
	for block := range p.blocks() {
		if p.SavedOnDisk(block) {
			pieces, each := p.InputPieces(1 + block)
			specs = append(specs, store.Spec{ID: store.ID{Part: p.Model.BlockParts[block], Kind: store.Inputs},
				Bytes: int64(p.microsDown()) * int64(pieces) * each, Piece: each})
		}
	}
	return specs
}
