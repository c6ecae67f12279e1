package train

import (
	"errors"
	"fmt"
	"strings"

	"github.com/millrace/millrace/vfs"
)

// takenError ends a run whose output directory has become that of another run.
type takenError struct{ lost string }

func (e *takenError) Error() string {
	return fmt.Sprintf("output_dir: %s was removed or moved while the run was using it, and another run has the "+
		"directory now", e.lost)
}

// holdAlike is holdDir for all hosts of a run: host 0 does it, whose error it is, and the others learn what was lost.
func (t *trainer) holdAlike() (err error) {
	cluster := t.env.Cluster
	if cluster == nil {
		return t.holdDir()
	}
	if cluster.Leads() {
		err = t.holdDir()
	}
	lead, errPeers := decided(cluster, t.saves.stand())
	if errPeers != nil {
		return errPeers
	}
	if !cluster.Leads() {
		t.saves.standAs(lead)
	}
	return err
}

// holdDir makes sure that the output directory is the run's, before the run writes there by name. It makes again what
// was removed, with the run's files. Where another run has begun in it, the error is a *takenError, from now on.
func (t *trainer) holdDir() error {
	h, c := &t.home, t.config
	if h.taken != nil {
		return h.taken
	}
	was := vfs.InodeOf(t.env.files(), c.OutputDir) // Retake makes another one
	lost, err := h.dir.Retake()
	if lost != "" {
		isHere := was != nil && h.id.Inode != nil && was.Is(*h.id.Inode)
		if !isHere {
			lost = c.OutputDir
		}
		t.saves.forgetLost()
		there, errThere := t.env.readIdentity(c.OutputDir)
		isOther := there != nil && there.Run != h.id.Run ||
			!isHere && errThere == nil && there == nil && t.env.refuseRun(c) != nil
		if errors.Is(err, vfs.ErrLocked) || isOther {
			h.taken = &takenError{lost}
			return h.taken
		}
		h.remake = lost
	}
	if err != nil {
		return err
	}
	if h.remake == "" {
		return t.restoreRunFiles() // each by itself
	}
	if err := t.remakeFiles(); err != nil {
		return err
	}
	lost, h.remake = h.remake, ""
	t.env.warn("output_dir: %s was removed or moved while the run was using it; it is made again, without what was there",
		lost)
	return nil
}

// restoreRunFiles writes those files again that a run has in its output directory from its beginning and that were
// removed one by one.
func (t *trainer) restoreRunFiles() error {
	if !t.env.Cluster.Leads() {
		return nil
	}
	resolved, err := t.env.resolvedIn(t.config.OutputDir)
	if err != nil {
		return fmt.Errorf("output_dir: %w", err)
	}
	var lost []string
	if !exists(t.home.file(identityName)) {
		lost = append(lost, identityName)
	}
	if resolved == "" {
		lost = append(lost, resolvedName)
	}
	if !exists(t.home.file(planName)) {
		lost = append(lost, planName)
	}
	if t.started && !exists(t.home.file(metricsName)) {
		lost = append(lost, metricsName)
	}
	if len(lost) == 0 {
		return nil
	}
	if err := t.home.writeIdentity(); err != nil {
		return err
	}
	if err := t.writeRunFiles(); err != nil {
		return err
	}
	if err := t.records.remake(); err != nil {
		return err
	}
	t.env.warn("output_dir: %s of %s was removed while the run was using it; it is made again", strings.Join(lost, ", "),
		t.config.OutputDir)
	return nil
}

// remakeFiles writes what a run has in its output directory from its beginning, as far as that is not there.
func (t *trainer) remakeFiles() error {
	t.home.id.Inode = vfs.InodeOf(t.env.files(), t.config.OutputDir)
	t.home.noteOutside()
	t.home.noteState()
	if err := t.home.writeIdentity(); err != nil {
		return err
	}
	if err := t.writeRunFiles(); err != nil {
		return err
	}
	return t.records.remake()
}
