package generate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
)

// ChatOptions say whom to talk to. Prompt and Out are not used; MaxTokens is the most of an answer.
type ChatOptions struct {
	Options
	ChatTemplate string      // auto (default: the run's, or the model's), model, or a file
	Kwargs       data.Kwargs // variables of the template
	System       string      // system prompt; empty: none
}

// Conversation is a talk with a model. Its messages are rendered with the chat template each time, and the model
// continues the whole text. It computes what is new of that, or where the model has no caches ([plan.CanContinue]) all
// of it for each token. It is not safe for concurrent use.
type Conversation struct {
	env      *session.Env
	options  ChatOptions
	src      *source.Source
	numerics plan.Numerics // without SequenceLen
	dev      *session.Devices
	tok      tokenizer.Tokenizer
	chat     *data.Chat
	ends     map[int32]bool
	picker   *picker
	texts    *texts // of a length that has sufficed so far; nil before the first answer

	messages []data.Message
	chosen   int // tokens of all answers
}

// OpenConversation opens the model, its tokenizer and its chat template. The weights are loaded for the first answer.
func OpenConversation(ctx context.Context, env *session.Env, o ChatOptions) (c *Conversation, err error) {
	var ask blame.Asking
	defer ask.Judge(ctx, &err)
	if err := o.check(); err != nil {
		return nil, err
	}
	c = &Conversation{env: env, options: o}
	if c.src, err = source.OpenTrained(ctx, env, o.Model); err != nil {
		return nil, err
	}
	if err := c.src.CheckWrites(); err != nil {
		return nil, err
	}
	if c.numerics, err = runfile.NumericsOf(o.Compute, "bf16"); err != nil {
		return nil, err
	}
	settings, err := c.src.Settings(env, o.Tokenizer, o.ChatTemplate, o.Kwargs)
	if err != nil {
		return nil, err
	}
	r, err := c.src.OpenReader(settings)
	if err != nil {
		return nil, err
	}
	isChat := false
	if c.chat, isChat = r.Renderer.(*data.Chat); !isChat {
		return nil, errors.New("the model has no chat template, so its form of a conversation is not known; " +
			"name a template with --chat-template, or use millrace generate")
	}
	c.tok = r.Tokenizer
	if c.ends, err = c.src.Ends(settings.Tokenizer, c.tok); err != nil {
		return nil, err
	}
	end, err := c.chat.TurnEnd(ctx, c.tok)
	if err != nil {
		return nil, err
	}
	if end != tokenizer.None {
		c.ends[end] = true
	}
	if err := c.src.CheckWeights(ctx); err != nil {
		return nil, err
	}
	c.picker = newPicker(o.Options, c.tok.VocabSize())
	c.Clear()
	c.dev, err = env.OpenFirst(o.Device)
	return c, err
}

// Clear forgets all messages except the system prompt.
func (c *Conversation) Clear() {
	c.messages = nil
	if c.options.System != "" {
		c.messages = []data.Message{{Role: data.System, Content: c.options.System}}
	}
}

// Say asks the model for its answer to a message; out gets it as it comes. When stop is closed, the answer ends after
// the pass that is under way, with what the model has said so far ([FinishStopped]); nil never stops it. After an
// error, and if nothing was said before the stop, the message was not said. A pass that is cut by the end of the
// context costs loading the weights again.
func (c *Conversation) Say(ctx context.Context, stop <-chan struct{}, text string, out io.Writer) (answer *Generated,
	err error) {
	said := append(slices.Clip(c.messages), data.Message{Role: data.User, Content: text})
	prompt, err := c.chat.Prompt(ctx, said)
	if err != nil {
		return nil, blame.BadRequest(err)
	}
	ids := c.tok.Encode(prompt, false)
	if len(ids) == 0 {
		return nil, blame.BadRequest(data.ErrRendersNothing)
	}
	if most := c.src.Model.MaxPositions; len(ids) >= most {
		return nil, blame.BadRequest(fmt.Errorf("the conversation has %d tokens, and the model was made for %d positions; "+
			"begin a new one", len(ids), most))
	}
	if err := c.fit(ctx, len(ids)+min(c.options.MaxTokens, c.src.Model.MaxPositions)); err != nil {
		return nil, err
	}
	w := newWriting(c.picker, 0, ids, c.ends, c.tok, c.texts.Plan.LongestDocument())
	w.before, w.text.out = c.chosen, out
	stops := func(picked []int32) ([]int32, bool, error) { return picked, isClosed(stop), nil }
	err = c.texts.write(ctx, []*writing{w}, stops, func(*writing) error { return nil })
	if answer, err = w.end(err); err != nil {
		return nil, errors.Join(err, c.closeTexts()) // an engine that stopped in a pass does not run again
	}
	if answer.Finish == FinishStopped && len(answer.Tokens) == 0 {
		return answer, nil
	}
	c.chosen += len(answer.Tokens)
	c.messages = append(said, data.Message{Role: data.Assistant, Content: answer.Text})
	return answer, nil
}

// leastPositions is the least number of positions that a conversation is planned for.
const leastPositions = 256

// fit has the texts take n positions or more, or all that the model has. Their numbers are powers of two, since each
// other number costs loading the weights again.
func (c *Conversation) fit(ctx context.Context, n int) error {
	n = min(max(leastPositions, 1<<bits.Len(uint(n-1))), c.src.Model.MaxPositions)
	if c.texts != nil && c.texts.Plan.LongestDocument() >= n {
		return nil
	}
	if err := c.closeTexts(); err != nil {
		return err
	}
	p, err := planTexts(ctx, c.env, c.src, c.numerics, c.dev, c.options.Memory, c.options.choosesOfAll(), 1, n, n)
	if err != nil {
		return blame.BadRequest(err)
	}
	c.texts, err = openTexts(ctx, c.env, p, c.dev, c.options.Memory.Path, c.src)
	return err
}

func (c *Conversation) closeTexts() error {
	if c.texts == nil {
		return nil
	}
	err := c.texts.Close()
	c.texts = nil
	return err
}

// Close gives the weights and the devices back.
func (c *Conversation) Close() error {
	err := c.closeTexts()
	if c.dev != nil {
		err = errors.Join(err, c.dev.Close())
	}
	return err
}
