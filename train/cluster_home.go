package train

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/vfs"
)

// A run on several hosts has one output directory, in a file system that they share. Host 0 has its lock, says which
// run it has and where that begins, and writes its files. The others take that over, and write their parts of
// checkpoints.

// arrival brings the other hosts what host 0 has found in the output directory.
type arrival struct {
	OutputDir string        `json:"output_dir"`
	Identity  identity      `json:"identity"`
	From      choice        `json:"from"`
	Sizes     runfile.Sizes `json:"sizes"`
	Overlong  string        `json:"overlong,omitempty"`
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
func (e *Env) openChosen(of choice) (*checkpoint.Checkpoint, error) {
	if of.Path == "" {
		return nil, nil
	}
	c, err := checkpoint.Open(e.files(), of.Path)
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
func (h *home) arrive(ctx context.Context) (b beginning, err error) {
	c := h.env.Cluster
	var found arrival
	err = h.env.together(ctx, func(context.Context) (err error) {
		if !c.Leads() {
			return nil
		}
		if b, err = h.hold(); err == nil { // which removes what a torn save has left
			found = arrival{OutputDir: h.config.OutputDir, Identity: h.id, Sizes: b.sizes, Overlong: b.overlong}
			found.From, err = choiceOf(b.from)
		}
		return blame.BadRequest(err)
	})
	if c == nil || err != nil {
		return b, err
	}
	if found, err = decided(c, found); err != nil {
		return b, err
	}
	if own := h.config.OutputDir; own != found.OutputDir {
		err = fmt.Errorf("output_dir is %s, and %s on %s: give all hosts the same path, in a file system that they "+
			"share", own, found.OutputDir, c.Name(0))
	}
	if err = c.Agree(blame.BadRequest(err)); err != nil {
		return b, err
	}
	if err := h.saving.CheckShared(h.env.files(), h.dir); err != nil {
		if h.saving.Lost() != nil {
			return b, c.alone(err)
		}
		return b, c.everywhere(blame.BadRequest(fmt.Errorf("output_dir: %w", err)))
	}
	if !c.Leads() {
		b, err = h.follow(found)
	}
	return b, c.Agree(blame.BadRequest(err))
}

// follow takes over what host 0 has found.
func (h *home) follow(found arrival) (b beginning, err error) {
	if err := found.Identity.check(); err != nil {
		return b, fmt.Errorf("the run of %s: %w: give all hosts the same program", h.env.Cluster.Name(0), err)
	}
	h.id = found.Identity
	b = beginning{sizes: found.Sizes, overlong: found.Overlong}
	if b.from, err = h.env.openChosen(found.From); err != nil {
		return b, fmt.Errorf("resume: %w", err)
	}
	if within := filepath.Dir(h.id.stateDir(h.config)); !h.env.ownsStates(&h.id, within) {
		return b, &vfs.NotOwnError{Path: filepath.Join(within, h.id.Name+"*"), Why: "has state of a run with another output_dir: " +
			"remove it, or set another memory.path"}
	}
	dir := h.id.stateDirOf(h.config, h.env.Cluster.Host)
	if err := h.env.checkEmptyLink(dir); err != nil {
		return b, underKey("memory.path", err)
	}
	h.memoryPath, h.config.Memory.Path = h.config.Memory.Path, dir
	return b, nil
}

// isStateOf reports whether a directory below memory.path has the name of a host's of this run.
func (id *identity) isStateOf(name string) bool {
	host, isHost := strings.CutPrefix(name, id.Name+hostStateInfix)
	_, err := strconv.Atoi(host)
	return name == id.Name || isHost && err == nil
}

// hostStateInfix stands between the name of a run's directory below memory.path and the number of the host that it is
// of, except host 0.
const hostStateInfix = "-rank-"

// stateDirOf is stateDir of a host.
func (id *identity) stateDirOf(c *runfile.Config, host int) string {
	if host == 0 {
		return id.stateDir(c)
	}
	return fmt.Sprintf("%s%s%d", id.stateDir(c), hostStateInfix, host)
}
