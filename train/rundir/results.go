package rundir

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/vfs"
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

// Holding says what has the name of a result.
type Holding int

const (
	NoModel    Holding = iota // nothing, or a directory that has not all weights or no configuration
	OwnModel                  // a model of the run
	leftModel                 // the same, of a step that the run has gone back from
	OtherModel                // one that the run has not written
)

// Placed describes the holder of a result's name, and for a model of the run its step.
type Placed struct {
	Holding
	Step int
}

// IsOf reports whether the result is the run's model of a step.
func (p Placed) IsOf(step int) bool { return p.Holding == OwnModel && p.Step == step }

// PlacedAt looks at what has the name of a result in the run's output directory. A result without notes, of a run of an
// older version or without its run.json, is known by its card alone.
func (id *Identity) PlacedAt(ctx context.Context, outputDir, name string) (Placed, error) {
	dir := filepath.Join(outputDir, name)
	if !vfs.Exists(filepath.Join(dir, "config.json")) {
		return Placed{}, nil
	}
	sum, err := hf.FingerprintOf(ctx, dir)
	switch {
	case ctx.Err() != nil:
		return Placed{}, ctx.Err()
	case blame.IsOfMachine(err):
		return Placed{}, fmt.Errorf("output_dir: %w", err)
	case err != nil:
		return Placed{}, nil
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
	onCard, hasCard := StepOfCard(dir)
	if len(same) == 0 {
		if len(noted) == 0 && hasCard {
			return Placed{OwnModel, onCard}, nil
		}
		return Placed{Holding: OtherModel}, nil
	}
	r := same[len(same)-1]
	if i := slices.IndexFunc(same, func(r result) bool { return r.Step == onCard }); hasCard && i >= 0 {
		r = same[i] // weights of two steps may be the same
	} else if hasCard {
		r.Step = onCard
	}
	if r.Left {
		return Placed{leftModel, r.Step}, nil
	}
	return Placed{OwnModel, r.Step}, nil
}

// Leave notes that the run continues after a step, 0 for its beginning: the results of later steps are not those that
// it comes to.
func (id *Identity) Leave(step int) {
	for i := range id.Results {
		r := &id.Results[i]
		r.Left = r.Left || r.Step > step
	}
}

// HasResult reports whether the run has noted a result of this name.
func (id *Identity) HasResult(name string) bool {
	return slices.ContainsFunc(id.Results, func(r result) bool { return r.Name == name })
}

// noting notes a result of a step in run.json when its directory, with all its bytes, is about to get its name. The note
// of what has the name until then stays.
func (h *Home) noting(ctx context.Context, name string, step int) func(dir string) error {
	return func(dir string) error {
		sum, err := hf.FingerprintOf(ctx, dir)
		if err != nil {
			return err
		}
		r := result{Name: name, Step: step, WeightsSHA256: sum}
		h.ID.Results = slices.DeleteFunc(h.ID.Results, func(old result) bool { old.Left = false; return old == r })
		h.ID.Results = append(h.ID.Results, r)
		return h.WriteIdentity()
	}
}

// IsPlaced forgets the results that the latest one of its name has replaced.
func (id *Identity) IsPlaced(name string) {
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

// Replacing are the options of writing a result of a step.
func (h *Home) Replacing(ctx context.Context, name string, step int) hf.WriteOptions {
	return hf.WriteOptions{Replace: true, Staged: h.noting(ctx, name, step)}
}

// StepKey begins the line of a card's head that has the step that the weights are of.
const StepKey = "millrace_step: "

// StepOfCard is the step that the card of a model directory has; ok is false for a model without one.
func StepOfCard(dir string) (step int, ok bool) {
	text, _ := hf.ReadCard(dir) // a card that cannot be read has no step
	head, ok := bytes.CutPrefix(text, []byte("---\n"))
	if !ok {
		return 0, false
	}
	for line := range bytes.Lines(head) {
		if number, ok := bytes.CutPrefix(line, []byte(StepKey)); ok {
			step, err := strconv.Atoi(string(bytes.TrimSpace(number)))
			return step, err == nil
		}
		if bytes.HasPrefix(line, []byte("---")) {
			break
		}
	}
	return 0, false
}
