package source

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/runfile"
)

// FindBase finds out what the weights of a run were at its very beginning: what the checkpoint says that it continues
// from, if it says so. Every model that a run writes has the config.json of its parent, so that alone does not tell two
// models apart. It refuses a run file that has the run begin from other weights than it did. Weights that cannot be
// read are refused only where the run needs them.
func (s *Source) FindBase(ctx context.Context, c *runfile.Config, from *checkpoint.Checkpoint) error {
	now := &checkpoint.Base{Init: c.Init, Model: c.Model}
	var err error
	if c.Init == "pretrained" {
		now.WeightsSHA256, err = hf.FingerprintOf(ctx, s.Dir)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if from == nil {
		s.Base = now
		return err
	}
	then := from.Manifest.Base
	switch {
	case then == nil: // saved before it was noted
		s.Base = now
		return nil
	case then.Init != now.Init:
		return fmt.Errorf("resume: the run of %s began with init: %s, and init is %s now; restore it, or start a new run in "+
			"another output_dir", from.Dir(), then.Init, now.Init)
	case err == nil && then.WeightsSHA256 != now.WeightsSHA256 && then.Model == now.Model:
		return fmt.Errorf("resume: the weights of model %s are others than when the run of %s began: put them back, or "+
			"start a new run in another output_dir", c.Model, from.Dir())
	case err == nil && then.WeightsSHA256 != now.WeightsSHA256:
		return fmt.Errorf("resume: the run of %s began from other weights than those of model %s; it began from %s: set "+
			"model to where those weights are, or start a new run in another output_dir", from.Dir(), c.Model, then.Model)
	}
	s.Base = then
	return nil
}

// Fingerprint identifies the weights of the directory.
func (s *Source) Fingerprint(ctx context.Context) (string, error) {
	return hf.FingerprintOf(ctx, s.Dir)
}

// CheckSameTokens refuses a model whose tokens are not those of another one, which has the tokenizer of a run file.
func (s *Source) CheckSameTokens(as *Source, name string) error {
	if s.Model.Vocab != as.Model.Vocab {
		return fmt.Errorf("%s has %d tokens, and the model %d: name a model of the same tokenizer", s.Dir, s.Model.Vocab,
			as.Model.Vocab)
	}
	if name == "bytes" {
		return nil
	}
	own, err := s.OpenTokenizer("auto")
	if err != nil {
		return nil // it has none, and is a model of the same sizes: its user knows what its tokens are
	}
	theirs, err := as.OpenTokenizer(name)
	if err == nil && own.Hash() != theirs.Hash() {
		err = fmt.Errorf("%s has another tokenizer than the model: name a model of the same one", s.Dir)
	}
	return err
}
