package session

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"syscall"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// SpaceOf returns the disk space of a run in addition to its state. steps is 0 where their number is not known.
func SpaceOf(c *runfile.Config, p *plan.Plan, weights tensor.DType, steps int) *plan.Space {
	params, _ := p.Model.Params()
	s := &plan.Space{CheckpointBytes: plan.CheckpointBytes(p.Model, p.Whole), AllKept: c.Save.Keep == 0,
		ModelBytes: params * weights.Bytes(), Models: 1}
	kept := c.Save.Keep
	if c.Save.Best {
		s.Models++
		kept++
	}
	saves := savesOf(c, steps, p.Predicted.StepSeconds)
	s.Checkpoints = min(kept+1, saves)
	if s.AllKept {
		s.Checkpoints = 1 // at the least; how many come depends on how long it runs
	}
	if saves == 0 {
		s.Checkpoints = 0
	}
	peak := func(checkpoints, kept int) int64 {
		return max(int64(checkpoints)*s.CheckpointBytes, int64(min(kept,
			saves))*s.CheckpointBytes+int64(s.Models)*s.ModelBytes)
	}
	s.PeakBytes = peak(s.Checkpoints, max(kept, 1))
	s.LeastPeakBytes = peak(min(s.Models+1, saves), s.Models) // one that is kept, and with save.best another
	for drive, isSaved := range savedOn(c) {
		switch {
		case !isSaved:
		case len(p.ByDrive) == 0:
			s.StateBytes = p.DiskBytes
		case drive < len(p.ByDrive):
			s.StateBytes += p.ByDrive[drive]
		}
	}
	return s
}

// mostSaves bounds the number of saves of a run whose steps take forever.
const mostSaves = 1_000_000_000

// savesOf bounds the saves of a run, if steps do not take longer than twice what is predicted; 0 is for one
// that is not to save.
func savesOf(c *runfile.Config, steps int, stepSec float64) int {
	switch {
	case c.Save.Every == 0 && c.Save.Minutes == 0 && !c.Save.AtEnd && !c.Save.Best:
		return 0
	case steps == 0:
		return math.MaxInt
	}
	n := 1 // at its end, or when it is interrupted
	if c.Save.Every > 0 {
		n += steps / c.Save.Every
	}
	if c.Save.Minutes > 0 {
		n += int(min(2*stepSec*float64(steps)/60/c.Save.Minutes, mostSaves))
	}
	if c.Save.Best && c.Eval.Every > 0 {
		n += steps / c.Eval.Every
	}
	return n
}

// savedOn says of each directory of memory.path whether checkpoints are on the same drive.
func savedOn(c *runfile.Config) []bool {
	paths := c.Budgets().Path
	saved := make([]bool, len(paths))
	for _, i := range rundir.OnDrive(paths, c.OutputDir) {
		saved[i] = true
	}
	return saved
}

// WearOf returns the wear of a run. steps is 0 where their number is not known.
func WearOf(c *runfile.Config, p *plan.Plan, steps int) *plan.Wear {
	return wearOf(c, p, steps, savedOn(c))
}

// WearElsewhere is WearOf for another machine, where checkpoints are on the first of its drives.
func WearElsewhere(c *runfile.Config, p *plan.Plan, steps int) *plan.Wear {
	saved := make([]bool, max(len(p.Placement.Drives), 1))
	saved[0] = true
	return wearOf(c, p, steps, saved)
}

func wearOf(c *runfile.Config, p *plan.Plan, steps int, saved []bool) *plan.Wear {
	return p.WearOf(steps, predictedSaves(c.Save, steps, p.Predicted.StepSeconds), saved,
		trace.RatingOf(c.Memory.RatedWrites.N))
}

// predictedSaves is the number of saves of a run whose steps take what is predicted. Those that only save.best asks
// for are left out.
func predictedSaves(s runfile.Save, steps int, stepSec float64) int {
	each := steps + 1 // steps between two saves
	if s.Every > 0 {
		each = min(each, s.Every)
	}
	if s.Minutes > 0 && stepSec > 0 {
		each = max(1, int(min(math.Ceil(60*s.Minutes/stepSec), float64(each))))
	}
	n := steps / each
	if s.AtEnd && steps%each > 0 {
		n++
	}
	return n
}

// spaceToLeave returns the space of the checkpoints that a run may have at once, less those that it has.
func (e *Env) spaceToLeave(c *runfile.Config, m *model.Model, n plan.Numerics) (int64, error) {
	own, err := e.Runs().OwnerOf(c.OutputDir)
	if err != nil {
		return 0, err
	}
	steps, err := checkpoint.Steps(e.Files(), rundir.CheckpointsDir(c), own)
	if err != nil {
		return 0, err
	}
	more := max(c.Save.Keep+1-len(steps), 1)
	return int64(more) * plan.CheckpointBytes(m, n), nil
}

// FreeBytes is the space that is left for a directory, which may not be there yet.
func FreeBytes(fsys vfs.FS, dir string) (int64, error) {
	for dir = filepath.Clean(dir); ; dir = filepath.Dir(dir) {
		free, err := fsys.FreeBytes(dir)
		if err == nil || !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return free, err
		}
	}
}

// HasRoom fails if less than bytes is free in a directory's file system. It does not fail if the free space is unknown.
func (e *Env) HasRoom(dir string, bytes int64) error {
	free, err := FreeBytes(e.Files(), dir)
	if err != nil || free >= bytes {
		return nil
	}
	return fmt.Errorf("%w: %s are needed, and %s are free in %s: free some, or name a directory on another drive",
		syscall.ENOSPC, plan.FormatBytes(bytes), plan.FormatBytes(free), dir)
}
