package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/hosts"
)

// Sample is a text that the model has written during training, and one line of samples.jsonl.
type Sample struct {
	Step         int64       `json:"step"`   // after which it was written; 0: before training
	Number       int         `json:"number"` // of the prompt, from 1
	Prompt       data.Prompt `json:"prompt"`
	Text         string      `json:"text"` // without the prompt and what ended it
	Finish       string      `json:"finish"`
	PromptTokens int         `json:"prompt_tokens"`
	Tokens       []int32     `json:"tokens"` // of Text
}

// newSamplesFile opens a samples.jsonl.
func newSamplesFile(f trace.File, lastStep int64) (*trace.RecordFile[Sample], error) {
	return trace.NewRecordFile(f, trace.Records[Sample]{What: "samples", LineBytes: 32 << 20,
		Parse: func(line []byte) (s Sample, step int64, ok bool) {
			s.Step = math.MinInt64
			err := json.Unmarshal(line, &s)
			return s, s.Step, err == nil && s.Step != math.MinInt64
		}}, lastStep)
}

// sampling has the prompts and choices of the key samples, as tokens.
type sampling struct {
	runfile.Samples
	prompts      []data.Prompt
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

// openSampling reads the prompts of a run, and checks that the model can be asked for each. It is nil for a run without
// samples.
func (s *source) openSampling(ctx context.Context, c *runfile.Config) (*sampling, error) {
	if !c.Samples.Asked() {
		return nil, nil
	}
	prompts, names, err := readSamples(c.Samples)
	if err != nil {
		return nil, err
	}
	r, err := s.openReader(c)
	if err != nil {
		return nil, err
	}
	ends, err := s.ends(c.Tokenizer, r.tokenizer)
	if err != nil {
		return nil, err
	}
	p := &sampling{Samples: c.Samples, prompts: prompts, vocab: r.tokenizer.VocabSize(), most: s.model.MaxPositions}
	p.decoder, p.decoderBytes = tokenizer.DecoderOf(r.tokenizer)
	asChat := rendersChats(c.Datasets, r.renderer)
	for i, prompt := range prompts {
		a, err := r.ask(ctx, prompt, asChat, ends)
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
func (r *reader) ask(ctx context.Context, p data.Prompt, asChat bool, ends map[int32]bool) (a asked, err error) {
	a.ends = ends
	if p.Messages == nil && !asChat {
		a.ids, err = promptTokens(r.tokenizer, p.Text)
		return a, err
	}
	if p.Messages == nil {
		if p.Text == "" {
			return a, errors.New("it is empty: write what a user says")
		}
		p.Messages = []data.Message{{Role: data.User, Content: p.Text}}
	}
	if err := p.Check(); err != nil {
		return a, err
	}
	chat, ok := r.renderer.(*data.Chat)
	if !ok {
		return a, errors.New("it is a list of messages, and the model has no chat template: write a text, or name a " +
			"template in chat_template")
	}
	text, err := chat.Prompt(ctx, p.Messages)
	if err != nil {
		return a, err
	}
	end, err := chat.TurnEnd(ctx, r.tokenizer)
	if err != nil {
		return a, err
	}
	if a.ids = r.tokenizer.Encode(text, false); len(a.ids) == 0 {
		return a, errRendersNothing
	}
	if end != tokenizer.None {
		a.ends = maps.Clone(ends)
		a.ends[end] = true
	}
	return a, nil
}

// errRendersNothing is of messages without a token.
var errRendersNothing = errors.New("the chat template makes an empty text of it: name another one in chat_template")

// sum tells what decides the passes of several hosts: the tokens of prompts, which a host's own files may make others
// of, and those that end texts, of its own generation_config.json.
func (s *sampling) sum() (string, error) {
	if s == nil {
		return "", nil
	}
	var all [][2][]int32
	for _, a := range s.asked {
		all = append(all, [2][]int32{a.ids, slices.Sorted(maps.Keys(a.ends))})
	}
	doc, err := json.Marshal(all)
	return sumOf(doc), err
}

// writings are the texts, of which there are the prompts alone.
func (s *sampling) writings() []*writing {
	choices := newPicker(GenerateOptions{MaxTokens: s.MaxTokens, Temperature: s.Temperature, TopK: s.TopK, TopP: s.TopP,
		Seed: s.Seed}, s.vocab)
	all := make([]*writing, len(s.asked))
	for i, a := range s.asked {
		all[i] = newWriting(choices, i, slices.Clone(a.ids), a.ends, s.decoder, positionsOf(a.ids, s.MaxTokens, s.most))
	}
	return all
}

// beginSamples opens the file of samples, which keeps those up to the step that the run continues after, of that step
// all or none; of a run that begins last is -1.
func (t *trainer) beginSamples(last int) error {
	if t.samples == nil {
		return nil
	}
	file := &t.records.samples
	err := file.Begin(last)
	if n := file.Had(last); err == nil && t.sampleDue() && n > 0 && n != len(t.samples.prompts) {
		file.Close()
		err = file.Begin(last - 1)
	}
	return err
}

// sampleDue reports whether the model writes after the latest step.
func (t *trainer) sampleDue() bool {
	s := t.samples
	return s != nil && (t.steps == 0 || t.isOver() || s.Every > 0 && t.steps%s.Every == 0)
}

// sample has the model write after the latest step, if that is due. When the run is asked to stop it ends without
// texts, and the run makes up for them when it continues. All hosts of a run write together, what host 0 chooses.
func (t *trainer) sample(ctx context.Context) error {
	if !t.sampleDue() {
		return nil
	}
	if t.steps > t.begun {
		t.env.willFinish(fmt.Sprintf("ending the samples, and saving step %d", t.steps))
	}
	all, err := t.session.write(ctx, t.samples.writings(), t.places, "samples "+when(t.steps))
	t.leaveOut()
	switch {
	case errors.Is(err, errNotFinite):
		t.env.warn("there are no samples %s: %v", when(t.steps), err)
		return nil
	case errors.Is(err, ErrInterrupted):
		return nil
	case err != nil:
		return t.env.Cluster.Alone(err)
	}
	for i, g := range all {
		t.tell(Sampled{Sample{Step: int64(t.steps), Number: i + 1, Prompt: t.samples.prompts[i], Text: g.Text,
			Finish: g.Finish, PromptTokens: g.PromptTokens, Tokens: g.Tokens}})
	}
	return nil
}

// sampleAgain makes up for the samples of the step that the run continues after, if it was stopped in them.
func (t *trainer) sampleAgain(ctx context.Context) error {
	lacks := t.begun > 0 && t.sampleDue() && t.env.Cluster.Leads() && t.records.samples.Had(t.begun) == 0
	d := hosts.Decide(t.env.Cluster, hosts.Report[bool]{Own: lacks})
	if d.Err != nil || !d.Lead() {
		return d.Err
	}
	return t.sample(ctx)
}

// agreeOnPlaces decides how many texts grow together: as many as all hosts have caches for.
func (t *trainer) agreeOnPlaces() error {
	t.places = t.plan.Outputs.Caches.Sequences
	if t.samples == nil {
		return nil
	}
	d := hosts.Decide(t.env.Cluster, hosts.Report[int]{Own: t.places})
	t.places = slices.Min(d.All)
	return d.Err
}

// write has texts grow in a session that trains, and returns all of them. When the run is asked to stop the error is
// ErrInterrupted. Hosts of a run write the same texts at the same time.
func (s *Session) write(ctx context.Context, queue []*writing, places int, what string) ([]*Generated, error) {
	b := s.env.bar(what)
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
		d := hosts.Decide(s.env.Cluster, hosts.Report[[]int32]{Own: picked, Stop: s.env.stopped()})
		return d.Lead(), d.Stop, d.Err
	}
	t := &texts{Session: s, read: make([][]int32, places)} // its caches have nothing: the weights are other ones
	wasStopped := false
	err := t.write(ctx, slices.Clone(queue), agree, func(w *writing) (err error) {
		wasStopped = wasStopped || w.made.Finish == FinishStopped
		all[w.number], err = w.end(nil)
		return err
	})
	if err == nil && wasStopped {
		err = ErrInterrupted
	}
	return all, err
}
