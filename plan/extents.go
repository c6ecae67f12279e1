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
	return store.PartSpecs(part, s.model.Parts[part].Layout, types, s.pieceElems(part))
}
