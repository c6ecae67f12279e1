package reference

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/session"
)

// Rounds is the reference of a loop: it is evaluated with the answers of each round, while the run keeps its memory. In
// between it takes none.
type Rounds struct {
	env  *session.Env
	dev  *session.Devices
	o    Options
	plan *plan.Plan
}

// OpenRounds makes sure that the weights are there, and plans a pass over some rows within the options' memory, on the
// first device.
func OpenRounds(ctx context.Context, e *session.Env, dev *session.Devices, o Options, rows int) (r *Rounds, err error) {
	r = &Rounds{env: e.Alone(), dev: &session.Devices{Computes: dev.Computes[:1], Host: dev.Host}, o: o}
	r.o.inRun, r.env.Guest = true, runfile.ReferenceMemoryKey
	if o.Init != "random" {
		if err := o.Model.CheckWeights(ctx); err != nil {
			return nil, fmt.Errorf("reference: %w", err)
		}
	}
	if err := CheckRounds(o.Memory, dev.Info().Unified); err != nil {
		return nil, err
	}
	if r.plan, err = o.plan(ctx, r.env, r.dev, rows); err != nil {
		return nil, fmt.Errorf("reference: %w", err)
	}
	return r, nil
}

// CheckRounds refuses a budget that leaves open what a reference may take of a device with memory of its own.
func CheckRounds(m runfile.Memory, unified bool) error {
	if m.Device.N == 0 && !unified {
		return errors.New("rl.reference_memory.device is missing: say how much of the device's memory the reference may " +
			"take besides the run, such as rl.reference_memory: {host: 8GiB, device: 4GiB}, and give memory.device so much less")
	}
	return nil
}

// Open finds the log-probabilities of a round's answers in the file at a path, and computes what this lacks: it brings
// the model into memory and gives that back. A file of other answers, or by another model, is made again.
func (r *Rounds) Open(ctx context.Context, path string, answers data.Part) (*Set, error) {
	f := &file{part: answers, rowLen: r.o.Numerics.SequenceLen, width: r.o.width(), path: path,
		key: r.o.key(answers, r.dev.Info().Numerics)}
	s := &Set{files: []*file{f}}
	err := f.open(filepath.Dir(path))
	if err != nil {
		err = fmt.Errorf("output_dir: the reference's log-probabilities: %w", err)
	} else if !f.isWhole() {
		err = r.make(ctx, f)
	}
	if err != nil {
		_ = s.Close() // err is the one to report
		return nil, err
	}
	return s, nil
}

// make computes what a file lacks.
func (r *Rounds) make(ctx context.Context, f *file) error {
	if r.o.Init != "random" && r.o.Weights != "" {
		now, err := r.o.Model.Fingerprint(ctx)
		if err != nil {
			return fmt.Errorf("reference: %w", err)
		}
		if now != r.o.Weights {
			return fmt.Errorf("reference: the weights in %s are others than when the run began: put them back, and start it "+
				"again", r.o.Model.Dir)
		}
	}
	return r.o.evaluatePlanned(ctx, r.env, r.dev, r.plan, []*file{f})
}
