package plan

import (
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// pieceElems is the length of the pieces of a part's extents. A tile of the
// vocabulary is cut between rows, so that the embedding can be looked up and added to piece by piece.
func (s *setting) pieceElems(part int) int64 {
	l := s.model.Parts[part].Layout
	if l.WeightElems != l.StateElems {
		return l.WeightElems // frozen in part: weights and state have other places, and go as one
	}
	unit := int64(tensor.Align)
	if k := s.model.Parts[part].Kind; k == model.Embed || k == model.HeadTile {
		unit = lcm(unit, int64(s.model.Hidden))
	}
	want := s.num.PieceElems
	if want == 0 {
		want = DefaultPieceElems
	}
	return max(want/unit, 1) * unit
}

func lcm(a, b int64) int64 {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// extents are what the store keeps of a part. A tied tile that is streamed has its gradient sum there as well.
func (s *setting) extents(part int) []store.Spec {
	types := s.types()
	if s.tied(part) && !s.place.Bind {
		types[store.GradSum] = tensor.F32
	}
	if s.stateHere(part) {
		types[store.Grad] = tensor.Invalid
	}
	specs := store.PartSpecs(part, s.model.Parts[part].Layout, types, s.pieceElems(part))
	for i := range specs {
		if specs[i].Kind == store.Grad {
			specs[i].Share = s.gradShare(part)
		}
	}
	return specs
}

// inputBytes is the input of a block for one micro-batch: [T, H].
func (s *setting) inputBytes() int64 {
	return int64(s.num.Positions()) * int64(s.model.Hidden) * s.num.Compute.Bytes()
}

// inputPieces cuts it into pieces about as long as those of moments in fp32.
func (s *setting) inputPieces() (pieces int, pieceBytes int64) {
	want := s.num.PieceElems
	if want == 0 {
		want = DefaultPieceElems
	}
	want *= tensor.F32.Bytes()
	bytes := s.inputBytes()
	n := (bytes + want - 1) / want
	each := ((bytes+n-1)/n + tensor.Align - 1) / tensor.Align * tensor.Align
	return int((bytes + each - 1) / each), each
}

// inputExtents are the saved inputs that are on disk.
func (s *setting) inputExtents() []store.Spec {
	var specs []store.Spec
	pieces, each := s.inputPieces()
	for block := range s.blocks() {
		if s.savedOnDisk(block) {
			specs = append(specs, store.Spec{ID: store.ID{Part: s.model.BlockParts[block], Kind: store.Inputs},
				Bytes: int64(s.num.MicroBatches) * int64(pieces) * each, Piece: each})
		}
	}
	return specs
}
