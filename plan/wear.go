package plan

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/trace"
)

// Wear has the bytes that this host writes to drives in a whole run, and the part of the drive's rating that they take.
// It counts as a run does: state on disk, which each step writes, and the bytes that checkpoints copy. All of it is
// predicted.
type Wear struct {
	StepBytes int64 `json:"step_bytes"` // of state, in each step
	Steps     int   `json:"steps,omitempty"`
	SaveBytes int64 `json:"save_bytes"` // that each checkpoint copies
	Saves     int   `json:"saves,omitempty"`
	RunBytes  int64 `json:"run_bytes,omitempty"` // in all; 0 where the number of steps is not known
	trace.Rating
	Share float64 `json:"share,omitempty"` // of the rating, that RunBytes take
}

// WearOf works out the wear of a run of steps, 0 if their number is not known, with saves. copiesDisk says that
// checkpoints are on another drive than the state on disk, which they then copy.
func (p *Plan) WearOf(steps, saves int, copiesDisk bool, rating trace.Rating) *Wear {
	memory, disk, _ := p.saved()
	w := &Wear{StepBytes: p.Predicted.DiskWrittenBytes, Steps: steps, SaveBytes: memory, Saves: saves, Rating: rating}
	if copiesDisk {
		w.SaveBytes += disk
	}
	w.RunBytes = int64(steps)*w.StepBytes + int64(saves)*w.SaveBytes
	w.Share = rating.ShareOf(w.RunBytes)
	return w
}

// saved has what a checkpoint takes of this host's: bytes that are in host memory, bytes that are on disk, and the
// number of the files with these.
func (p *Plan) saved() (memory, disk, files int64) {
	for _, spec := range p.Extents() {
		switch {
		case spec.Kind.Transient(), !p.Owns(spec.Part):
		case p.OnDisk(spec.ID):
			disk += spec.Bytes
			files += (spec.Bytes + spec.Piece - 1) / spec.Piece
		default:
			memory += spec.Bytes
		}
	}
	return memory, disk, files
}

// MuchWear is the share of a rating from which on a run says what it writes even if that is checkpoints alone.
const MuchWear = 0.01

// Matters reports whether a user who has not asked should hear of it: each step writes to the drive, or much is
// written in all.
func (w *Wear) Matters() bool { return w.StepBytes > 0 || w.Share >= MuchWear }

// fewSteps is the number of steps whose bytes stand for those of a run without a known end.
const fewSteps = 1000

// String says what the run writes in all, of what, and which part of the rating that is; empty if it writes nothing.
func (w *Wear) String() string {
	if w.Steps == 0 {
		if w.StepBytes == 0 {
			return ""
		}
		return fmt.Sprintf("each step writes %s to disk: %d steps write %s, %s", FormatBytes(w.StepBytes), fewSteps,
			trace.FormatWritten(fewSteps*w.StepBytes), w.Text(fewSteps*w.StepBytes))
	}
	var of []string
	if w.StepBytes > 0 {
		of = append(of, fmt.Sprintf("%s in each of %s", FormatBytes(w.StepBytes), count(w.Steps, "step")))
	}
	if w.Saves > 0 {
		of = append(of, fmt.Sprintf("%s of %s", count(w.Saves, "checkpoint"), FormatBytes(w.SaveBytes)))
	}
	if len(of) == 0 {
		return ""
	}
	return fmt.Sprintf("the run writes %s to disk (%s): %s", trace.FormatWritten(w.RunBytes), strings.Join(of, ", "),
		w.Text(w.RunBytes))
}
