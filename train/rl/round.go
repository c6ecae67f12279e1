package rl

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rl/reward"
	"github.com/millrace/millrace/train/rl/sampler"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/vfs"
)

// Loop makes the rounds of a run.
type Loop struct {
	Env    *session.Env
	FS     vfs.FS
	Dir    string // of the rounds' files
	Config runfile.RL
	Seed   uint64
	// Positions are those of a prompt and its answer together, at most.
	Positions int

	Prompts *Prompts
	Sampler sampler.Sampler
	Panel   *reward.Panel
	// Ends are the tokens that end an answer to a text, and to messages.
	EndsOfText, EndsOfMessages []int32
	// Decode makes text of tokens, with special ones unless these are to be skipped.
	Decode func(ids []int32, skipSpecial bool) string

	Runs     []string // ids of the run, its own first: files of these are its own
	Settings string   // Manifest.Settings

	// Reached is told in tests where a round is; an error ends it there.
	Reached func(where string) error
}

func (l *Loop) reached(where string) error {
	if l.Reached == nil {
		return nil
	}
	return l.Reached(where)
}

// Round returns the file of the round at a place, of weights that have been trained for a number of steps: the one that
// is there and whole, or one that is made now. Where steps of it are taken already it must be there.
func (l *Loop) Round(ctx context.Context, p Place, step int) (*Manifest, error) {
	m, why, err := l.found(p, step)
	if err != nil || m != nil {
		return m, err
	}
	if p.Taken > 0 {
		return nil, fmt.Errorf("resume: the checkpoint is inside of round %d, whose answers were in %s: %s; put the files "+
			"back, or resume from an older checkpoint", p.Round, l.path(RowsName(p.Round)), cmp.Or(why,
			"the files are not there"))
	}
	if why != "" {
		to, err := l.setAside(p.Round)
		if err != nil {
			return nil, fmt.Errorf("output_dir: %w", err)
		}
		l.Env.Note("round %d is sampled again: %s: %s; it is %s now", p.Round, l.path(RowsName(p.Round)), why, to)
	}
	return l.sample(ctx, p, step)
}

// sampled has what came of the prompts of a round.
type sampled struct {
	answers                []answer // that the round trains on
	groups                 int
	alike, stale           int // groups that were replaced, and answers that were left out
	tokens                 int // of all answers
	lag                    int // steps, of the weights of all answers, summed up
	all                    int
	rolloutSec, scoringSec float64
	residentBytes          int64 // of the process, the most that was seen
	tallies                [][]reward.Tally
}

// sample makes a round.
func (l *Loop) sample(ctx context.Context, p Place, step int) (*Manifest, error) {
	m := &Manifest{Run: l.Runs[0], Round: p.Round, Step: step, Settings: l.Settings, Sampler: l.Sampler.Name(),
		Begin: p.Begin, End: p.Begin, Params: sampler.Params{MaxTokens: l.Config.MaxTokens, Positions: l.Positions,
			Temperature: l.Config.Temperature, TopK: l.Config.TopK, TopP: l.Config.TopP, Seed: l.Seed, Version: int64(step)}}
	var of sampled
	var first []answer // of the first prompts: the round has these where all groups are alike
	for asked, want := 0, l.Config.PromptsPerStep; want > 0; {
		answers, err := l.ask(ctx, m, want, &of)
		if err != nil {
			return nil, err
		}
		if asked += want; l.Config.MaxGroups == 0 {
			of.answers, of.groups = answers, want
			break
		}
		if first == nil {
			first = answers
		}
		of.keepUnlike(answers)
		want = min(l.Config.PromptsPerStep-of.groups, l.Config.MaxGroups-asked)
	}
	if len(of.answers) == 0 {
		of.answers, of.groups = first, l.Config.PromptsPerStep
		l.Env.Warn("round %d: in each of its groups all answers have the same reward, and it teaches nothing: easier or "+
			"harder prompts, or rewards that tell answers apart, are needed", p.Round)
	}
	of.leaveOutStale(int64(step), l.Config.MaxStaleness)
	if len(of.answers) == 0 {
		return nil, fmt.Errorf("round %d: all answers are of weights that are more than %s older than the run's "+
			"(rl.max_staleness): raise it, or see why the server does not take new weights", p.Round,
			spelling.Count(l.Config.MaxStaleness, "step"))
	}
	m.Answers, m.Figures = len(of.answers), l.figures(&of)
	for i := range of.answers {
		m.Tokens += len(of.answers[i].IDs)
	}
	return m, l.write(m, of.answers)
}

// ask samples and scores answers to the next prompts, and moves the end of the round.
func (l *Loop) ask(ctx context.Context, m *Manifest, n int, of *sampled) ([]answer, error) {
	prompts, told := make([]sampler.Prompt, n), make([]reward.Answer, n)
	for i := range prompts {
		var err error
		if prompts[i], told[i], err = l.next(&m.End); err != nil {
			return nil, err
		}
	}
	samples := l.Config.Samples
	answers := make([]answer, n*samples)
	bar, done, began := l.Env.Bar(fmt.Sprintf("round %d", m.Round)), 0, time.Now()
	defer bar.End()
	err := l.Sampler.Sample(ctx, prompts, m.Params, func(c sampler.Completion) error {
		if err := l.check(c, prompts, answers); err != nil {
			return fmt.Errorf("round %d: %w", m.Round, err)
		}
		a := &answers[c.Prompt*samples+c.Sample]
		*a = answer{group: prompts[c.Prompt].Group, prompt: prompts[c.Prompt].IDs, Completion: c}
		done++
		of.tokens, of.all, of.lag = of.tokens+len(c.IDs), of.all+1, of.lag+m.Step-int(c.Version)
		of.see()
		bar.Show(float64(done)/float64(len(answers)), fmt.Sprintf("%d of %d answers", done, len(answers)))
		if err := l.judge(a, told[c.Prompt]); err != nil {
			return err
		}
		return l.reached("sampling")
	})
	if err == nil && done < len(answers) {
		err = fmt.Errorf("round %d: the sampler has given %d of %d answers", m.Round, done, len(answers))
	}
	of.rolloutSec += time.Since(began).Seconds()
	if err != nil {
		return nil, err
	}
	bar.Show(1, "waiting for rewards")
	if err := l.reached("scoring"); err != nil {
		return nil, err
	}
	waiting, end := l.Env.UntilStopped(ctx)
	defer end()
	results, err := l.Panel.Wait(waiting)
	if err != nil {
		return nil, fmt.Errorf("round %d: %w", m.Round, err)
	}
	of.see()
	of.scoringSec, of.tallies = of.scoringSec+results.WaitSec, append(of.tallies, results.Tallies)
	for i, score := range results.Scores { // by ID, as the answers are
		answers[i].rewards, answers[i].total = score.Rewards, score.Total
	}
	return answers, nil
}

// see notes the memory that the process has now.
func (s *sampled) see() {
	if now, err := hostmem.RSS(); err == nil {
		s.residentBytes = max(s.residentBytes, now)
	}
}

// next is the prompt at a cursor, which it moves, with what all answers to it are judged by.
func (l *Loop) next(c *data.Cursor) (p sampler.Prompt, told reward.Answer, err error) {
	document, number, after := l.Prompts.At(*c)
	*c = after
	e, err := l.Prompts.set.Example(document)
	if err != nil {
		return p, told, err
	}
	row, err := l.Prompts.set.Asked(document)
	if err != nil {
		return p, told, err
	}
	p = sampler.Prompt{Group: number, IDs: e.InputIDs, Samples: l.Config.Samples, Ends: l.EndsOfText}
	told.Prompt = l.Decode(p.IDs, false)
	if told.Row, err = json.Marshal(row.Row); err != nil {
		return p, told, err
	}
	if row.Prompt.Messages != nil {
		p.Ends = l.EndsOfMessages
		told.Messages, err = json.Marshal(row.Prompt.Messages)
	}
	return p, told, err
}

// HeldBytes bounds what rows of prompts take of host memory in a round, besides their tokens: as they are read, as
// judges get them, and in the lines that judges have at once.
func (l *Loop) HeldBytes() int64 {
	return l.Prompts.longestRow * int64(2*l.Config.PromptsPerStep+reward.LinesAtOnce(l.Config.Reward))
}

// check refuses an answer that no sampler may give.
func (l *Loop) check(c sampler.Completion, prompts []sampler.Prompt, answers []answer) error {
	switch {
	case c.Prompt < 0 || c.Prompt >= len(prompts) || c.Sample < 0 || c.Sample >= l.Config.Samples:
		return fmt.Errorf("the sampler has answered %d of prompt %d, which it was not asked for", c.Sample, c.Prompt)
	case answers[c.Prompt*l.Config.Samples+c.Sample].IDs != nil:
		return fmt.Errorf("the sampler has given answer %d to prompt %d twice", c.Sample, c.Prompt)
	case len(c.IDs) == 0 || len(c.IDs) > l.Config.MaxTokens || c.LogProbs != nil && len(c.LogProbs) != len(c.IDs):
		return fmt.Errorf("the sampler has given %d tokens with %d log-probabilities to prompt %d: 1 to %d tokens, and as "+
			"many log-probabilities", len(c.IDs), len(c.LogProbs), c.Prompt, l.Config.MaxTokens)
	}
	return nil
}

// judge hands an answer to the judges. told is what is known of its prompt.
func (l *Loop) judge(a *answer, told reward.Answer) error {
	said := a.IDs
	if a.Finish == sampler.FinishStop {
		said = said[:len(said)-1]
	}
	told.ID = a.group*int64(l.Config.Samples) + int64(a.Sample)
	told.Completion, told.CompletionIDs, told.Finish = l.Decode(said, true), a.IDs, a.Finish
	return l.Panel.Judge(told)
}

// keepUnlike keeps the groups whose answers do not all have the same reward.
func (s *sampled) keepUnlike(answers []answer) {
	for first := 0; first < len(answers); {
		end := first + 1
		for end < len(answers) && answers[end].group == answers[first].group {
			end++
		}
		least, most := math.Inf(1), math.Inf(-1)
		for _, a := range answers[first:end] {
			if !math.IsNaN(a.total) {
				least, most = min(least, a.total), max(most, a.total)
			}
		}
		if most-least >= objective.LeastSpread {
			s.answers, s.groups = append(s.answers, answers[first:end]...), s.groups+1
		} else {
			s.alike++
		}
		first = end
	}
}

// leaveOutStale leaves out answers of weights that are too old.
func (s *sampled) leaveOutStale(step int64, most int) {
	n := len(s.answers)
	s.answers = slices.DeleteFunc(s.answers, func(a answer) bool { return step-a.Version > int64(most) })
	s.stale = n - len(s.answers)
}
