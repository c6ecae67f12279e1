package source

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
)

// EndInScore makes a model of text a reward model, whose score is drawn at random. Its texts are padded with the token
// that the tokenizer has for that, or else with the one that ends texts, as TRL's trainer does. A reward model stays
// what it is.
func (s *Source) EndInScore(tokenizerName string) error {
	if s.Model.Scores() {
		return nil
	}
	pad, err := s.padToken(tokenizerName)
	if err != nil {
		return err
	}
	return s.EndInScoreOf(pad)
}

// EndInScoreOf is EndInScore for texts that are padded with a token, or not if it is negative.
func (s *Source) EndInScoreOf(pad int32) error {
	if s.Model.Scores() {
		return nil
	}
	text, err := model.ScoringConfig(s.Config, pad)
	if err != nil {
		return fmt.Errorf("objective reward: %w", err)
	}
	c, err := hf.ParseConfig(s.Config.Path(), text)
	if err != nil {
		return err
	}
	m, err := model.New(c)
	if err != nil {
		return err
	}
	s.Config, s.Model = c, m.Drawn()
	return nil
}

// padToken is the token that texts of what the key tokenizer names are padded with, or tokenizer.None.
func (s *Source) padToken(name string) (int32, error) {
	tok, err := s.OpenTokenizer(name)
	if err != nil {
		return tokenizer.None, err
	}
	if dir := s.tokenizerDir(name); dir != "" {
		doc, err := tokenizer.ReadConfig(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return tokenizer.None, err
		}
		if err == nil {
			c, err := tokenizer.ParseConfig(doc)
			if err != nil {
				return tokenizer.None, err
			}
			if id := tok.TokenID(c.Pad); c.Pad != "" && id != tokenizer.None {
				return id, nil
			}
		}
	}
	if id := tok.EOS(); id != tokenizer.None {
		return id, nil
	}
	if id, ok := s.Config.TokenID("pad_token_id"); ok && s.hasOwnIDs(name) {
		return int32(id), nil
	}
	return tokenizer.None, nil
}

// ScoreAs makes the model a reward model where a checkpoint is of one: its run has made it that.
func (s *Source) ScoreAs(from *checkpoint.Checkpoint) error {
	doc, ok, err := from.Attachment(checkpoint.ConfigName)
	if err != nil || !ok || s.Model.Scores() {
		return err
	}
	c, err := hf.ParseConfig(s.Config.Path(), doc)
	if err != nil || !model.IsScoring(c) {
		return err
	}
	m, err := model.New(c)
	if err == nil {
		s.Config, s.Model = c, m.Drawn()
	}
	return err
}

// CheckScores refuses a reward model for a run that trains for something else.
func CheckScores(m *model.Model, name, objective string) error {
	if !m.Scores() {
		return nil
	}
	return fmt.Errorf("model %s is a reward model, which ends in a score, and the objective is %s: set objective: "+
		"{type: reward}, or name a model of text", name, objective)
}

// CheckWrites refuses a reward model for what needs a model of text.
func (s *Source) CheckWrites() error {
	if !s.Model.Scores() {
		return nil
	}
	return fmt.Errorf("%s is a reward model, which scores texts and writes none: measure it on pairs with millrace eval, "+
		"or name a model of text", s.Dir)
}

// checkDraws refuses a run in which a score that is drawn at random is not trained.
func checkDraws(m *model.Model) error {
	for i := range m.Parts {
		if p := &m.Parts[i]; m.Draws(p) && !p.Trained() {
			return fmt.Errorf("train_only leaves out %s, which begins at random: add it", p.Tensors[0].Name)
		}
	}
	return nil
}
