package data

import (
	"context"
	"strings"

	"github.com/millrace/millrace/data/template"
	"github.com/millrace/millrace/data/tokenizer"
)

// Message is one turn of a conversation.
type Message struct {
	Role    string `json:"role" yaml:"role"` // system, user or assistant
	Content string `json:"content" yaml:"content"`
}

// The roles of a conversation with a model.
const (
	System    = roleSystem
	User      = roleUser
	Assistant = roleAssistant
)

// Prompt is a conversation with the generation prompt after it, as apply_chat_template of transformers gives it: the
// text that the assistant continues. It is tokenized as a whole, as in training.
func (c *Chat) Prompt(ctx context.Context, messages []Message) (string, error) {
	return c.render(ctx, messages, true)
}

// TurnEnd is the special token that the template puts after what the assistant says; None where it puts none.
// Generation ends there, whether or not the model's configuration lists that token.
func (c *Chat) TurnEnd(ctx context.Context, tok tokenizer.Tokenizer) (int32, error) {
	const mark = "\ufffcanswer\ufffc" // which no template has
	text, err := c.render(ctx, []Message{{User, "question"}, {Assistant, mark}}, false)
	if err != nil {
		return tokenizer.None, err
	}
	_, after, _ := strings.Cut(text, mark)
	id, n, isSpecial := frontToken(tok, after)
	if n == 0 || !isSpecial {
		return tokenizer.None, nil
	}
	return id, nil
}

func (c *Chat) render(ctx context.Context, messages []Message, addPrompt bool) (string, error) {
	source, err := c.config.Source(false)
	if err != nil {
		return "", err
	}
	in := template.Input{AddGenerationPrompt: addPrompt, Now: now}
	if in.Extra, err = c.variables(nil); err != nil {
		return "", err
	}
	for _, m := range messages {
		in.Messages = append(in.Messages, message(m.Role, m.Content))
	}
	out, err := c.sources[source].Render(ctx, in)
	return out.Text, err
}
