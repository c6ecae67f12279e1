package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/train/generate"
)

type chatCmd struct {
	speaker      `embed:"" set:"max_tokens=512"`
	System       string `placeholder:"TEXT" help:"System prompt."`
	ChatTemplate string `complete:"auto|FILE" default:"auto" help:"auto (the run's, or the model's), or the path of a Jinja template."`
	kwargs
	JSON bool `help:"Print each answer as a JSON object in a line."`
}

// kwargs is the flag for variables of a chat template.
type kwargs struct {
	ChatTemplateKwargs string `placeholder:"JSON" help:"Variables of the chat template, such as {\"enable_thinking\": false}."`
}

// parsed are the variables; nil without the flag.
func (k *kwargs) parsed() (data.Kwargs, error) {
	if k.ChatTemplateKwargs == "" {
		return nil, nil
	}
	all, err := data.ParseKwargs(k.ChatTemplateKwargs)
	if err != nil {
		return nil, badFlag("--chat-template-kwargs: %w", err)
	}
	return all, nil
}

func (*chatCmd) Help() string {
	return `Each line of standard input is a message, and each answer is printed as it comes. Ctrl-C stops an answer, and
Ctrl-D ends the program.

` + chatCommands + `

The conversation is rendered with the chat template, as in training. Each message costs what is new of it.

Examples:

  millrace chat --model runs/smollm2-gsm8k
  echo "How many eggs are in 7 boxes of 12?" | millrace chat --model runs/smollm2-gsm8k --temperature 0`
}

// chatCommands is the answer to /help.
const chatCommands = `A line that begins with a slash is a command:

  /help            show this
  /clear, /reset   forget the conversation, except the system prompt
  /exit, /quit     end, as Ctrl-D does
  //text           send the message /text

A backslash at the end of a line continues the message in the next line.`

// Run talks.
func (c *chatCmd) Run(p *program) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	kwargs, err := c.kwargs.parsed()
	if err != nil {
		return err
	}
	talk, err := generate.OpenConversation(p.ctx, p.env, generate.ChatOptions{Options: o, ChatTemplate: c.ChatTemplate,
		Kwargs: kwargs, System: c.System})
	if err != nil {
		return err
	}
	lines := newMessages(p.stdin)
	if lines.typed {
		p.stderr.line("Write a message. /help shows what else can be written, Ctrl-C stops an answer, and /exit ends " +
			"the talk.")
	}
	for err == nil {
		if lines.typed {
			fmt.Fprint(p.stderr, "> ")
		}
		var text string
		if text, err = lines.next(p.ctx); err != nil {
			break
		}
		command, isCommand := strings.CutPrefix(strings.TrimSpace(text), "/")
		switch {
		case !isCommand && command == "":
		case !isCommand:
			err = c.answer(p, talk, text, lines.typed)
		case strings.HasPrefix(command, "/"): // the message begins with one slash
			err = c.answer(p, talk, strings.Replace(text, "/", "", 1), lines.typed)
		case command == "exit" || command == "quit":
			err = io.EOF
		case command == "clear" || command == "reset":
			talk.Clear()
		case command == "help":
			p.stderr.line("%s", chatCommands)
		default:
			err = badFlag("there is no command /%s: /help lists those that there are; write //%s to send it as a message",
				command, command)
			if lines.typed {
				p.stderr.line("%s", oneLine(err))
				err = nil
			}
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
		if lines.typed {
			fmt.Fprintln(p.stderr)
		}
	}
	return errors.Join(err, talk.Close())
}

// answer prints the model's answer to a message. A user who types reads an error, and may say something else.
func (c *chatCmd) answer(p *program, talk *generate.Conversation, text string, typed bool) error {
	var stop <-chan struct{}
	if typed { // lines of a pipe are not a conversation: an interrupt ends the program
		var done func()
		stop, done = p.answer.begin()
		defer done()
	}
	var out io.Writer
	screen := &output{w: p.text()}
	if !c.JSON {
		out = screen
	}
	a, err := talk.Say(p.ctx, stop, text, out)
	switch {
	case err != nil && typed && p.ctx.Err() == nil && screen.err == nil:
		p.stderr.line("%s", oneLine(err))
		return nil
	case err != nil:
		return err
	}
	if c.JSON {
		return p.printJSONLine(a)
	}
	if typed && a.Finish == generate.FinishLength {
		fmt.Fprintf(p.stderr, " [--max-tokens %d]", c.MaxTokens)
	}
	if strings.HasSuffix(a.Text, "\n") {
		return nil
	}
	return p.printf("\n")
}

// output takes answers. It keeps the first error: the conversation cannot continue after it.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(text []byte) (n int, err error) {
	if n, err = o.w.Write(text); o.err == nil {
		o.err = err
	}
	return n, err
}

// messages are the lines of standard input, which a user may be typing.
type messages struct {
	typed bool
	lines chan string
	err   error // when lines is closed
}

// newMessages begins to read.
func newMessages(stdin io.Reader) *messages {
	m := &messages{lines: make(chan string), typed: terminal.Is(stdin)}
	fault.Go(func() {
		defer close(m.lines)
		in := bufio.NewScanner(stdin)
		in.Buffer(nil, maxPromptBytes)
		for in.Scan() {
			m.lines <- in.Text()
		}
		m.err = in.Err()
	})
	return m
}

// next returns the next message; at the end of the input it is io.EOF.
func (m *messages) next(ctx context.Context) (string, error) {
	var text strings.Builder
	for {
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case line, ok := <-m.lines:
			switch {
			case ok:
			case errors.Is(m.err, bufio.ErrTooLong):
				return "", badFlag("standard input: a line has more than %d MiB; shorten it", maxPromptBytes>>20)
			case m.err != nil:
				return "", fmt.Errorf("standard input: %w", m.err)
			case text.Len() > 0:
				return text.String(), nil
			default:
				return "", io.EOF
			}
			more, continues := strings.CutSuffix(line, `\`)
			text.WriteString(more)
			if !continues {
				return text.String(), nil
			}
			text.WriteString("\n")
			if text.Len() > maxPromptBytes {
				return "", badFlag("standard input: a message has more than %d MiB; shorten it", maxPromptBytes>>20)
			}
		}
	}
}
