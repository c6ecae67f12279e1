package generate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
)

// Sampling has the prompts and choices of the key samples, as tokens.
type Sampling struct {
	runfile.Samples
	Prompts      []data.Prompt
	asked        []asked // by prompt
	decoder      tokenizer.Decoder
	decoderBytes int64 // of it, which stays while the run trains
	vocab        int   // of the tokenizer
	most         int   // positions that the model was made for
}

// asked is a prompt as the model has it.
type asked struct {
	ids  []int32
	ends map[int32]bool // tokens that end what the model writes
}

// OpenSampling reads the prompts of a run, and checks that the model can be asked for each. It is nil for a run without
// samples.
func OpenSampling(ctx context.Context, s *source.Source, c *runfile.Config) (*Sampling, error) {
	if !c.Samples.Asked() {
		return nil, nil
	}
	prompts, names, err := readSamples(c.Samples)
	if err != nil {
		return nil, err
	}
	r, err := s.OpenReader(c)
	if err != nil {
		return nil, err
	}
	ends, err := s.Ends(c.Tokenizer, r.Tokenizer)
	if err != nil {
		return nil, err
	}
	p := &Sampling{Samples: c.Samples, Prompts: prompts, vocab: r.Tokenizer.VocabSize(), most: s.Model.MaxPositions}
	p.decoder, p.decoderBytes = tokenizer.DecoderOf(r.Tokenizer)
	asChat := rendersChats(c.Datasets, r.Renderer)
	for i, prompt := range prompts {
		a, err := ask(ctx, &r, prompt, asChat, ends)
		if err == nil {
			err = checkLength(a.ids, p.most)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", names[i], err)
		}
		p.asked = append(p.asked, a)
	}
	return p, nil
}

// readSamples returns the prompts of the key samples, with what messages call each.
func readSamples(c runfile.Samples) (all []data.Prompt, names []string, err error) {
	add := func(prompts []data.Prompt, name string) {
		for i, p := range prompts {
			all, names = append(all, p), append(names, fmt.Sprintf(name, i))
		}
	}
	add(c.Prompts, "samples.prompts[%d]")
	if c.PromptsFile != "" {
		of, err := data.ReadPrompts(c.PromptsFile)
		if err != nil {
			return nil, nil, fmt.Errorf("samples.prompts_file: %w", err)
		}
		add(of, "samples.prompts_file: entry %d, from 0")
	}
	return all, names, nil
}

// rendersChats reports whether a run has data that are rendered with a chat template: then a user says the text.
func rendersChats(sources []data.Source, renderer data.Renderer) bool {
	chat, ok := renderer.(*data.Chat)
	return ok && slices.ContainsFunc(sources, func(s data.Source) bool { return chat.Renders(s.Type) })
}

// ask returns the tokens of a prompt. With asChat a user says the text. ends are the tokens that end any text.
func ask(ctx context.Context, r *source.Reader, p data.Prompt, asChat bool, ends map[int32]bool) (a asked, err error) {
	if p.Messages == nil && asChat {
		if p.Text == "" {
			return a, errors.New("it is empty: write what a user says")
		}
		p.Messages = []data.Message{{Role: data.User, Content: p.Text}}
	}
	if err := p.Check(); err != nil {
		return a, err
	}
	if a.ids, err = data.PromptTokens(ctx, r.Tokenizer, r.Renderer, p); err != nil {
		return a, err
	}
	a.ends, err = endsOf(ctx, r, p.Messages != nil, ends)
	return a, err
}

// endsOf are the tokens that end what the model writes after a prompt: those that end any text, and after messages what
// the chat template ends the assistant's turn with.
func endsOf(ctx context.Context, r *source.Reader, isChat bool, ends map[int32]bool) (map[int32]bool, error) {
	chat, ok := r.Renderer.(*data.Chat)
	if !ok || !isChat {
		return ends, nil
	}
	end, err := chat.TurnEnd(ctx, r.Tokenizer)
	if err != nil || end == tokenizer.None {
		return ends, err
	}
	ends = maps.Clone(ends)
	ends[end] = true
	return ends, nil
}

// Tokens encodes the tokens that decide the passes of several hosts: the prompts' tokens, which may differ with a
// host's own files, and the tokens that end texts, of its own generation_config.json.
func (s *Sampling) Tokens() ([]byte, error) {
	if s == nil {
		return nil, nil
	}
	var all [][2][]int32
	for _, a := range s.asked {
		all = append(all, [2][]int32{a.ids, slices.Sorted(maps.Keys(a.ends))})
	}
	return json.Marshal(all)
}

// optionsOf are the choices of the key samples.
func optionsOf(c runfile.Samples) Options {
	return Options{MaxTokens: c.MaxTokens, Temperature: c.Temperature, TopK: c.TopK, TopP: c.TopP, Seed: c.Seed}
}

// Writings are the texts, of which there are the prompts alone.
func (s *Sampling) Writings() []*writing {
	choices := newPicker(optionsOf(s.Samples), s.vocab)
	all := make([]*writing, len(s.asked))
	for i, a := range s.asked {
		all[i] = newWriting(choices, i, slices.Clone(a.ids), a.ends, s.decoder, positionsOf(a.ids, s.MaxTokens, s.most))
	}
	return all
}

// WriteSamples has texts grow in a session that trains, and returns all of them. When the run is asked to stop the
// error is ErrInterrupted. Hosts of a run write the same texts at the same time, in the caches that each of them has.
func WriteSamples(ctx context.Context, s *session.Session, queue []*writing, of nn.Caches,
	what string) ([]*Generated, error) {
	b := s.Env.Bar(what)
	defer b.End()
	all, most := make([]*Generated, len(queue)), 0
	for _, w := range queue {
		most += w.MaxTokens
	}
	agree := func(picked []int32) ([]int32, bool, error) {
		made := 0
		for i, w := range queue {
			if made += len(w.made.Tokens); all[i] != nil {
				made += w.MaxTokens - len(w.made.Tokens)
			}
		}
		b.Show(float64(made)/float64(most), "")
		d := hosts.Decide(s.Env.Cluster, hosts.Report[[]int32]{Own: picked, Stop: s.Env.Stopped()})
		return d.Lead(), d.Stop, d.Err
	}
	t := newTexts(s, of) // its caches have nothing: the weights are other ones
	wasStopped := false
	err := t.write(ctx, slices.Clone(queue), agree, func(w *writing) (err error) {
		wasStopped = wasStopped || w.made.Finish == FinishStopped
		all[w.number], err = w.end(nil)
		return err
	})
	if err == nil && wasStopped {
		err = hosts.ErrInterrupted
	}
	return all, err
}

// Memory returns the needs of a run for its samples.
func (s *Sampling) Memory() (m session.SampleMemory) {
	if s == nil {
		return m
	}
	m.Caches.Sequences, m.Bytes = min(len(s.asked), mostSamples), s.decoderBytes
	choices := optionsOf(s.Samples)
	m.Draws = choices.choosesOfAll()
	for _, a := range s.asked {
		m.Caches.Positions = max(m.Caches.Positions, positionsOf(a.ids, s.MaxTokens, s.most))
	}
	return m
}

// SamplesToPlan returns the needs of samples for the plan of a configuration. Of a named shape there is no tokenizer:
// then each byte is taken for a token, which is the most that they can be.
func SamplesToPlan(ctx context.Context, env *session.Env, c *runfile.Config,
	shape string) (m session.SampleMemory, err error) {
	if !c.Samples.Asked() {
		return m, nil
	}
	if shape == "" {
		src, err := source.OpenModel(ctx, env, c.Model)
		if err != nil {
			return m, err
		}
		s, err := OpenSampling(ctx, src, c)
		return s.Memory(), err
	}
	prompts, _, err := readSamples(c.Samples)
	m.Caches.Sequences = min(len(prompts), mostSamples)
	choices := optionsOf(c.Samples)
	m.Draws = choices.choosesOfAll()
	for _, p := range prompts {
		n := len(p.Text)
		for _, turn := range p.Messages {
			n += len(turn.Content)
		}
		m.Caches.Positions = max(m.Caches.Positions, n+c.Samples.MaxTokens)
	}
	return m, err
}
