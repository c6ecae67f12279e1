package export

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/hf/hub"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
	"github.com/millrace/millrace/vfs"
)

// PushOptions say what to bring to the hub.
type PushOptions struct {
	Path     string // a model directory, a run's output directory, or one file such as a GGUF file
	Repo     string // OWNER/NAME, or OWNER/NAME@BRANCH
	Revision string // a branch; "": that of Repo, or main
	Private  bool   // a repository that does not exist is made private
	Message  string // of the commit; "": one that says what pushed
	DryRun   bool   // send nothing
	All      bool   // files that do not belong to a model, too

	// Confirm is asked before anything is sent, with what would be sent and who will see it; an error ends the push. It
	// may be nil.
	Confirm func(*PushReport) error
}

// PushFile is a file that a push is about.
type PushFile struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	Link  string `json:"link,omitempty"` // what it is a link to
}

// PushReport lists what Push did, or would do.
type PushReport struct {
	hub.Pushed
	DryRun  bool       `json:"dry_run"`
	Named   []PushFile `json:"named_files"` // on this machine
	LeftOut []string   `json:"left_out"`    // files and directories that do not belong to a model
	// Visibility is who could see the repository before the push: hub.Absent if it is new, "" if the hub was not asked.
	Visibility hub.Visibility `json:"visibility,omitempty"`
}

// Push makes a commit of a model's files in a repository of the hub, which HF_ENDPOINT names and where HF_TOKEN may
// write.
func Push(ctx context.Context, env *session.Env, o PushOptions) (report *PushReport, err error) {
	var ask blame.Asking // a server that refuses refuses the request
	defer ask.Judge(ctx, &err)
	repo, ok := hub.Parse(hub.Model, o.Repo)
	switch {
	case !ok:
		return nil, fmt.Errorf("%q is not a repository of the hub: use OWNER/NAME", o.Repo)
	case o.Revision != "" && strings.Contains(o.Repo, "@"):
		return nil, fmt.Errorf("name the branch once: in %s or with --revision", o.Repo)
	case o.Revision != "":
		if repo, ok = hub.Parse(hub.Model, o.Repo+"@"+o.Revision); !ok {
			return nil, fmt.Errorf("%q is not the name of a branch: use letters, digits, dots, dashes and slashes", o.Revision)
		}
	}
	if o.Path, err = modelToPush(ctx, env, o.Path); err != nil {
		return nil, err
	}
	info, err := os.Stat(o.Path)
	if err != nil {
		return nil, err
	}
	files, leftOut, err := hub.Uploads(o.Path, func(name string) (bool, error) {
		switch path.Base(name) { // a model has neither
		case rundir.MetricsName, rundir.CheckpointsName:
			run := filepath.Join(o.Path, filepath.FromSlash(path.Dir(strings.TrimSuffix(name, "/"))))
			return false, fmt.Errorf("%s is not pushed: it is of a training run; name the directory of a model, "+
				"such as %s", filepath.Join(o.Path, filepath.FromSlash(name)), filepath.Join(run, rundir.LastModel))
		}
		return o.All || hf.IsModelFile(name), nil
	})
	if err != nil {
		return nil, err
	}
	isModel := func(f hub.Upload) bool {
		return f.Name == "config.json" || path.Ext(f.Name) == ".gguf" && !strings.Contains(f.Name, "/")
	}
	if info.IsDir() && !slices.ContainsFunc(files, isModel) {
		return nil, fmt.Errorf("%s has neither a config.json nor a GGUF file: name a model directory, "+
			"such as the model directory of a run", o.Path)
	}
	report = &PushReport{DryRun: o.DryRun, Named: []PushFile{}, LeftOut: append([]string{}, leftOut...)}
	for _, f := range files {
		report.Named = append(report.Named, PushFile{f.Name, f.Size, f.Link})
	}
	report.Repo, report.Revision, report.Ignored = repo.ID, repo.Revision, []string{}
	if o.DryRun {
		return report, nil
	}
	h := hub.FromEnv()
	report.Visibility, err = h.Visibility(ctx, repo)
	if err == nil && o.Confirm != nil {
		err = o.Confirm(report)
	}
	if err != nil {
		return nil, fmt.Errorf("push %s to %s: %w", filepath.Base(o.Path), repo.ID, err)
	}
	progress, end := source.TransferBars(env, "uploading ")
	h.Progress = progress
	done, err := h.Push(ctx, repo, files, hub.PushOptions{Private: o.Private, Message: o.Message})
	end()
	if err != nil {
		return nil, fmt.Errorf("push %s to %s: %w", filepath.Base(o.Path), repo.ID, err)
	}
	report.Pushed = *done
	return report, nil
}

// modelToPush is the directory of the model that a run has written where a path is the run's output directory, and else
// the path.
func modelToPush(ctx context.Context, e *session.Env, path string) (string, error) {
	model := filepath.Join(path, rundir.LastModel)
	isRun := func(dir string) bool {
		return vfs.Exists(filepath.Join(dir, rundir.MetricsName)) || vfs.Exists(filepath.Join(dir, rundir.CheckpointsName))
	}
	if full := runfile.Absolute(path); filepath.Base(full) == rundir.LastModel && isRun(filepath.Dir(full)) {
		if _, from, err := e.Runs().WeightsOf(ctx, filepath.Dir(full)); err == nil && from != nil {
			e.Note("%s is of an earlier step than the latest weights of its run, which are in %s", path, from.Dir())
		}
		return path, nil
	}
	if !isRun(path) || !vfs.Exists(filepath.Join(model, "config.json")) {
		return path, nil
	}
	if _, err := vfs.StatBelow(vfs.OS{}, path, filepath.Join(rundir.LastModel, "config.json")); err != nil {
		return "", err
	}
	_, from, err := e.Runs().WeightsOf(ctx, path)
	if err != nil {
		return "", err
	}
	if from != nil {
		return "", fmt.Errorf("%s: its latest weights are in a checkpoint, %s: write them as a model with millrace export %s "+
			"DIR, and push that, or push %s", path, from.Dir(), path, model)
	}
	e.Note("using %s", model)
	return model, nil
}
