package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// State on disk may be on several drives: memory.path then lists a directory on each. Each drive has a share of the
// state by its rates, as far as there is room.

// diskShare is the part of the free space that a run takes when memory.disk is auto, its checkpoints included where
// they are on the same drive.
const diskShare = 0.9

// diskRoom returns what state may take of the file system of each path; nil where nothing may be on disk. Paths in one
// file system share what it has.
func diskRoom(m runfile.Memory, fsys vfs.FS) (room []int64, err error) {
	if !m.UsesDisk() {
		return nil, nil
	}
	if len(m.Path) == 0 {
		return nil, errors.New("memory.disk: set memory.path to a directory on the drive that may be used")
	}
	for _, path := range m.Path {
		free, err := FreeBytes(fsys, path)
		if err != nil {
			return nil, fmt.Errorf("memory.path: %w", err)
		}
		free /= int64(len(rundir.OnDrive(m.Path, path)))
		free += store.LeftBytes(path) // else a run that was killed could not have again what it had
		if m.Disk.IsAuto() {
			free = int64(diskShare * float64(free))
		}
		room = append(room, max(free, 1)) // not 0, which is no disk at all
	}
	return room, nil
}

// setRoom gives a request the disk with so much room in each path.
func setRoom(r *plan.Request, m runfile.Memory, room []int64) {
	r.DiskBytes, r.Drives = 0, nil
	for _, n := range room {
		r.DiskBytes += n
	}
	if m.Disk.N > 0 {
		r.DiskBytes = min(m.Disk.N, r.DiskBytes)
	}
	if len(room) > 1 {
		r.DealByRate(m.Path, room)
	}
}

// roomOfRun returns the room of a request on the drives that a run may use, less that of its checkpoints and of other
// hosts where memory.disk is auto.
func (e *Env) roomOfRun(c *runfile.Config, leave func() (int64, error)) ([]int64, error) {
	m := c.Budgets()
	room, err := diskRoom(m, e.Files())
	if err != nil || !m.Disk.IsAuto() {
		return room, err
	}
	if saves := rundir.OnDrive(m.Path, c.OutputDir); len(saves) > 0 {
		bytes, err := leave()
		if err != nil {
			return nil, err
		}
		for _, i := range saves {
			room[i] = max(room[i]-bytes/int64(len(saves)), 1) // not 0, which is no disk at all
		}
	}
	for i, path := range m.Path {
		room[i] = max(room[i]/e.diskSharers(c, path), 1)
	}
	return room, nil
}

// fitDealt plans with state on several drives: dealt by their rates or, where one has too little room for that, by what
// there is room for. f then has the request that fits.
func (e *Env) fitDealt(ctx context.Context, f *plan.Fitting, mem runfile.Memory) (*plan.Plan, error) {
	p, err := e.fit(ctx, *f, mem)
	if err == nil || len(f.Drives) < 2 || ctx.Err() != nil {
		return p, err
	}
	var room []int64
	for _, d := range f.Drives {
		room = append(room, d.Bytes)
	}
	full := *f
	full.DealByRoom(mem.Path, room, 0)
	p, err = e.fit(ctx, full, mem)
	if err != nil {
		return nil, err
	}
	// The state may need less than all, and then is dealt closer to the rates: with some more than this plan has, since
	// each drive has spare files of its own.
	for _, more := range []float64{1.01, 1.1, 1.5} {
		least := full
		least.DealByRoom(mem.Path, room, int64(more*float64(p.DiskBytes)))
		if q, err := e.fit(ctx, least, mem); err == nil {
			if q.Predicted.StepSeconds <= p.Predicted.StepSeconds {
				p, full = q, least
			}
			break
		}
	}
	*f = full
	return p, ctx.Err()
}
