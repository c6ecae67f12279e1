package train

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
)

// checkSpace fails if the reserved files of the run leave too little space for its checkpoints and its model. The first
// save, hours later, would be too late to find that out. The space of the run's earlier checkpoints serves the next
// ones. Each host of a run checks it when its own files are reserved, and so the last one for all.
func (t *trainer) checkSpace() error {
	c, s := t.config, *t.plan.Space
	free, err := session.FreeBytes(t.env.Files(), c.OutputDir)
	if err != nil {
		return nil // not known
	}
	steps, err := checkpoint.Steps(t.env.Files(), rundir.CheckpointsDir(c), t.home.ID.Owner())
	if err != nil {
		return err
	}
	if t.from != nil { // newer ones are set aside: damaged, or of unhealthy steps
		steps = slices.DeleteFunc(steps, func(step int) bool { return step > t.from.Manifest.Step })
	}
	s.FreeBytes, s.StateBytes = &free, 0
	s.ModelBytes += t.src.Carried.Bytes
	there := int64(min(len(steps), s.Checkpoints)) * s.CheckpointBytes
	t.needs = spaceNeeds{peak: s.PeakBytes + int64(s.Models)*t.src.Carried.Bytes, checkpoint: s.CheckpointBytes,
		models: int64(s.Models) * s.ModelBytes, most: s.Checkpoints}
	if s.AllKept {
		t.needs.most = 0
	}
	for _, peak := range []*int64{&s.PeakBytes, &s.LeastPeakBytes} {
		*peak = max(*peak+int64(s.Models)*t.src.Carried.Bytes-there, 0)
	}
	if s.Short() > 0 {
		var ways []string
		if s.KeepHelps() {
			ways = append(ways, fmt.Sprintf("lower save.keep (%d)", c.Save.Keep))
		}
		if t.session.Disk != nil && len(rundir.OnDrive(c.Budgets().Path, c.OutputDir)) > 0 {
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
		t.env.Warn("save.keep is 0, so every checkpoint stays: output_dir is full after step %d, and no later one can be "+
			"saved",
			(t.begun/c.Save.Every+int(more))*c.Save.Every)
	}
	return nil
}
