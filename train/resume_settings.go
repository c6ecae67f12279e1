package train

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
)

// mathematics are the settings that change the numbers of a run, by the names that checkpoints have for them.
func (t *trainer) mathematics() map[string]string {
	return t.config.Settings(t.rates, t.data.Fingerprint())
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
	return at.Fingerprint != fingerprint || !rundir.CutsAs(c, from) || from.Mathematics["overlong"] != rundir.SizeSettings(c)["overlong"]
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
		if diff.Key == "overlong" {
			was, is = longShown(diff.Saved), longShown(diff.Wanted)
		}
		switch {
		case may && slices.ContainsFunc(by, func(key string) bool { return slices.Contains(c.ResumeWith, key) }):
			made = append(made, checkpoint.Change{Step: from.Manifest.Step, Key: name, From: was, To: is})
		default:
			if diff.Key == "data" {
				refused = append(refused, t.changedData(from))
			} else {
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
	return nil, fmt.Errorf("resume: settings that change the result are not those of %s (%s); %s, or start a new run in another output_dir",
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
