package generate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/train/rl/sampler"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
)

// Own samples answers by the model of a session that trains, between its steps. It is a [sampler.Sampler], whose random
// numbers are named by the seed, the number of the prompt, the sample and the place of the token: how many texts grow
// together changes no answer, where the device computes a row as it does alone.
type Own struct {
	*session.Session
	Tokenizer tokenizer.Tokenizer
	Positions int // of prompt and answer together, at most
}

// sampleBits are the bits of a text's number that have the sample; those above have the prompt's.
const sampleBits = 16

// Name names the program, what computes, and in which type.
func (o *Own) Name() string {
	return fmt.Sprintf("millrace, %v on %s", o.Plan.Numerics.Compute, o.Plan.ComputedOn)
}

// Sample has as many texts grow together as the plan has caches; those that end are replaced. When the run is asked to
// stop its error is hosts.ErrInterrupted.
func (o *Own) Sample(ctx context.Context, prompts []sampler.Prompt, p sampler.Params,
	done func(sampler.Completion) error) error {
	// Ids without a token are drawn as well, where the model's table has more rows than the tokenizer has tokens: the
	// trainer's softmax has them, and so have servers.
	choices := newPicker(Options{MaxTokens: p.MaxTokens, Temperature: p.Temperature, TopK: p.TopK, TopP: p.TopP,
		Seed: p.Seed}, o.Plan.Model.Vocab)
	decoder, _ := tokenizer.DecoderOf(o.Tokenizer)
	var queue []*writing
	for i, prompt := range prompts {
		ends := map[int32]bool{}
		for _, id := range prompt.Ends {
			ends[id] = true
		}
		if prompt.Samples > 1<<sampleBits {
			return fmt.Errorf("%d answers to a prompt: at most %d", prompt.Samples, 1<<sampleBits)
		}
		most := positionsOf(prompt.IDs, p.MaxTokens, min(o.Positions, o.Plan.Model.MaxPositions)-1)
		for sample := range prompt.Samples {
			w := newWriting(choices, int(prompt.Group)<<sampleBits|sample, slices.Clone(prompt.IDs), ends, decoder, most)
			w.asked = [2]int{i, sample}
			queue = append(queue, w)
		}
	}
	isStopped := false
	agree := func(picked []int32) ([]int32, bool, error) {
		isStopped = isStopped || o.Env.Stopped()
		return picked, isStopped, nil
	}
	t := newTexts(o.Session, o.Plan.Outputs.Caches)
	err := t.write(ctx, queue, agree, func(w *writing) error {
		if w.made.Finish == FinishStopped {
			return nil
		}
		c := sampler.Completion{Prompt: w.asked[0], Sample: w.asked[1], IDs: w.made.Tokens, LogProbs: w.made.LogProbs,
			Finish: sampler.FinishLength, Version: p.Version}
		if w.made.Finish == FinishStop {
			c.IDs, c.LogProbs, c.Finish = append(c.IDs, w.endedBy), append(c.LogProbs, w.logProb), sampler.FinishStop
		}
		return done(c)
	})
	switch {
	case errors.Is(err, ErrNotFinite):
		return fmt.Errorf("sampling: %w", err)
	case err == nil && isStopped:
		return hosts.ErrInterrupted
	}
	return err
}

// mostAnswers bounds the answers that grow together, by the rows of a pass. More rows make a pass of streamed weights
// no slower, and memory has to hold the caches of all.
const mostAnswers = session.MostPassRows

// answerBytes is about what a token of a round takes of host memory, besides the caches: as it is sampled, in a row,
// and as data.
const answerBytes = 64

// AnswersMemory returns the needs of a run for sampling its rounds, with prompts of a number of tokens at most.
func AnswersMemory(c *runfile.Config, longest, maxPositions int) (m session.SampleMemory) {
	if !c.RL.Asked() {
		return m
	}
	most := min(longest+c.RL.MaxTokens, c.SequenceLen, maxPositions)
	answers := c.RL.PromptsPerStep * c.RL.Samples
	m.For, m.Round = "rl", roundOf(c, longest, maxPositions)
	m.Bytes = answerBytes * int64(answers) * int64(most)
	if c.RL.Sampler.IsOwn() {
		choices := Options{Temperature: c.RL.Temperature, TopK: c.RL.TopK, TopP: c.RL.TopP}
		m.Caches.Sequences, m.Caches.Positions, m.Draws = min(answers, mostAnswers), most-1, choices.choosesOfAll()
	}
	return m
}

// roundOf says what a round of a run is, with answers as long as they may be. Those to a prompt stay in a step, and in
// a share of it.
func roundOf(c *runfile.Config, longest, maxPositions int) *plan.Round {
	l, positions := &c.RL, min(c.SequenceLen, maxPositions)
	r := &plan.Round{Prompts: l.PromptsPerStep, Samples: l.Samples, PromptPositions: max(min(longest, positions-1), 1),
		MostPrompts: l.MaxGroups, Server: !l.Sampler.IsOwn(), Referenced: l.ReferenceMemory.Host.N > 0}
	r.AnswerTokens = min(l.MaxTokens, positions-r.PromptPositions)
	shares := max(int(c.Numerics.Groups), 1)
	inShare := c.BatchTokens / c.SequenceLen / shares * (c.SequenceLen / (r.PromptPositions + r.AnswerTokens)) / l.Samples
	inStep := max(shares*inShare, 1)
	r.Steps = (l.PromptsPerStep + inStep - 1) / inStep * l.Iterations
	r.Rounds = (c.MaxSteps + r.Steps - 1) / r.Steps
	if of, err := c.Objective.Open(); err == nil && of != nil && of.Needs().OldOfStart && r.Steps > 1 {
		r.Batches = r.Steps / l.Iterations
	}
	return r
}

// AnswerEnds are the tokens that end an answer to a text, and to messages.
func AnswerEnds(ctx context.Context, s *source.Source, r *source.Reader, c *runfile.Config) (text, messages []int32,
	err error) {
	ends, err := s.Ends(c.Tokenizer, r.Tokenizer)
	if err != nil {
		return nil, nil, err
	}
	ofMessages, err := endsOf(ctx, r, true, ends)
	return slices.Sorted(maps.Keys(ends)), slices.Sorted(maps.Keys(ofMessages)), err
}
