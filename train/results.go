package train

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/blame"
)

// The results of a run are the models that it writes, model/ and model-best/. A name does not say what has it: a run
// that is made longer still has the model of its earlier end there, and so has one that was killed, or whose disk was
// full, before it could write the next one. So run.json notes each result before it gets its name, with the step of its
// weights and their fingerprint, and the notes stay when the run continues. What has the name is then known: it is what
// the latest note says or, after a kill, the one before, or the run has not written it.
//
// A start finds nothing to do only where each result that the run is to have is in place. Other verbs ask the same notes
// which weights are the latest.
//
// The fingerprint is hf.Weights.Fingerprint. It takes seconds for any size, since it samples the bytes: it tells models
// and steps apart, but it does not find every flipped bit. Writing a model finds those, since every file is read back.

// result notes a model that the run has written, or was about to write when it was killed.
type result struct {
	Name          string `json:"name"` // lastModel or bestModel
	Step          int    `json:"step"` // that the weights are of
	WeightsSHA256 string `json:"weights_sha256"`
	// Left is that the run has gone back to before the step: its weights after that step are others now.
	Left bool `json:"left,omitempty"`
}

// holding says what has the name of a result.
type holding int

const (
	noModel    holding = iota // nothing, or a directory that has not all weights or no configuration
	ownModel                  // a model of the run
	leftModel                 // the same, of a step that the run has gone back from
	otherModel                // one that the run has not written
)

// placed is what has the name of a result, and of a model of the run its step.
type placed struct {
	holding
	step int
}

// isOf reports whether the result is the run's model of a step.
func (p placed) isOf(step int) bool { return p.holding == ownModel && p.step == step }

// placedAt looks at what has the name of a result in the run's output directory. A result without notes, of a run of an
// older version or without its run.json, is known by its card alone.
func (id *identity) placedAt(ctx context.Context, outputDir, name string) (placed, error) {
	dir := filepath.Join(outputDir, name)
	if !exists(filepath.Join(dir, "config.json")) {
		return placed{}, nil
	}
	sum, err := (&source{dir: dir}).fingerprint(ctx)
	switch {
	case ctx.Err() != nil:
		return placed{}, ctx.Err()
	case blame.IsOfMachine(err):
		return placed{}, fmt.Errorf("output_dir: %w", err)
	case err != nil:
		return placed{}, nil
	}
	var noted, same []result
	for _, r := range id.Results {
		if r.Name == name {
			noted = append(noted, r)
		}
	}
	for _, r := range noted {
		if r.WeightsSHA256 == sum {
			same = append(same, r)
		}
	}
	onCard, hasCard := stepOfCard(dir)
	if len(same) == 0 {
		if len(noted) == 0 && hasCard {
			return placed{ownModel, onCard}, nil
		}
		return placed{holding: otherModel}, nil
	}
	r := same[len(same)-1]
	if i := slices.IndexFunc(same, func(r result) bool { return r.Step == onCard }); hasCard && i >= 0 {
		r = same[i] // weights of two steps may be the same
	} else if hasCard {
		r.Step = onCard
	}
	if r.Left {
		return placed{leftModel, r.Step}, nil
	}
	return placed{ownModel, r.Step}, nil
}

// leave notes that the run continues after a step, 0 for its beginning: the results of later steps are not those that
// it comes to.
func (id *identity) leave(step int) {
	for i := range id.Results {
		r := &id.Results[i]
		r.Left = r.Left || r.Step > step
	}
}

// hasResult reports whether the run has noted a result of this name.
func (id *identity) hasResult(name string) bool {
	return slices.ContainsFunc(id.Results, func(r result) bool { return r.Name == name })
}

// noting notes a result of a step in run.json when its directory, with all its bytes, is about to get its name. The note
// of what has the name until then stays.
func (h *home) noting(ctx context.Context, name string, step int) func(dir string) error {
	return func(dir string) error {
		sum, err := (&source{dir: dir}).fingerprint(ctx)
		if err != nil {
			return err
		}
		r := result{Name: name, Step: step, WeightsSHA256: sum}
		h.id.Results = slices.DeleteFunc(h.id.Results, func(old result) bool { old.Left = false; return old == r })
		h.id.Results = append(h.id.Results, r)
		return h.writeIdentity()
	}
}

// isPlaced forgets the results that the latest one of its name has replaced.
func (id *identity) isPlaced(name string) {
	last := len(id.Results) - 1
	for last >= 0 && id.Results[last].Name != name {
		last--
	}
	for i := last - 1; i >= 0; i-- {
		if id.Results[i].Name == name {
			id.Results = slices.Delete(id.Results, i, i+1)
		}
	}
}

// replacing are the options of writing a result of a step.
func (h *home) replacing(ctx context.Context, name string, step int) hf.WriteOptions {
	return hf.WriteOptions{Replace: true, Staged: h.noting(ctx, name, step)}
}

// refuseOthers refuses to start where the name of a result has a model that the run has not written, or other files: to
// write the result would remove them.
func (t *trainer) refuseOthers(ctx context.Context) error {
	end, err := t.endNoted(ctx)
	if err != nil {
		return err
	}
	for _, name := range t.resultNames() {
		dir := filepath.Join(t.config.OutputDir, name)
		is, err := t.home.id.placedAt(ctx, t.config.OutputDir, name)
		switch {
		case err != nil:
			return err
		case is.holding == otherModel:
			return otherModelError(dir)
		case name == lastModel && end > 0 && is.isOf(end):
			continue // it stays
		}
		if err := hf.CheckReplace(t.env.files(), dir); err != nil {
			return fmt.Errorf("output_dir: %w", err)
		}
	}
	return nil
}

func otherModelError(dir string) error {
	return fmt.Errorf("output_dir: %s is not the model that the run has written; move it to another directory, and the same "+
		"command writes the run's", dir)
}

// resultNames are the names of the models that the run writes.
func (t *trainer) resultNames() []string {
	if t.config.Save.Best {
		return []string{lastModel, bestModel}
	}
	return []string{lastModel}
}
