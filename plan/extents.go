package plan

import (
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// pieceElems is about how long the pieces of an extent are: what the host updates, and a disk reads or writes, at a time.
// Moments in fp32 make 16 MiB of it.
const pieceElems = 4 << 20

// pieceElems is the length of the pieces of a part's extents. It belongs to the model alone, as the parts do. A tile of the
// vocabulary is cut between rows, so that the embedding can be looked up and added to piece by piece.
func (s *setting) pieceElems(part int) int64 {
	unit := int64(tensor.Align)
	if k := s.model.Parts[part].Kind; k == model.Embed || k == model.HeadTile {
		unit = lcm(unit, int64(s.model.Hidden))
	}
	return max(pieceElems/unit, 1) * unit
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
