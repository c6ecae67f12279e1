package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/generate"
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

// beginSamples opens the file of samples, which keeps those up to the step that the run continues after, of that step
// all or none; of a run that begins last is -1.
func (t *trainer) beginSamples(last int) error {
	if t.samples == nil {
		return nil
	}
	file := &t.records.samples
	err := file.Begin(last)
	if n := file.Had(last); err == nil && t.sampleDue() && n > 0 && n != len(t.samples.Prompts) {
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
		t.env.WillFinish(fmt.Sprintf("ending the samples, and saving step %d", t.steps))
	}
	all, err := generate.WriteSamples(ctx, t.session.Texts, t.samples.Writings(), t.caches, "samples "+when(t.steps))
	t.leaveOut()
	switch {
	case errors.Is(err, generate.ErrNotFinite):
		t.env.Warn("there are no samples %s: %v", when(t.steps), err)
		return nil
	case errors.Is(err, ErrInterrupted):
		return nil
	case err != nil:
		return t.env.Cluster.Alone(err)
	}
	for i, g := range all {
		t.tell(Sampled{Sample{Step: int64(t.steps), Number: i + 1, Prompt: t.samples.Prompts[i], Text: g.Text,
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

// agreeOnCaches decides how many texts grow together, and in how many blocks of caches: as many as all hosts have.
func (t *trainer) agreeOnCaches() error {
	if t.samples == nil {
		return nil
	}
	t.caches = t.plan.Texts().Outputs.Caches
	d := hosts.Decide(t.env.Cluster, hosts.Report[nn.Caches]{Own: t.caches})
	for _, of := range d.All {
		t.caches.Sequences, t.caches.Blocks = min(t.caches.Sequences, of.Sequences), min(t.caches.Blocks, of.Blocks)
	}
	return d.Err
}
