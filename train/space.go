package train

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// spaceOf returns the disk space of a run in addition to its state. steps is 0 where their number is not known.
func spaceOf(c *runfile.Config, p *plan.Plan, weights tensor.DType, steps int) *plan.Space {
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
		return max(int64(checkpoints)*s.CheckpointBytes, int64(min(kept, saves))*s.CheckpointBytes+int64(s.Models)*s.ModelBytes)
	}
	s.PeakBytes = peak(s.Checkpoints, max(kept, 1))
	s.LeastPeakBytes = peak(min(s.Models+1, saves), s.Models) // one that is kept, and with save.best another
	if vfs.SameDrive(c.Budgets().Path, c.OutputDir) {
		s.StateBytes = p.DiskBytes
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

// spaceToLeave returns the space of the checkpoints that a run may have at once, less those that it has.
func (e *Env) spaceToLeave(c *runfile.Config, m *model.Model, n plan.Numerics) (int64, error) {
	own, err := e.Runs().OwnerOf(c.OutputDir)
	if err != nil {
		return 0, err
	}
	steps, err := checkpoint.Steps(e.files(), rundir.CheckpointsDir(c), own)
	if err != nil {
		return 0, err
	}
	more := max(c.Save.Keep+1-len(steps), 1)
	return int64(more) * plan.CheckpointBytes(m, n), nil
}

// freeBytes is the space that is left for a directory, which may not be there yet.
func freeBytes(fsys vfs.FS, dir string) (int64, error) {
	for dir = filepath.Clean(dir); ; dir = filepath.Dir(dir) {
		free, err := fsys.FreeBytes(dir)
		if err == nil || !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return free, err
		}
	}
}

// hasRoom fails if less than bytes is free in a directory's file system. It does not fail if the free space is unknown.
func (e *Env) hasRoom(dir string, bytes int64) error {
	free, err := freeBytes(e.files(), dir)
	if err != nil || free >= bytes {
		return nil
	}
	return fmt.Errorf("%w: %s are needed, and %s are free in %s: free some, or name a directory on another drive",
		syscall.ENOSPC, plan.FormatBytes(bytes), plan.FormatBytes(free), dir)
}

// checkSpace fails if the reserved files of the run leave too little space for its checkpoints and its model. The first
// save, hours later, would be too late to find that out. The space of the run's earlier checkpoints serves the next
// ones. Each host of a run checks it when its own files are reserved, and so the last one for all.
func (t *trainer) checkSpace() error {
	c, s := t.config, *t.plan.Space
	free, err := freeBytes(t.env.files(), c.OutputDir)
	if err != nil {
		return nil // not known
	}
	steps, err := checkpoint.Steps(t.env.files(), rundir.CheckpointsDir(c), t.home.ID.Owner())
	if err != nil {
		return err
	}
	if t.from != nil { // newer ones are set aside: damaged, or of unhealthy steps
		steps = slices.DeleteFunc(steps, func(step int) bool { return step > t.from.Manifest.Step })
	}
	s.FreeBytes, s.StateBytes = &free, 0
	s.ModelBytes += t.src.carried.bytes
	there := int64(min(len(steps), s.Checkpoints)) * s.CheckpointBytes
	for _, peak := range []*int64{&s.PeakBytes, &s.LeastPeakBytes} {
		*peak = max(*peak+int64(s.Models)*t.src.carried.bytes-there, 0)
	}
	if s.Short() > 0 {
		var ways []string
		if s.KeepHelps() {
			ways = append(ways, fmt.Sprintf("lower save.keep (%d)", c.Save.Keep))
		}
		if t.session.Disk != nil && vfs.SameDrive(c.Budgets().Path, c.OutputDir) {
			ways = append(ways, "set memory.path to another drive")
		}
		return fmt.Errorf("output_dir: up to %s of %s at once and a model of %s need %s more, and %s are free there; %s",
			spelling.Count(s.Checkpoints, "checkpoint"), plan.FormatBytes(s.CheckpointBytes), plan.FormatBytes(s.ModelBytes),
			plan.FormatBytes(s.PeakBytes), plan.FormatBytes(free),
			spelling.Or(append(ways, "set output_dir to a larger drive")))
	}
	more := (free - int64(s.Models)*s.ModelBytes) / s.CheckpointBytes
	isShort := s.AllKept && c.Save.Every > 0 && int64((t.rates.Steps-t.begun)/c.Save.Every) > more
	if isShort && t.env.Cluster.Leads() {
		t.env.warn("save.keep is 0, so every checkpoint stays: output_dir is full after step %d, and no later one can be saved",
			(t.begun/c.Save.Every+int(more))*c.Save.Every)
	}
	return nil
}
