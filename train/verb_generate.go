package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"time"
	"unicode/utf8"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
)

// GenerateOptions say what to continue, and how to choose tokens.
type GenerateOptions struct {
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
	Text         string  `json:"text"`   // without the prompt and what ended it
	Tokens       []int32 `json:"tokens"` // of Text
	PromptTokens int     `json:"prompt_tokens"`
	// stop: the model ended the text; length: MaxTokens, or all its positions; interrupted: the user ended it
	Finish       string  `json:"finish"`
	TokensPerSec float64 `json:"tokens_per_sec"`
}

// Why a text ended.
const (
	FinishStop    = "stop"
	FinishLength  = "length"
	FinishStopped = "interrupted"
)

// Generate continues a prompt, as it stands: no chat template is put around it. There is no cache of keys and values:
// each token takes a forward pass over the whole row, which is as long as prompt and MaxTokens together. It is there
// to look at what was trained, not to serve it.
//
// The text ends at the tokenizer's end of text and at the eos_token_id of config.json and generation_config.json.
// Choices depend on the seed and the token's place alone.
func Generate(ctx context.Context, env *Env, o GenerateOptions) (made *Generated, err error) {
	var ask blame.Asking
	defer ask.Judge(&err)
	if err := o.check(); err != nil {
		return nil, err
	}
	src, err := openTrained(ctx, env, o.Model)
	if err != nil {
		return nil, err
	}
	n, err := runfile.NumericsOf(o.Compute, "bf16")
	if err != nil {
		return nil, err
	}
	tok, err := src.openTokenizer(src.settings(o.Tokenizer, "").Tokenizer)
	if err != nil {
		return nil, err
	}
	ends, err := src.ends(tok)
	if err != nil {
		return nil, err
	}
	ids, err := promptTokens(tok, o.Prompt)
	if err != nil {
		return nil, err
	}
	if len(ids) >= src.model.MaxPositions {
		return nil, fmt.Errorf("prompt: it has %d tokens, and the model was made for %d positions; shorten it", len(ids), src.model.MaxPositions)
	}
	dev, err := env.OpenDevices(o.Device)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	n.SequenceLen = min(len(ids)+min(o.MaxTokens, src.model.MaxPositions)-1, src.model.MaxPositions)
	p, err := env.planGeneration(ctx, src, n, dev, o.Memory)
	if err != nil {
		return nil, err
	}
	ask.IsOver = true
	s, err := env.openModelSession(ctx, p, dev, o.Memory.Path, src)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	g := generation{Session: s, picker: newPicker(o, tok.VocabSize()), ends: ends, text: writer{out: o.Out, tok: tok}}
	return g.from(ctx, ids, 0)
}

// planGeneration plans forward passes that give the logits of one position.
func (e *Env) planGeneration(ctx context.Context, src *source, n plan.Numerics, dev *Devices,
	mem runfile.Memory) (*plan.Plan, error) {
	return e.fitPlan(ctx, src.model.Frozen(), n, 1, runfile.Sizes{}, dev.Computes.Info(), mem,
		func(plan.Numerics) plan.Outputs {
			return plan.Outputs{LogitRows: 1}
		})
}

// generation continues a text.
type generation struct {
	*Session
	picker *picker
	ends   map[int32]bool // tokens that end a text
	text   writer
	stop   <-chan struct{} // closed: end after the pass that is under way; nil: never
}

// from continues ids. before is the number of tokens that the picker has chosen before.
func (g *generation) from(ctx context.Context, ids []int32, before int) (*Generated, error) {
	o, tok := g.picker.GenerateOptions, g.text.tok
	made := &Generated{PromptTokens: len(ids), Finish: FinishLength}
	begin := time.Now()
	var err error
	for len(made.Tokens) < o.MaxTokens && len(ids) <= g.plan.Numerics.SequenceLen && err == nil {
		if g.isStopped() {
			made.Finish = FinishStopped
			break
		}
		var id int32
		if id, err = g.choose(ctx, ids, before+len(made.Tokens)); err != nil {
			break
		}
		if g.ends[id] {
			made.Finish = FinishStop
			break
		}
		ids = append(ids, id)
		made.Tokens = append(made.Tokens, id)
		err = g.text.add(id)
	}
	made.TokensPerSec = float64(len(made.Tokens)) / time.Since(begin).Seconds()
	made.Text = tok.Decode(made.Tokens, true)
	if errText := g.text.end(); err == nil {
		err = errText
	}
	if err != nil {
		return nil, err
	}
	return made, nil
}

func (g *generation) isStopped() bool {
	select {
	case <-g.stop:
		return true
	default:
		return false
	}
}

// choose returns the token that follows ids, the one at a place of what is generated.
func (g *generation) choose(ctx context.Context, ids []int32, at int) (int32, error) {
	logits, err := g.next(ctx, ids)
	if err != nil {
		return 0, err
	}
	return g.picker.token(logits, at)
}

func (o *GenerateOptions) check() error {
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

// promptTokens returns the tokens of the prompt, after those that the model expects before a text.
func promptTokens(tok tokenizer.Tokenizer, prompt string) ([]int32, error) {
	before, _ := tok.Template()
	ids := append(append([]int32(nil), before...), tok.Encode(prompt, false)...)
	if len(ids) == 0 {
		if tok.BOS() == tokenizer.None {
			return nil, errors.New("prompt: it is empty, and the tokenizer has no token to begin with; write something")
		}
		ids = append(ids, tok.BOS())
	}
	return ids, nil
}

// next returns the logits of the token that follows ids.
func (s *Session) next(ctx context.Context, ids []int32) ([]float32, error) {
	labels := make([]int32, len(ids))
	for i := range labels {
		labels[i] = data.Ignore
	}
	b, err := data.NewBatch([]data.Example{{InputIDs: ids, Labels: labels}}, s.plan.Numerics.SequenceLen)
	if err != nil {
		return nil, err
	}
	logits, err := s.Engine.Logits(ctx, batchOf([]data.MicroBatch{b}), len(ids)-1)
	if err != nil {
		return nil, err
	}
	return logits[0], nil
}

// maxGenerationBytes bounds a generation_config.json; real ones have less than a kilobyte.
const maxGenerationBytes = 16 << 20

// ends are the tokens that end a text.
func (s *source) ends(tok tokenizer.Tokenizer) (map[int32]bool, error) {
	ends := map[int32]bool{}
	if id := tok.EOS(); id != tokenizer.None {
		ends[id] = true
	}
	docs := map[string][]byte{s.config.Path(): s.config.Raw()}
	const name = "generation_config.json"
	path := filepath.Join(s.dir, name)
	switch doc, err := below.Read(s.dir, name, maxGenerationBytes); {
	case err == nil:
		docs[path] = doc
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	for path, doc := range docs {
		var c struct {
			EOS tokenIDs `json:"eos_token_id"`
		}
		if err := json.Unmarshal(doc, &c); err != nil {
			return nil, fmt.Errorf("%s: eos_token_id: %w", path, err)
		}
		for _, id := range c.EOS {
			ends[id] = true
		}
	}
	return ends, nil
}

// tokenIDs are a token id, or a list of them, or null.
type tokenIDs []int32

func (t *tokenIDs) UnmarshalJSON(doc []byte) error {
	var one int32
	if err := json.Unmarshal(doc, &one); err == nil {
		if string(doc) != "null" {
			*t = tokenIDs{one}
		}
		return nil
	}
	return json.Unmarshal(doc, (*[]int32)(t))
}

// writer prints tokens as text, whole characters at a time: a character may take several tokens.
type writer struct {
	out  io.Writer
	tok  tokenizer.Tokenizer
	left []byte // of a character that is not complete
}

func (w *writer) add(id int32) error {
	if w.out == nil {
		return nil
	}
	w.left = w.tok.AppendBytes(w.left, id, true)
	n := len(w.left)
	for back := 1; back <= min(utf8.UTFMax-1, len(w.left)); back++ {
		if at := len(w.left) - back; utf8.RuneStart(w.left[at]) {
			if !utf8.FullRune(w.left[at:]) {
				n = at
			}
			break
		}
	}
	_, err := w.out.Write(w.left[:n])
	w.left = append(w.left[:0], w.left[n:]...)
	return err
}

func (w *writer) end() error {
	if w.out == nil {
		return nil
	}
	_, err := w.out.Write(w.left)
	w.left = w.left[:0]
	return err
}
