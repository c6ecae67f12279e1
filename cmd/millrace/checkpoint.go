package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

type checkpointCmd struct {
	List   checkpointListCmd   `cmd:"" help:"List the checkpoints of a run, newest first."`
	Verify checkpointVerifyCmd `cmd:"" help:"Read checkpoints whole and compare them with their checksums."`
}

type checkpointDir struct {
	Dir  string `arg:"" name:"DIR" help:"A run's output directory, its checkpoints directory, or one checkpoint."`
	JSON bool   `help:"Print one JSON object."`
}

type checkpointListCmd struct{ checkpointDir }

func (*checkpointListCmd) Help() string {
	return `Reads manifests and lengths of files only. It can be used while a run is saving there.

Example:

  millrace checkpoint list runs/gsm8k`
}

type checkpointVerifyCmd struct{ checkpointDir }

func (*checkpointVerifyCmd) Help() string {
	return `Exit status 1, and one line, if anything is damaged. It can be used while a run is saving there.

Example:

  millrace checkpoint verify runs/gsm8k/checkpoints/step-000100`
}

// listed is a checkpoint for programs.
type listed struct {
	Step     int      `json:"step"`
	Dir      string   `json:"dir"`
	Bytes    int64    `json:"bytes"` // of state
	Files    int      `json:"files"`
	Updates  int64    `json:"updates"`
	EvalLoss *float64 `json:"eval_loss"`
	IsBest   bool     `json:"is_best"` // of those that the newest one knows
	// UnhealthySteps are the latest ones in a row up to this step: a run that has diverged does not continue from it.
	UnhealthySteps int              `json:"unhealthy_steps,omitempty"`
	Run            checkpoint.RunID `json:"run,omitempty"`
	IsOtherRun     bool             `json:"is_other_run,omitempty"` // than the one that the directory has
	// History are the settings that changed where the run was resumed.
	History []checkpoint.Change `json:"history,omitempty"`
	Error   string              `json:"error,omitempty"`
	err     error
}

// checkpoints lists those that a directory means.
func (c *checkpointDir) checkpoints(env *train.Env) ([]listed, error) {
	dir := c.Dir
	if _, err := os.Stat(filepath.Join(dir, checkpoint.ManifestName)); err == nil || isStep(dir) {
		opened, err := checkpoint.Open(vfs.OS{}, dir)
		if errors.Is(err, fs.ErrNotExist) && !isDamage(err) {
			return nil, badFlag("%v", err)
		}
		if err != nil {
			return []listed{{Dir: dir, Error: err.Error(), err: err}}, nil
		}
		return []listed{entryOf(dir, opened.Manifest, len(opened.Manifest.Files))}, nil
	}
	switch st, err := os.Stat(dir); {
	case err != nil:
		return nil, badFlag("%s: there is no such directory; name the output_dir of a run", dir)
	case !st.IsDir():
		return nil, badFlag("%s is a file; name the output_dir of a run", dir)
	}
	dirs, run := []string{dir}, filepath.Dir(runfile.Absolute(dir))
	if isDir(filepath.Join(dir, "checkpoints")) {
		run = dir
		var err error
		if dirs, err = env.Runs().CheckpointDirs(dir); err != nil {
			return nil, err
		}
	}
	var entries []checkpoint.Entry
	for _, dir := range dirs {
		there, err := checkpoint.List(vfs.OS{}, dir)
		if err != nil {
			return nil, err
		}
		entries = append(entries, there...)
	}
	slices.SortStableFunc(entries, func(a, b checkpoint.Entry) int { return cmp.Compare(b.Step, a.Step) }) // newest first
	if len(entries) == 0 {
		return nil, badFlag("%s has no checkpoints; name the output_dir of a run that has saved one", c.Dir)
	}
	all := make([]listed, len(entries))
	own, errOwn := rundir.OwnerOf(run) // if it is not known, none is marked
	best := -1
	for i, e := range entries {
		if e.Err != nil {
			all[i] = listed{Step: e.Step, Dir: e.Dir, Error: e.Err.Error(), err: e.Err}
			continue
		}
		all[i] = entryOf(e.Dir, e.Manifest, e.Files)
		all[i].IsOtherRun = errOwn == nil && !own.Has(e.Manifest.Run)
		if best < 0 && e.Manifest.Best != nil && !all[i].IsOtherRun {
			best = e.Manifest.Best.Step
		}
		all[i].IsBest = e.Step == best && !all[i].IsOtherRun
	}
	return all, nil
}

func entryOf(dir string, m *checkpoint.Manifest, files int) listed {
	return listed{Step: m.Step, Dir: dir, Bytes: m.Bytes(), Files: files, Updates: m.Updates, EvalLoss: m.EvalLoss,
		History: m.History, UnhealthySteps: m.UnhealthySteps, Run: m.Run}
}

// isStep reports whether a path has the name of a checkpoint, whether or not it is there.
func isStep(dir string) bool { return checkpoint.IsDirName(filepath.Base(filepath.Clean(dir))) }

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

func isDamage(err error) bool {
	var damage *checkpoint.DamageError
	return errors.As(err, &damage)
}

// mark says for people what is special about a checkpoint.
func (l *listed) mark() string {
	switch {
	case l.IsOtherRun:
		return "  of another run"
	case l.UnhealthySteps > 0:
		return "  after " + spelling.Count(l.UnhealthySteps, "unhealthy step")
	}
	return ""
}

// aside are the checkpoints that runs have set aside in a directory.
func (c *checkpointDir) aside() ([]string, error) {
	dir := c.Dir
	if below := filepath.Join(dir, "checkpoints"); isDir(below) {
		dir = below
	}
	return checkpoint.Aside(vfs.OS{}, dir)
}

// Run lists.
func (c *checkpointListCmd) Run(p *program) error {
	all, err := c.checkpoints(p.env)
	if err != nil {
		return err
	}
	if c.JSON {
		aside, err := c.aside()
		if err != nil {
			return err
		}
		return p.printJSON(map[string]any{"checkpoints": all, "set_aside": append([]string{}, aside...)})
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "step\tstate\tfiles\teval loss\tdirectory")
	for _, l := range all {
		if l.err != nil {
			fmt.Fprintf(w, "%d\t-\t-\t-\tdamaged: %s\n", l.Step, oneLine(l.err))
			continue
		}
		loss := "-"
		if l.EvalLoss != nil {
			loss = fmt.Sprintf("%.4f", *l.EvalLoss)
		}
		if l.IsBest {
			loss += " best"
		}
		fmt.Fprintf(w, "%d\t%s\t%d\t%s\t%s%s\n", l.Step, plan.FormatBytes(l.Bytes), l.Files, loss, l.Dir, l.mark())
	}
	w.Flush()
	aside, err := c.aside()
	if err != nil {
		return err
	}
	for _, path := range aside {
		fmt.Fprintf(&b, "set aside: %s\n", path)
	}
	if i := slices.IndexFunc(all, func(l listed) bool { return l.err == nil }); i >= 0 && len(all[i].History) > 0 {
		b.WriteString("settings changed on resume:\n")
		for _, change := range all[i].History {
			fmt.Fprintf(&b, "  %v\n", change)
		}
	}
	return p.printf("%s", b.String())
}

// Run verifies.
func (c *checkpointVerifyCmd) Run(p *program) error {
	all, err := c.checkpoints(p.env)
	if err != nil {
		return err
	}
	var damaged []error
	for i := range all {
		l := &all[i]
		if l.err == nil {
			if l.err = p.verify(l.Dir); l.err != nil {
				if p.ctx.Err() != nil {
					return l.err
				}
				l.Error = l.err.Error()
			}
		}
		if l.err != nil {
			damaged = append(damaged, l.err)
		} else if !c.JSON {
			if err := p.printf("%s: all %s in %s as saved\n", l.Dir, plan.FormatBytes(l.Bytes), spelling.Count(l.Files, "file")); err != nil {
				return err
			}
		}
	}
	if c.JSON {
		if err := p.printJSON(map[string]any{"checkpoints": all, "damaged": len(damaged)}); err != nil {
			return err
		}
	}
	return errors.Join(damaged...)
}

// verify reads one checkpoint whole.
func (p *program) verify(dir string) error {
	opened, err := checkpoint.Open(vfs.OS{}, dir)
	if err != nil {
		return err
	}
	bar := p.out().Bar("verifying " + dir)
	defer bar.End()
	return opened.Verify(p.ctx, bar.Set)
}
