package data

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/data/template"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/vfs"
)

// Chat renders conversations with the chat template of a model, as transformers' apply_chat_template does, and without
// a generation prompt. The text that the assistant wrote counts in the loss; see [template.Template.FindTurns].
//
// The text is encoded as a whole, and special tokens are found in it wherever they come from, as transformers does. So
// a message whose text spells "<|im_end|>" ends a turn there: data that must not do so has to be cleaned before.
//
// The clock of strftime_now stands still at 26 July 2024, the date that Llama 3's template has where it knows none: a
// run that continues tomorrow must see the same tokens.
type Chat struct {
	// All renders alpaca and prompt-response with the template too. Without it they have the plain rendering.
	All bool
	// LastTurn counts the last turn of the assistant only.
	LastTurn bool
	// Stops are ids that end a generation in addition to the tokenizer's EOS, as generation_config.json lists them.
	// They end turns that the template leaves open.
	Stops []int32

	config  template.Config
	sources map[string]*template.Template // by source text
	reads   []string                      // variables that these read and no render gives a value, sorted
	kwargs  map[string]template.Value     // of them, what all renders have
	// literals are kwargs as Jinja writes them.
	literals map[string]string
	version  string

	contracts *contracts
}

// chatNow is the clock of templates.
var chatNow = time.Date(2024, time.July, 26, 0, 0, 0, 0, time.UTC)

func now() time.Time { return chatNow }

// maxSmallBytes bounds what is read whole: configurations, templates (those with tools have some 10 kB), registries
// and cards.
const maxSmallBytes = 32 << 20

// ErrNoTemplate is in the error of NewChat if the directory has no chat template.
var ErrNoTemplate = errors.New("there is no chat template")

// NewChat reads the chat template of the tokenizer in a directory: chat_template.jinja and additional_chat_templates,
// or else chat_template in tokenizer_config.json, one text or a list with names. A file, where it is not "", takes
// the place of these; the names of special tokens come from the directory still. Without a template it is an
// ErrNoTemplate.
func NewChat(dir, file string) (*Chat, error) {
	if file == "" {
		return NewChatOf(dir, nil)
	}
	doc, err := readSmall(file)
	if err != nil {
		return nil, fmt.Errorf("chat_template: %w", err)
	}
	return NewChatOf(dir, map[string]string{"default": string(doc)})
}

// NewChatOf is NewChat with templates by name, unless they are nil, in place of those of the directory.
func NewChatOf(dir string, templates map[string]string) (*Chat, error) {
	c := &Chat{sources: map[string]*template.Template{}, contracts: &contracts{all: map[contractKey]*template.Contract{}}}
	c.config.Templates = map[string]string{}
	configPath := filepath.Join(dir, "tokenizer_config.json")
	doc, err := tokenizer.ReadConfig(dir)
	if err == nil {
		if c.config, err = template.ReadConfig(doc); err != nil {
			return nil, fmt.Errorf("%s: %w", configPath, err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if templates != nil {
		c.config.Templates = templates
	} else if err := c.config.ReadFiles(dir); err != nil {
		return nil, err
	}
	if len(c.config.Templates) == 0 {
		return nil, fmt.Errorf("chat_template: %s: %w", dir, ErrNoTemplate)
	}
	for name, source := range c.config.Templates {
		t, err := template.Parse(source)
		if err != nil {
			return nil, fmt.Errorf("chat_template %s: %w", name, err)
		}
		c.sources[source] = t
		c.reads = append(c.reads, t.Variables()...)
	}
	slices.Sort(c.reads)
	c.reads = slices.Compact(c.reads)
	spec, err := json.Marshal([]any{"chat-4", c.config.Templates, c.config.Tokens, chatNow})
	if err != nil {
		return nil, fmt.Errorf("chat_template: %w", err)
	}
	c.version = fmt.Sprintf("%x", xxh3.Hash128(spec).Bytes())
	return c, nil
}

// escapeGlob makes a path a pattern that matches itself.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// readSmall reads a file of at most maxSmallBytes.
func readSmall(path string) ([]byte, error) {
	return vfs.ReadFile(vfs.OS{}, path, maxSmallBytes)
}

// Version implements [Renderer].
func (c *Chat) Version() string {
	return fmt.Sprintf("%s all=%v last=%v stops=%v %s", c.version, c.All, c.LastTurn, slices.Sorted(slices.Values(c.Stops)), Plain.Version())
}

// Renders reports whether rows of a type are rendered with the template.
func (c *Chat) Renders(t Type) bool {
	f := t.format()
	return f.isConversation || c.All && !f.isText && !f.isTokens && !f.isAsked
}

// Render implements [Renderer].
func (c *Chat) Render(ctx context.Context, r Record) (Rendered, error) {
	if !c.Renders(r.Type) {
		return Plain.Render(ctx, r)
	}
	ctx = template.ShareSteps(ctx)
	source, err := c.config.Source(len(r.Tools) > 0)
	if err != nil {
		return Rendered{}, err
	}
	in := template.Input{Messages: r.conversation(), Tools: r.Tools, Documents: r.Documents, Now: now}
	if in.Extra, err = c.variables(r.Kwargs); err != nil {
		return Rendered{}, err
	}
	if len(r.Documents) > 0 && !c.sources[source].Reads("documents") {
		return Rendered{}, errors.New("the row has documents, which the chat template never reads: leave them out of the " +
			"rows, or use a template that writes them")
	}
	turns := template.AllTurns
	if c.LastTurn {
		turns = template.LastTurn
	}
	t := c.sources[source]
	contract, err := c.contracts.contract(ctx, t, contractKey{source, template.VariablesKey(in.Extra), len(r.Tools) > 0}, in)
	if err != nil {
		return Rendered{}, err
	}
	found, err := contract.FindTurns(ctx, in, turns)
	if err != nil && ctx.Err() == nil && opening(in.Messages) > 0 {
		return Rendered{}, fmt.Errorf("%w; the conversation does not begin with a question: set opening: drop in the "+
			"entry to leave out the turns before it", err)
	}
	if err != nil {
		return Rendered{}, err
	}
	left, err := checkNothingLeftOut(ctx, t, contract, in, found)
	if err != nil {
		return Rendered{}, err
	}
	var counted []template.Span
	for _, s := range found.Spans {
		if len(r.Untrained) > 0 && s.Message < 0 {
			return Rendered{}, errors.New("a message of the assistant does not count (weight 0, or in a prompt), and " +
				"which part the template made of it is not known: leave such messages out")
		}
		if !r.Untrained[s.Message] && s.End > s.Start {
			counted = append(counted, s)
		}
	}
	if len(counted) == 0 {
		return Rendered{}, errors.New("the chat template leaves nothing of what the assistant wrote")
	}
	slices.SortFunc(counted, func(a, b template.Span) int { return a.Start - b.Start })
	if err := checkPrompt(ctx, t, in, r.promptMessages, found.Text[:counted[0].Start]); err != nil {
		return Rendered{}, err
	}
	out := Rendered{Segments: cut(found.Text, counted), Joined: true, left: left}
	last := len(in.Messages) - 1
	for i, n := range turnsOf(out.Segments, counted) {
		of := counted[n].Message
		out.Turns = append(out.Turns, i)
		out.otherPrompt = append(out.otherPrompt, slices.Contains(found.OtherPrompt, of))
		out.endsInTurn = of == lastAnswer(in.Messages)
	}
	if found.Unended != nil {
		role, _ := textOf(in.Messages[last].(*template.Dict), "role")
		out.Unended = &Unended{*found.Unended, c.Stops, role == roleAssistant && !r.Untrained[last]}
	}
	return out, nil
}

// checkPrompt refuses a side of a pair whose prompt of n messages is not rendered as it is when the model is asked: the
// two sides would answer different prompts. before is the text before the answer. With n = 0 there is no pair.
func checkPrompt(ctx context.Context, t *template.Template, in template.Input, n int, before string) error {
	if n == 0 {
		return nil
	}
	in.Messages, in.AddGenerationPrompt = in.Messages[:n:n], true
	asked, err := t.Render(ctx, in)
	if err != nil {
		return fmt.Errorf("the prompt of the two answers does not render: %w", err)
	}
	if both := min(len(before), len(asked.Text)); before[:both] != asked.Text[:both] {
		return errors.New("the chat template writes the prompt in another way where an answer follows, as where it drops " +
			"the thoughts of earlier turns: leave these out of the prompt")
	}
	return nil
}

// turnsOf yields the segments that end turns: of the targets that one message has, the last; and which of the spans
// each is. A target whose message is not known is a turn.
func turnsOf(segments []Segment, spans []template.Span) iter.Seq2[int, int] {
	return func(yield func(segment, span int) bool) {
		n := 0
		for i, s := range segments {
			if !s.Target {
				continue
			}
			if n+1 == len(spans) || spans[n].Message < 0 || spans[n].Message != spans[n+1].Message {
				if !yield(i, n) {
					return
				}
			}
			n++
		}
	}
}

// lastAnswer is the last message of the assistant.
func lastAnswer(messages []template.Value) int {
	for i, v := range slices.Backward(messages) {
		if role, _ := textOf(v.(*template.Dict), "role"); role == roleAssistant {
			return i
		}
	}
	return -1
}
