package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"

	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/train/rl/sampler"
)

// server is a sampler.Server.
type server struct {
	*conn
	engine protocol
	o      Options
	is     description

	isAsleep bool
	loaded   *loaded // nil before the first hand-over

	mu     sync.Mutex
	warned map[string]bool
}

// Name has the program, its version, and the type of its weights.
func (s *server) Name() string {
	name := s.o.Engine
	for _, more := range []string{s.is.version, s.is.dtype} {
		if more != "" {
			name += " " + more
		}
	}
	return name
}

// Close ends the connections. The server keeps running.
func (s *server) Close() error {
	s.close()
	return nil
}

// warn says a thing once.
func (s *server) warn(format string, args ...any) {
	s.mu.Lock()
	isNew := !s.warned[format]
	s.warned[format] = true
	s.mu.Unlock()
	if isNew {
		s.o.Warn(s.name+": "+format, args...)
	}
}

// job is one answer that is asked for.
type job struct{ prompt, sample int }

// Sample asks for each answer in a request of its own, so that an answer can be judged while others are written. The
// first answers to all prompts come first: what the server keeps of a prompt then serves the others.
func (s *server) Sample(ctx context.Context, prompts []sampler.Prompt, p sampler.Params,
	done func(sampler.Completion) error) error {
	jobs, err := s.plan(prompts, &p)
	if err != nil {
		return err
	}
	s.close() // connections of before the training; the server has closed its ends
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	run := strconv.FormatUint(rand.Uint64(), 36) // names no random numbers of the model
	queue := make(chan job)
	var working fault.Group
	var mu sync.Mutex
	answered := 0
	for range min(s.o.AtOnce, len(jobs)) {
		working.Go(func() {
			for j := range queue {
				c, err := s.complete(ctx, prompts, p, j, run)
				mu.Lock()
				if err == nil && ctx.Err() == nil {
					answered++
					err = done(c)
				} else if err != nil && ctx.Err() == nil {
					err = fmt.Errorf("%w (after %d of %d answers)", err, answered, len(jobs))
				}
				if err != nil {
					cancel(err)
				}
				mu.Unlock()
			}
		})
	}
	for _, j := range jobs {
		select {
		case queue <- j:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(queue)
	working.Wait()
	return context.Cause(ctx)
}

// plan checks what is asked for, and lists the answers.
func (s *server) plan(prompts []sampler.Prompt, p *sampler.Params) (jobs []job, err error) {
	isWhole := p.TopK == 0 && (p.TopP == 0 || p.TopP == 1)
	switch {
	case s.loaded == nil:
		return nil, fmt.Errorf("%s has no weights of this run: hand some over first", s.name)
	case s.isAsleep:
		return nil, fmt.Errorf("%s sleeps: wake it first", s.name)
	case p.MaxTokens < 1 || p.TopK < 0 || !(p.TopP >= 0 && p.TopP <= 1) || !(p.Temperature > 0) ||
		math.IsInf(p.Temperature, 0):
		return nil, fmt.Errorf("answers of %d tokens at temperature %v with top_k %d and top_p %v cannot be sampled",
			p.MaxTokens, p.Temperature, p.TopK, p.TopP)
	case !s.engine.scales(&s.is) && p.Temperature != 1 && s.is.logProbs != "":
		return nil, fmt.Errorf("%s returns log-probabilities at temperature 1 (--logprobs-mode %s), and answers are sampled "+
			"at %v: start it with --logprobs-mode %s, or set temperature to 1", s.name, s.is.logProbs, p.Temperature,
			vllmProcessed)
	case !s.engine.scales(&s.is) && p.Temperature != 1:
		s.warn("it does not say by which --logprobs-mode it was started: with temperature %v that must be %s", p.Temperature,
			vllmProcessed)
	case !isWhole && !s.engine.hasTruncated(&s.is):
		s.warn("its log-probabilities are not those of the tokens that top_k and top_p leave: they count as not known")
	}
	if p.TopP == 0 {
		p.TopP = 1
	}
	most := 0
	for i, q := range prompts {
		if len(q.IDs) == 0 || q.Samples < 0 {
			return nil, fmt.Errorf("prompt %d has %d tokens, and %d answers are asked for", i, len(q.IDs), q.Samples)
		}
		for _, ids := range [][]int32{q.IDs, q.Ends} {
			for _, id := range ids {
				if id < 0 || int(id) >= s.o.Vocab {
					return nil, fmt.Errorf("prompt %d or what ends its answers has token %d, and the vocabulary ends before %d", i, id,
						s.o.Vocab)
				}
			}
		}
		if p.Most(q) < 1 {
			return nil, fmt.Errorf("prompt %d has %d tokens, and prompt and answer %d positions together", i, len(q.IDs),
				p.Positions)
		}
		if len(q.IDs)+p.Most(q) > s.is.positions && s.is.positions > 0 {
			return nil, fmt.Errorf("prompt %d has %d tokens and its answers %d at most, and %s has %d positions: start the "+
				"server with more (--context-length of SGLang, --max-model-len of vLLM), or lower max_tokens", i, len(q.IDs),
				p.Most(q), s.name, s.is.positions)
		}
		most = max(most, q.Samples)
	}
	for sample := range most {
		for i, q := range prompts {
			if sample < q.Samples {
				jobs = append(jobs, job{i, sample})
			}
		}
	}
	return jobs, nil
}

// complete asks for an answer, and checks it.
func (s *server) complete(ctx context.Context, prompts []sampler.Prompt, p sampler.Params, j job,
	run string) (sampler.Completion, error) {
	of := &prompts[j.prompt]
	q := question{id: RequestID(run, of.Group, j.sample), prompt: of.IDs, ends: of.Ends, most: p.Most(*of),
		heat: p.Temperature, topK: p.TopK, topP: p.TopP,
		seed: int64(rng.New(p.Seed, "server", uint64(of.Group), uint64(j.sample)).Uint64() >> 1)}
	r, err := s.engine.answer(ctx, q)
	if err != nil {
		return sampler.Completion{}, s.named(err)
	}
	c := sampler.Completion{Prompt: j.prompt, Sample: j.sample}
	var cut int32
	if c.IDs, c.LogProbs, c.Finish, cut, err = q.settle(&r, s.o.Vocab); err != nil {
		return c, s.named(err)
	}
	if cut != noToken {
		s.warn("it has ended an answer by token %d, which ends none for this run: such answers count as cut off", cut)
	}
	if c.Version, err = s.versionOf(r.version); err != nil {
		return c, s.named(err)
	}
	isWhole := p.TopK == 0 && p.TopP == 1
	isKnown := func() bool {
		for _, lp := range c.LogProbs {
			if !math.IsNaN(float64(lp)) {
				return true
			}
		}
		return false
	}
	if !isKnown() || !isWhole && !s.engine.hasTruncated(&s.is) {
		c.LogProbs = nil
	}
	return c, nil
}

// named is an error with the server's name before it, once.
func (s *server) named(err error) error {
	if err == nil || strings.Contains(err.Error(), s.name) || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%s: %w", s.name, err)
}

// versionOf reads the version of the weights of an answer. A server that does not tell it has those of the hand-over.
func (s *server) versionOf(said string) (int64, error) {
	if said == "" {
		return s.loaded.version, nil
	}
	v, err := strconv.ParseInt(said, 10, 64)
	if err != nil || v > s.loaded.version {
		return 0, fmt.Errorf("an answer is of the weights %q, and this run has handed over %d: is another program using the "+
			"server?", said, s.loaded.version)
	}
	return v, nil
}

// RequestID names a request: a run's answer of a number to the prompt of a group.
func RequestID(run string, group int64, sample int) string {
	return fmt.Sprintf("millrace-%s-%d-%d", run, group, sample)
}

// ParseRequestID reads group and sample of a RequestID.
func ParseRequestID(id string) (group int64, sample int, ok bool) {
	var run string
	parts := strings.Split(id, "-")
	if len(parts) < 4 || parts[0] != "millrace" {
		return 0, 0, false
	}
	run = parts[1]
	n, err := fmt.Sscanf(strings.Join(parts[2:], " "), "%d %d", &group, &sample)
	return group, sample, n == 2 && err == nil && run != ""
}
