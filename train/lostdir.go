package train

import (
	"errors"
	"fmt"
	"strings"

	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// keepDir is holdDir for all hosts of a run: host 0 does it, whose error it is, and the others learn what was lost.
func (t *trainer) keepDir() (err error) {
	leads := t.env.Cluster.Leads()
	if leads {
		err = t.holdDir()
	}
	d := hosts.Decide(t.env.Cluster, hosts.Report[standing]{Own: t.saves.stand()})
	if d.Err != nil {
		return d.Err
	}
	if !leads {
		t.saves.standAs(d.Lead())
	}
	return err
}

// holdDir makes sure that the output directory is the run's, before the run writes there by name. It makes again what
// was removed, with the run's files. Where another run has begun in it, the error is a *takenError, from now on.
func (t *trainer) holdDir() error {
	h, c := &t.home, t.config
	if h.Taken != nil {
		return h.Taken
	}
	was := vfs.InodeOf(t.env.Files(), c.OutputDir) // Retake makes another one
	lost, err := h.Dir.Retake()
	if lost != "" {
		isHere := was != nil && h.ID.Inode != nil && was.Is(*h.ID.Inode)
		if !isHere {
			lost = c.OutputDir
		}
		t.saves.forgetLost()
		there, errThere := t.env.Runs().ReadIdentity(c.OutputDir)
		isOther := there != nil && there.Run != h.ID.Run ||
			!isHere && errThere == nil && there == nil && t.env.Runs().RefuseRun(c) != nil
		if errors.Is(err, vfs.ErrLocked) || isOther {
			h.Taken = &rundir.TakenError{Lost: lost}
			return h.Taken
		}
		h.Remake = lost
	}
	if err != nil {
		return err
	}
	if h.Remake == "" {
		return t.restoreRunFiles() // each by itself
	}
	if err := t.remakeFiles(); err != nil {
		return err
	}
	lost, h.Remake = h.Remake, ""
	t.env.Warn("output_dir: %s was removed or moved while the run was using it; it is made again, without what was there",
		lost)
	return nil
}

// restoreRunFiles writes those files again that a run has in its output directory from its beginning and that were
// removed one by one.
func (t *trainer) restoreRunFiles() error {
	if !t.env.Cluster.Leads() {
		return nil
	}
	resolved, err := t.env.Runs().ResolvedIn(t.config.OutputDir)
	if err != nil {
		return fmt.Errorf("output_dir: %w", err)
	}
	var lost []string
	if !vfs.Exists(t.home.File(rundir.IdentityName)) {
		lost = append(lost, rundir.IdentityName)
	}
	if resolved == "" {
		lost = append(lost, rundir.ResolvedName)
	}
	if !vfs.Exists(t.home.File(rundir.PlanName)) {
		lost = append(lost, rundir.PlanName)
	}
	if t.started && !vfs.Exists(t.home.File(rundir.MetricsName)) {
		lost = append(lost, rundir.MetricsName)
	}
	if len(lost) == 0 {
		return nil
	}
	if err := t.home.WriteIdentity(); err != nil {
		return err
	}
	if err := t.writeRunFiles(); err != nil {
		return err
	}
	if err := t.records.remake(); err != nil {
		return err
	}
	t.trackers.Remake()
	t.env.Warn("output_dir: %s of %s was removed while the run was using it; it is made again", strings.Join(lost, ", "),
		t.config.OutputDir)
	return nil
}

// remakeFiles writes what a run has in its output directory from its beginning, as far as that is not there.
func (t *trainer) remakeFiles() error {
	t.home.ID.Inode = vfs.InodeOf(t.env.Files(), t.config.OutputDir)
	t.home.NoteOutside()
	t.home.NoteState()
	if err := t.home.WriteIdentity(); err != nil {
		return err
	}
	if err := t.writeRunFiles(); err != nil {
		return err
	}
	if err := t.records.remake(); err != nil {
		return err
	}
	t.trackers.Remake()
	return nil
}
