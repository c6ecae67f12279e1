package generate

import (
	"context"
	"fmt"
	"io"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
)

// Options say what to continue, and how to choose tokens.
type Options struct {
	Model       string // a Hugging Face directory, a hub id, a run's output directory, or a checkpoint
	Prompt      string
	Tokenizer   string  // auto (the run's, or the model's; the default), bytes, or a path
	MaxTokens   int     // the most that are generated
	Temperature float64 // 0: the most likely token
	TopK        int     // only the K most likely tokens; 0: all
	TopP        float64 // only the most likely tokens that have this probability together; 0 and 1: all
	Seed        uint64
	Compute     string // bf16 (default) or f32
	Memory      runfile.Memory
	Device      string    // auto (default), cpu, cuda or cuda:N
	Out         io.Writer // gets the text as it comes; may be nil
}

// Generated is a continued text.
type Generated struct {
	Text   string  `json:"text"`   // without the prompt and what ended it
	Tokens []int32 `json:"tokens"` // of Text
	// LogProbs are the natural logarithms of the tokens' probabilities, by the distributions that they were drawn from:
	// after temperature, top k and top p. Of likeliest tokens, at temperature 0, they are those of temperature 1.
	LogProbs     []float32 `json:"-"`
	PromptTokens int       `json:"prompt_tokens"`
	// stop: the model ended the text; length: MaxTokens, or all its positions; interrupted: the user ended it
	Finish        string  `json:"finish"`
	PromptSeconds float64 `json:"prompt_sec"`     // until the prompt was read
	TokensPerSec  float64 `json:"tokens_per_sec"` // after the first one; 0 of fewer than two
}

// Why a text ended.
const (
	FinishStop    = "stop"
	FinishLength  = "length"
	FinishStopped = "interrupted"
)

// Text continues a prompt, as it stands: no chat template is put around it.
//
// The text ends at the tokenizer's end of text and at the eos_token_id of config.json and generation_config.json.
// Choices depend on the seed and the token's place alone.
func Text(ctx context.Context, env *session.Env, o Options) (made *Generated, err error) {
	err = Each(ctx, env, o, []string{o.Prompt}, func(g *Generated) error {
		made = g
		return nil
	})
	return made, err
}

// Each continues several prompts, which share passes over the model; where that has no caches
// ([plan.CanContinue]) they come one after the other. It calls each with what was made of them, in their order, as soon
// as those before are there; an error of each ends it. The choices of the first prompt are those of [Generate], and
// those of others depend on their number as well. o.Prompt has no meaning, and o.Out gets the text as it comes if there
// is one prompt.
func Each(ctx context.Context, env *session.Env, o Options, prompts []string,
	each func(*Generated) error) (err error) {
	var ask blame.Asking
	defer ask.Judge(ctx, &err)
	if err := o.check(); err != nil {
		return err
	}
	src, err := source.OpenTrained(ctx, env, o.Model)
	if err != nil {
		return err
	}
	if err := src.CheckWrites(); err != nil {
		return err
	}
	n, err := runfile.NumericsOf(o.Compute, "bf16")
	if err != nil {
		return err
	}
	c, err := src.Settings(env, o.Tokenizer, "model", nil)
	if err != nil {
		return err
	}
	o.Tokenizer = c.Tokenizer
	tok, err := src.OpenTokenizer(o.Tokenizer)
	if err != nil {
		return err
	}
	queue, err := writings(src, tok, o, prompts)
	if err != nil {
		return err
	}
	dev, err := env.OpenFirst(o.Device)
	if err != nil {
		return err
	}
	defer dev.Close()
	positions, longest := 0, 0
	for _, w := range queue {
		positions, longest = max(positions, w.most), max(longest, len(w.ids))
	}
	p, err := planTexts(ctx, env, src, n, dev, o.Memory, o.choosesOfAll(), len(queue), positions, longest)
	if err != nil {
		return err
	}
	ask.IsOver = true
	t, err := openTexts(ctx, env, p, dev, o.Memory.Path, src)
	if err != nil {
		return err
	}
	defer t.Close()
	if len(queue) == 1 {
		queue[0].text.out = o.Out
	}
	made, next := make([]*Generated, len(queue)), 0
	err = t.write(ctx, queue, nil, func(w *writing) (err error) {
		made[w.number], err = w.end(nil)
		for err == nil && next < len(made) && made[next] != nil {
			err = each(made[next])
			next++
		}
		return err
	})
	if err != nil && len(queue) == 1 {
		_, err = queue[0].end(err) // what is left of a character
	}
	return err
}

// writings are texts that begin with prompts.
func writings(src *source.Source, tok tokenizer.Tokenizer, o Options, prompts []string) ([]*writing, error) {
	ends, err := src.Ends(o.Tokenizer, tok)
	if err != nil {
		return nil, err
	}
	choices, all := newPicker(o, tok.VocabSize()), make([]*writing, len(prompts))
	for i, prompt := range prompts {
		what := "prompt"
		if len(prompts) > 1 {
			what = fmt.Sprintf("prompt %d", i+1)
		}
		ids, err := data.PromptTokens(context.Background(), tok, data.Plain, data.Prompt{Text: prompt}) // no template
		if err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		most := src.Model.MaxPositions
		if err := checkLength(ids, most); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		all[i] = newWriting(choices, i, ids, ends, tok, positionsOf(ids, o.MaxTokens, most))
	}
	return all, nil
}

// checkLength refuses a prompt after which a model that was made for most positions has no room for a token.
func checkLength(prompt []int32, most int) error {
	if len(prompt) < most {
		return nil
	}
	return fmt.Errorf("it has %d tokens, and the model was made for %d positions; shorten it", len(prompt), most)
}

func (o *Options) check() error {
	switch {
	case o.MaxTokens < 1:
		return fmt.Errorf("--max-tokens is %d: it must be at least 1", o.MaxTokens)
	case !(o.Temperature >= 0 && o.Temperature <= 100):
		return fmt.Errorf("--temperature is %v: it must be between 0 (the most likely token) and 100", o.Temperature)
	case o.TopK < 0:
		return fmt.Errorf("--top-k is %d: it must not be negative; 0 is all", o.TopK)
	case !(o.TopP >= 0 && o.TopP <= 1):
		return fmt.Errorf("--top-p is %v: it must be between 0 and 1", o.TopP)
	}
	return nil
}
