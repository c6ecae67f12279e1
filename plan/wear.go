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
	// StepDriveBytes and RunDriveBytes are those that the drive gets which is written most, where state on disk is on
	// several.
	StepDriveBytes int64 `json:"step_drive_bytes,omitempty"`
	RunDriveBytes  int64 `json:"run_drive_bytes,omitempty"`
	trace.Rating
	Share float64 `json:"share,omitempty"` // of the rating of a drive, that its bytes of a run take
}

// WearOf works out the wear of a run of steps, 0 if their number is not known, with saves. saved says by drive of the
// state on disk whether checkpoints are on it as well: they copy the state of the others.
func (p *Plan) WearOf(steps, saves int, saved []bool, rating trace.Rating) *Wear {
	memory, disk, _ := p.saved()
	w := &Wear{StepBytes: p.Predicted.DiskWrittenBytes, Steps: steps, SaveBytes: memory, Saves: saves, Rating: rating}
	for drive, isSaved := range saved {
		if !isSaved {
			w.SaveBytes += p.onDrive(disk, drive)
		}
	}
	w.RunBytes = int64(steps)*w.StepBytes + int64(saves)*w.SaveBytes
	w.Share = rating.ShareOf(w.RunBytes)
	if len(p.Placement.Drives) == 0 {
		return w
	}
	w.RunDriveBytes = int64(saves) * w.SaveBytes // of a drive that has checkpoints alone
	for drive, isSaved := range saved {
		step := p.onDrive(w.StepBytes, drive)
		run := int64(steps) * step
		if isSaved {
			run += int64(saves) * w.SaveBytes
		}
		w.StepDriveBytes, w.RunDriveBytes = max(w.StepDriveBytes, step), max(w.RunDriveBytes, run)
	}
	w.Share = rating.ShareOf(w.RunDriveBytes)
	switch {
	case w.RunBytes > 0:
		w.DrivePart = float64(w.RunDriveBytes) / float64(w.RunBytes)
	case w.StepBytes > 0:
		w.DrivePart = float64(w.StepDriveBytes) / float64(w.StepBytes)
	}
	return w
}

// onDrive is the part of bytes of state on disk that a drive has.
func (p *Plan) onDrive(bytes int64, drive int) int64 {
	shares := p.Placement.Drives
	if len(shares) == 0 {
		return bytes
	}
	return int64(float64(bytes) * float64(shares[drive]) / float64(sum(shares)))
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
		return fmt.Sprintf("each step writes %s to disk: %d steps write %s", FormatBytes(w.StepBytes), fewSteps,
			trace.FormatWritten(fewSteps*w.StepBytes)) + w.text(", ", fewSteps*w.StepBytes, fewSteps*w.StepDriveBytes)
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
	return fmt.Sprintf("the run writes %s to disk (%s)", trace.FormatWritten(w.RunBytes), strings.Join(of, ", ")) +
		w.text(": ", w.RunBytes, w.RunDriveBytes)
}

// text says after a mark which part of a drive's rating bytes are: those of the drive that gets most, if there are
// several, which it names.
func (w *Wear) text(mark string, bytes, driveBytes int64) string {
	if driveBytes == 0 {
		return mark + w.Text(bytes)
	}
	return fmt.Sprintf(", %s of it to the drive that gets most: %s", trace.FormatWritten(driveBytes), w.Text(driveBytes))
}
