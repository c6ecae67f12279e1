package train

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/vfs"
)

// A run on several hosts has one output directory, in a file system that they share. Host 0 has its lock, says which
// run it has and where that begins, and writes its files. The others take that over, and write their parts of
// checkpoints.

// arrival brings the other hosts what host 0 has found in the output directory.
type arrival struct {
	OutputDir string          `json:"output_dir"`
	Identity  rundir.Identity `json:"identity"`
	From      choice          `json:"from"`
	Sizes     runfile.Sizes   `json:"sizes"`
	Overlong  string          `json:"overlong,omitempty"`
}

// choice is the checkpoint that a run continues from, as host 0 has it. A path outside of output_dir may name another
// one on each host.
type choice struct {
	Path string         `json:"path,omitempty"` // empty: there is no such checkpoint
	Sum  checkpoint.Sum `json:"sum"`            // of its manifest
}

func choiceOf(c *checkpoint.Checkpoint) (choice, error) {
	if c == nil {
		return choice{}, nil
	}
	sum, err := c.Manifest.Sum()
	return choice{c.Dir(), sum}, err
}

// openChosen opens the checkpoint that host 0 has chosen; nil if it has chosen none.
func openChosen(e *session.Env, of choice) (*checkpoint.Checkpoint, error) {
	if of.Path == "" {
		return nil, nil
	}
	c, err := checkpoint.Open(e.Files(), of.Path)
	if err != nil {
		return nil, err
	}
	here, err := choiceOf(c)
	if err == nil && here.Sum != of.Sum {
		err = fmt.Errorf("%s is another checkpoint here (of step %d) than on %s: copy it again, or keep it in a file "+
			"system that all hosts share", of.Path, c.Manifest.Step, e.Cluster.Name(0))
	}
	return c, err
}

// arrive has all hosts know which run this is and how it starts, and makes sure that they share the output directory.
func (t *trainer) arrive(ctx context.Context) (b rundir.Beginning, err error) {
	c, h := t.env.Cluster, &t.home
	var found arrival
	err = t.env.Together(ctx, func(context.Context) (err error) {
		if !c.Leads() {
			return nil
		}
		if err = t.openNotices(); err != nil {
			return blame.BadRequest(err)
		}
		if b, err = h.Hold(); err == nil { // which removes what a torn save has left
			found = arrival{OutputDir: h.Config.OutputDir, Identity: h.ID, Sizes: b.Sizes, Overlong: b.Overlong}
			found.From, err = choiceOf(b.From)
		}
		return blame.BadRequest(err)
	})
	if err != nil {
		return b, err
	}
	d := hosts.Decide(c, hosts.Report[arrival]{Own: found})
	if found = d.Lead(); d.Err != nil {
		return b, d.Err
	}
	if own := h.Config.OutputDir; own != found.OutputDir {
		err = fmt.Errorf("output_dir is %s, and %s on %s: give all hosts the same path, in a file system that they "+
			"share", own, found.OutputDir, c.Name(0))
	}
	if err = c.Agree(blame.BadRequest(err)); err != nil {
		return b, err
	}
	if err := h.Saving.CheckShared(t.env.Files(), h.Dir); err != nil {
		if h.Saving.Lost() != nil {
			return b, c.Alone(err)
		}
		return b, c.Everywhere(blame.BadRequest(fmt.Errorf("output_dir: %w", err)))
	}
	if !c.Leads() {
		b, err = t.follow(found)
	}
	return b, c.Agree(blame.BadRequest(err))
}

// follow takes over what host 0 has found.
func (t *trainer) follow(found arrival) (b rundir.Beginning, err error) {
	h := &t.home
	if err := found.Identity.Check(); err != nil {
		return b, fmt.Errorf("the run of %s: %w: give all hosts the same program", t.env.Cluster.Name(0), err)
	}
	h.ID = found.Identity
	b = rundir.Beginning{Sizes: found.Sizes, Overlong: found.Overlong}
	if b.From, err = openChosen(t.env, found.From); err != nil {
		return b, fmt.Errorf("resume: %w", err)
	}
	if err := rundir.CheckPaths(h.Config.Budgets()); err != nil {
		return b, err
	}
	for _, within := range h.Config.Budgets().Path {
		if !t.env.Runs().OwnsStates(&h.ID, within) {
			return b, &vfs.NotOwnError{Path: filepath.Join(within, h.ID.Name+"*"),
				Why: "has state of a run with another output_dir: " +
					"remove it, or set another memory.path"}
		}
	}
	dirs := h.ID.StateDirsOf(h.Config, t.env.Cluster.Host)
	if err := t.env.Runs().CheckStateLinks(dirs); err != nil {
		return b, err
	}
	h.MemoryPath, h.Config.Memory.Path = h.Config.Memory.Path, dirs
	return b, nil
}
