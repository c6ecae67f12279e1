package plan

import (
	"fmt"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/store"
)

// Space is the disk space of a run in addition to the state that the plan keeps on disk: its checkpoints and its
// exports.
type Space struct {
	CheckpointBytes int64 `json:"checkpoint_bytes"` // of each
	Checkpoints     int   `json:"checkpoints"`      // at once, at most: those that are kept, and the next one while it is saved
	AllKept         bool  `json:"all_kept,omitempty"`
	ModelBytes      int64 `json:"model_bytes"` // of each
	Models          int   `json:"models"`
	// PeakBytes is the most of the drive of output_dir that they take at once: models are written when there is no save.
	PeakBytes int64 `json:"peak_bytes"`
	// LeastPeakBytes is PeakBytes with save.keep: 1.
	LeastPeakBytes int64 `json:"least_peak_bytes"`
	// StateBytes is the room that the plan's state takes on the same drive; 0 where memory.path is on another one.
	StateBytes int64 `json:"state_bytes,omitempty"`
	// FreeBytes is the free space of that drive; nil where that is not known.
	FreeBytes *int64 `json:"free_bytes,omitempty"`
}

// CheckpointBytes is the size of a checkpoint of a model. State on disk is linked, which writes nothing; but the run
// then needs a file more for each that is linked, so that it takes as much.
func CheckpointBytes(m *model.Model, n Numerics) (sum int64) {
	p := &Plan{Model: m, Whole: n, Numerics: n}
	p.Placement = p.resolve(Smallest(len(m.Parts), len(m.Blocks), false))
	for part := range m.Parts {
		for _, spec := range p.extents(nil, part, p.forms()) {
			if spec.Kind.Transient() {
				continue
			}
			for _, bytes := range spec.Pieces() {
				sum += store.AlignUp(bytes)
			}
		}
	}
	return sum
}

// manifestPieceBytes is the Go heap that a piece of a checkpoint needs while its manifest is made: its place, its name,
// and its text, three times during sealing.
const manifestPieceBytes = 1 << 10

// manifestBytes estimates the manifest of a whole checkpoint, of which extents are this host's; 0 for what is not
// trained, and so not saved.
func (c *chooser) manifestBytes(p *Plan, extents []store.Spec) (sum int64) {
	switch {
	case p.Outputs.NoUpdates || !p.Trains():
		return 0
	case c.manifest > 0:
		return c.manifest
	case p.Cluster.Several(): // the same whatever the placement
		whole := *p
		whole.Cluster, whole.owners = Cluster{}, nil
		defer func() { c.manifest = sum }()
		extents = whole.Extents()
	}
	for _, spec := range extents {
		if !spec.Kind.Transient() {
			sum += (spec.Bytes + spec.Piece - 1) / spec.Piece * manifestPieceBytes
		}
	}
	return sum
}

// NeedBytes is all that is needed of the drive of output_dir.
func (s *Space) NeedBytes() int64 { return s.PeakBytes + s.StateBytes }

// Short is the space that the drive lacks; 0 if it has enough, or that is not known.
func (s *Space) Short() int64 {
	if s.FreeBytes == nil {
		return 0
	}
	return max(s.NeedBytes()-*s.FreeBytes, 0)
}

// KeepHelps reports whether what the drive lacks would be there with a lower save.keep.
func (s *Space) KeepHelps() bool {
	return s.Short() > 0 && s.LeastPeakBytes < s.PeakBytes && s.LeastPeakBytes+s.StateBytes <= *s.FreeBytes
}

// text is the space for people.
func (s *Space) text() string {
	line := fmt.Sprintf("space       %s of %s", count(s.Checkpoints, "checkpoint"), FormatBytes(s.CheckpointBytes))
	if s.AllKept {
		line = fmt.Sprintf("space       %s for each checkpoint, and all are kept", FormatBytes(s.CheckpointBytes))
	}
	if s.Models > 0 {
		line += fmt.Sprintf(", %s of %s", count(s.Models, "model"), FormatBytes(s.ModelBytes))
	}
	if s.StateBytes > 0 {
		line += fmt.Sprintf(", %s of state", FormatBytes(s.StateBytes))
	}
	line += fmt.Sprintf(": %s in output_dir at once", FormatBytes(s.NeedBytes()))
	switch {
	case s.FreeBytes == nil:
	case s.KeepHelps():
		line += fmt.Sprintf(", and only %s are free: lower save.keep, or use a larger drive", FormatBytes(*s.FreeBytes))
	case s.Short() > 0:
		line += fmt.Sprintf(", and only %s are free: use a larger drive", FormatBytes(*s.FreeBytes))
	default:
		line += fmt.Sprintf(", and %s are free", FormatBytes(*s.FreeBytes))
	}
	return line + "\n"
}
