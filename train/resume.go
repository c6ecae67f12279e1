package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/train/rl"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/source"
)

// dataPlace locates a run in its data.
type dataPlace struct {
	Cursor data.Cursor `json:"cursor"`
	// Loop is the place of a loop of reinforcement learning, which has no Cursor; nil: the run has no loop.
	Loop        *rl.Place `json:"loop,omitempty"`
	Fingerprint string    `json:"fingerprint"`
	// Since is the step after which the run began with these data; 0: they are its first ones.
	Since int `json:"since,omitempty"`
	// Sources are the checksums of the data sets' documents, by path: they tell which one has changed.
	Sources map[string]string `json:"sources,omitempty"`
	// Held is the fingerprint of the data that are evaluated on; empty without any.
	Held string `json:"held_out,omitempty"`
	// Handover goes with a model that is written of the checkpoint.
	Handover *source.Handover `json:"handover,omitempty"`
}

// checkResume refuses a checkpoint of another model, or of a run with other settings than resume_with allows to change.
func (t *trainer) checkResume(from *checkpoint.Checkpoint) error {
	saved, got := from.Manifest.Model, checkpoint.Identify(t.src.Model, t.src.Config.Raw(), t.src.Carried.SHA256)
	changes, err := t.changes(from, checkpoint.Compare(from.Manifest, t.mathematics()))
	if otherFrozen := got.ConfigSHA256 == saved.ConfigSHA256 && !slices.Equal(got.Frozen, saved.Frozen); !got.Is(saved) &&
		(err == nil || !otherFrozen) {
		return fmt.Errorf("resume: %s is of another model; set resume: never and another output_dir, or go back to its model",
			from.Dir())
	}
	t.history = append(from.Manifest.History[:len(from.Manifest.History):len(from.Manifest.History)], changes...)
	return err
}

// continueFrom takes over what a checkpoint says of the run.
func (t *trainer) continueFrom(from *checkpoint.Checkpoint) error {
	m := from.Manifest
	if m.Step < t.rates.Steps { // else its place may be beyond the end of fewer epochs
		if err := t.seek(); err != nil {
			return err
		}
	}
	t.takeOver(m)
	t.begun, t.health.unhealthy = m.Step, m.UnhealthySteps
	t.saves.saved, t.saves.path, t.evals.loss = m.Step, from.Dir(), m.EvalLoss
	if !t.otherHeld {
		t.saves.best = m.Best
	}
	t.summary.ResumedAfter = m.Step
	t.env.Tell(Resumed{m.Step, from.Dir()})
	for _, c := range t.history[len(m.History):] {
		t.env.Note("%v", c)
	}
	return nil
}

// setAsideAfter sets the run's checkpoints aside that are newer than the one that it continues from, and that are not
// as they were saved, or that the run leaves since it has diverged: a later save must not be taken for the older of
// two.
func (t *trainer) setAsideAfter(step int) {
	own := t.home.ID.Owner()
	for _, dir := range []*checkpoint.Directory{t.home.Dir, t.home.Fallback} {
		if dir == nil {
			continue
		}
		if filepath.Dir(t.from.Dir()) == dir.Path() {
			dir.Trust(step) // all of it was read
		}
		entries, err := checkpoint.List(t.env.Files(), dir.Path())
		if err != nil {
			t.env.WarnOf(err)
		}
		for _, e := range entries {
			damage := (*checkpoint.DamageError)(nil)
			isDamaged := errors.As(e.Err, &damage) && damage.Lasts() || slices.Contains(t.damaged, e.Dir)
			hasDiverged := e.Err == nil && e.Manifest.UnhealthySteps > 0
			if e.Step <= step || !isDamaged && !hasDiverged || e.Err == nil && !own.Has(e.Manifest.Run) {
				continue
			}
			why := checkpoint.Damaged
			if !isDamaged {
				why = checkpoint.Diverged
			}
			aside, err := dir.SetAside(e.Step, why)
			if err != nil {
				t.env.WarnOf(err)
				continue
			}
			t.env.Tell(SetAside{why, e.Step, aside})
		}
	}
}

// openWholeState is openState with a checkpoint that is whole: where the one that the run continues from is damaged,
// the run continues from the newest one before it, unless the user has named the checkpoint.
func (t *trainer) openWholeState(ctx context.Context) error {
	cluster := t.env.Cluster
	for {
		damage, err := t.openOrFind(ctx)
		if t.from == nil || damage == nil {
			return err
		}
		var older choice
		if cluster.Leads() {
			older = t.before(t.from)
		}
		decided := hosts.Decide(cluster, hosts.Report[choice]{Own: older})
		switch older = decided.Lead(); {
		case decided.Err != nil:
			return decided.Err
		case older.Path == "":
			return err
		}
		if damage.Lasts {
			t.damaged = append(t.damaged, t.from.Dir())
		}
		t.env.Note("%s: %s: the run continues from %s", damage.Path, damage.Why, older.Path)
		if t.from, err = openChosen(t.env, older); err == nil {
			err = t.beginAt(t.from)
		}
		if err == nil {
			err = t.checkResume(t.from)
		}
		if err = cluster.Agree(blame.BadRequest(err)); err != nil {
			return err
		}
	}
}

// before is the checkpoint to continue from where one is damaged, if another one will do.
func (t *trainer) before(damaged *checkpoint.Checkpoint) choice {
	c := t.config
	older, err := t.home.Newest(checkpoint.Query{Below: damaged.Manifest.Step, Healthy: t.home.ID.HasDiverged()})
	if err == nil && older == nil && c.Resume != "auto" && !rundir.SameDir(c.Resume, damaged.Dir()) {
		older, err = checkpoint.Open(t.env.Files(), c.Resume) // where the run began
	}
	if err != nil {
		return choice{}
	}
	of, err := choiceOf(older)
	if err != nil {
		return choice{}
	}
	return of
}

// damageFound tells the other hosts of damage in the checkpoint that a host was to read.
type damageFound struct {
	Path  string `json:"path"`
	Why   string `json:"why"`
	Lasts bool   `json:"lasts"`
}

// openOrFind is openState on all hosts: where it fails on one, the state is open on none. found says what the first
// host that found the checkpoint damaged has found.
func (t *trainer) openOrFind(ctx context.Context) (found *damageFound, err error) {
	err = t.openState(ctx, t.checkSpace)
	if d := (*checkpoint.DamageError)(nil); errors.As(err, &d) {
		found = &damageFound{d.Path, d.Why, d.Lasts()}
	}
	if err == nil || hosts.IsAlone(err) {
		return found, err
	}
	d := hosts.Decide(t.env.Cluster, hosts.Report[*damageFound]{Own: found})
	if d.Err != nil {
		return nil, d.Err
	}
	if i := slices.IndexFunc(d.All, func(of *damageFound) bool { return of != nil }); i >= 0 {
		found = d.All[i]
	}
	return found, err
}

// otherModel is the name in checkpoints of the content of another model that the objective compares with: under the
// name that the key objective has there may be other weights.
const otherModel = "objective.model"

// mathematics are the settings that change the numbers of a run, by the names that checkpoints have for them.
func (t *trainer) mathematics() map[string]string {
	all := t.config.Settings(t.rates, t.data.Fingerprint())
	if t.aim.other != "" {
		all[otherModel] = t.aim.other
	}
	return all
}

// checkOtherModel refuses another model than that of the checkpoint under the name that a key of objective has.
func (r *Run) checkOtherModel(key string) error {
	if r.from == nil || r.aim.other == "" {
		return nil
	}
	was := r.from.Manifest.Mathematics
	if saved, ok := was[otherModel]; !ok || saved == r.aim.other || was["objective"] != r.config.Objective.String() {
		return nil
	}
	return fmt.Errorf("resume: the model that objective.%s names has other weights or another config.json than when %s "+
		"was saved; restore it, or start a new run in another output_dir", key, r.from.Dir())
}

// settingsSum is a checksum of settings.
func settingsSum(settings map[string]string) string {
	var text []byte
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		text = fmt.Appendf(text, "%q: %q\n", key, settings[key])
	}
	return fmt.Sprintf("%016x", xxh3.Hash(text))
}

// restarts reports whether the run takes the data from their beginning after a checkpoint: they, or how they are cut,
// have changed, and a place in the old ones means nothing in the new ones.
func restarts(c *runfile.Config, from *checkpoint.Manifest, at dataPlace, fingerprint string) bool {
	return at.Fingerprint != fingerprint || !rundir.CutsAs(c, from) ||
		from.Mathematics["overlong"] != rundir.SizeSettings(c)["overlong"]
}

// changes returns what resume_with allows of the differences between a run and the checkpoint that it continues from. A
// difference that it does not allow is an error that names the key.
func (t *trainer) changes(from *checkpoint.Checkpoint, d checkpoint.Differences) ([]checkpoint.Change, error) {
	c := t.config
	var made []checkpoint.Change
	var refused, allow []string
	for _, diff := range d {
		by, may := runfile.SettledBy[diff.Key]
		name := diff.Key
		if may {
			name = by[0]
		}
		was, is := shown(diff.Saved), shown(diff.Wanted)
		if from, to, ok := runfile.OtherMaster(was, is); ok && diff.Key == "precision" {
			name, by, may, was, is = runfile.MasterKey, []string{runfile.MasterKey}, true, from, to
		}
		if diff.Key == "overlong" {
			was, is = longShown(diff.Saved), longShown(diff.Wanted)
		}
		switch {
		case may && slices.ContainsFunc(by, func(key string) bool { return slices.Contains(c.ResumeWith, key) }):
			made = append(made, checkpoint.Change{Step: from.Manifest.Step, Key: name, From: was, To: is})
		default:
			switch {
			case diff.Key == "data":
				refused = append(refused, t.changedData(from))
			case diff.Key != otherModel: // else objective differs, too
				refused = append(refused, fmt.Sprintf("%s was %s, is now %s", name, was, is))
			}
			if may {
				allow = append(allow, name)
			}
		}
	}
	if len(refused) == 0 {
		return made, nil
	}
	how := "restore them"
	if len(allow) == len(refused) {
		how += fmt.Sprintf(", allow the change with resume_with: [%s]", strings.Join(allow, ", "))
	}
	return nil, fmt.Errorf("resume: settings that change the result are not those of %s (%s); %s, or start a new run in "+
		"another output_dir",
		from.Dir(), strings.Join(refused, "; "), how)
}

// changedData says which data are not those of a checkpoint.
func (t *trainer) changedData(from *checkpoint.Checkpoint) string {
	var was dataPlace
	_ = json.Unmarshal(from.Manifest.Data, &was) // it was read before
	if was.Sources == nil {
		return "the documents of datasets are others"
	}
	var paths []string
	for path, sum := range t.at.Sources {
		if was.Sources[path] != sum {
			paths = append(paths, path)
		}
	}
	for path := range was.Sources {
		if _, is := t.at.Sources[path]; !is {
			paths = append(paths, path+", which is no longer there")
		}
	}
	if len(paths) == 0 {
		return "the documents are chosen or weighted in another way"
	}
	slices.Sort(paths)
	changed := "other documents in datasets: " + strings.Join(paths, ", ")
	if t.rendering != "" {
		changed += ", or they were rendered in another way: now " + t.rendering
	}
	return changed
}

// longShown is a value of overlong for people.
func longShown(value *string) string {
	if value == nil {
		return string(data.SplitLong)
	}
	return *value
}

// shown is a value of a setting for people.
func shown(value *string) string {
	if value == nil {
		return "not set"
	}
	return *value
}
