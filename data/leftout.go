package data

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/data/template"
)

// isSaid reports whether the text of a key that templates do not know is looked for: if it is more than a word, since it
// can then be content.
func isSaid(key, text string) bool { return !isLabel(key) && len(strings.Fields(text)) > 1 }

// checkNothingLeftOut refuses a conversation of which the template leaves out a text, or writes one elsewhere than in
// its message: some templates skip keys that they do not know, and the model would be trained to answer questions that
// it does not see, not to think, or to call one tool of two. What may be missing is counted.
func checkNothingLeftOut(ctx context.Context, t *template.Template, contract *template.Contract, in template.Input,
	found template.Conversation) (left LeftOut, err error) {
	texts, err := t.Texts(ctx, in, found, isSaid)
	if err != nil {
		return left, err
	}
	wanted := map[int]bool{} // messages that have spans
	for _, s := range found.Spans {
		wanted[s.Message] = true
	}
	counted := map[saidOnce]bool{} // by what is counted once
	for i, x := range texts {
		isAssistant := x.Message >= 0 && roleAt(in, x.Message) == roleAssistant
		own, others := 0, 0 // places in turns that are trained: of its message, of others
		for _, span := range x.In {
			switch {
			case span < 0:
			case found.Spans[span].Message == x.Message || found.Spans[span].Message < 0:
				own++
			default:
				others++
			}
		}
		switch {
		case isAssistant && own > 1 && x.Part != template.CallName: // a closing tag has the name again
			return left, fmt.Errorf("the chat template writes %s twice", describe(in, x))
		case !isAssistant && own+others > 0 && !contract.HasBlocks():
			return left, fmt.Errorf("the chat template writes %s inside of what the assistant says", describe(in, x))
		case own > 0, len(x.In) > 0 && !(isAssistant && wanted[x.Message]):
			continue
		case len(x.In) > 0:
			return left, fmt.Errorf("the chat template writes %s outside of the assistant's turn", describe(in, x))
		}
		isPast := isAssistant && x.Message+1 < len(in.Messages) && !isAnswer(in, texts, i)
		if isPast {
			if isPast, err = writesLast(ctx, t, contract, in, x); err != nil {
				return left, err
			}
		}
		if !isPast {
			return left, leavesOut(in, x)
		}
		left.count(counted, x)
	}
	return left, nil
}

// isAnswer reports whether a text is what a message says in the end: no template may leave that out, whatever follows.
// Next to calls it can be a thought, as to the template of gpt-oss.
func isAnswer(in template.Input, texts []template.Text, i int) bool {
	x := texts[i]
	if x.Part != template.Content || i+1 < len(texts) && texts[i+1].Part == x.Part && texts[i+1].Message == x.Message {
		return false
	}
	calls, _ := in.Messages[x.Message].(*template.Dict).Get("tool_calls")
	list, ok := calls.(*template.List)
	return !ok || len(list.Items()) == 0
}

// saidOnce names something that is counted once if it is left out: the thoughts of a message, a call, or a content.
type saidOnce struct {
	message, call int
	of            template.Part
}

func (l *LeftOut) count(counted map[saidOnce]bool, x template.Text) {
	p := saidOnce{message: x.Message, of: x.Part}
	if x.Part == template.Argument {
		p.of = template.CallName
	}
	if p.of == template.CallName {
		p.call = x.Index
	}
	if counted[p] {
		return
	}
	counted[p] = true
	switch p.of {
	case template.Thoughts:
		l.Thoughts++
	case template.CallName:
		l.Calls++
	default:
		l.Contents++
	}
}

// writesLast reports whether the template writes a text of a turn where that turn is the last one: by its contract or,
// where that does not know the turn's form, by a render of the messages up to it.
func writesLast(ctx context.Context, t *template.Template, contract *template.Contract, in template.Input, x template.Text) (bool, error) {
	if writes, known := contract.WritesLast(x); writes && known {
		return true, nil
	}
	if x.Part == template.CallName || x.Part == template.Argument {
		return false, nil
	}
	in.Messages = in.Messages[: x.Message+1 : x.Message+1]
	out, err := t.Render(ctx, in)
	if err != nil {
		return false, ctx.Err()
	}
	texts, err := t.Texts(ctx, in, template.Conversation{Text: out.Text}, isSaid)
	if err != nil {
		return false, ctx.Err()
	}
	return slices.ContainsFunc(texts, func(other template.Text) bool {
		return other.Message == x.Message && other.Part == x.Part && other.Key == x.Key && other.Said == x.Said && len(other.In) > 0
	}), nil
}

func roleAt(in template.Input, message int) string {
	role, _ := textOf(in.Messages[message].(*template.Dict), "role")
	return role
}

// describe names a text for people.
func describe(in template.Input, x template.Text) string {
	switch x.Part {
	case template.ToolName, template.ToolText:
		return fmt.Sprintf("tool %d (%s)", x.Index, nameOfTool(in.Tools[x.Index]))
	case template.CallName, template.Argument:
		return fmt.Sprintf("call %d of message %d", x.Index, x.Message)
	case template.OtherKey:
		return fmt.Sprintf("%q of message %d (role %s)", x.Key, x.Message, roleAt(in, x.Message))
	}
	if x.Key != "content" {
		return fmt.Sprintf("%q of message %d (role %s)", shownKey(in.Messages[x.Message].(*template.Dict), x.Key), x.Message,
			roleAt(in, x.Message))
	}
	return fmt.Sprintf("what message %d says (role %s)", x.Message, roleAt(in, x.Message))
}

// leavesOut is the error of a text that the template does not write.
func leavesOut(in template.Input, x template.Text) error {
	switch x.Part {
	case template.ToolName, template.ToolText:
		return fmt.Errorf("the chat template leaves out tool %d (%s): it knows no tools; set tools: drop in "+
			"the entry to train without them, or chat_template to one that knows tools", x.Index, nameOfTool(in.Tools[x.Index]))
	case template.CallName, template.Argument:
		return leavesOutCall(in, x)
	}
	if x.Key == "content" {
		return fmt.Errorf("the chat template leaves out %s", describe(in, x))
	}
	return fmt.Errorf("the chat template leaves out %s: it does not know that key; remove it, or set chat_template to one that does",
		describe(in, x))
}

func leavesOutCall(in template.Input, x template.Text) error {
	calls, _ := in.Messages[x.Message].(*template.Dict).Get("tool_calls")
	list, _ := calls.(*template.List)
	name := nameOfTool(list.Items()[x.Index])
	switch {
	case x.Part == template.Argument:
		return fmt.Errorf("the chat template leaves out the argument %s of the call of %s in message %d: set chat_template to "+
			"one that writes the arguments of calls", shown(x.Key), name, x.Message)
	case x.Index > 0:
		return fmt.Errorf("the chat template leaves out call %d of %d in message %d (%s): it writes one call of a message; make each call a "+
			"message of its own, with its result after it, or set chat_template to one that writes several",
			x.Index+1, len(list.Items()), x.Message, name)
	}
	return fmt.Errorf("the chat template leaves out the call of %s in message %d: it knows no calls of tools; "+
		"set chat_template to one that does", name, x.Message)
}

// nameOfTool is the name in a tool or a call.
func nameOfTool(v template.Value) string {
	d, ok := v.(*template.Dict)
	if !ok {
		return ""
	}
	if inner, ok := d.Get("function"); ok {
		if function, ok := inner.(*template.Dict); ok {
			d = function
		}
	}
	name, _ := textOf(d, "name")
	return shown(name)
}

// shownKey is the key that the row has: one of its names where reasoning has several with the same text.
func shownKey(m *template.Dict, key string) string {
	if text, _ := m.Get(key); slices.Contains(reasoningKeys, key) {
		for _, k := range m.Keys() {
			name := string(k.(template.String))
			if other, _ := m.Get(name); slices.Contains(reasoningKeys, name) && other == text {
				return name
			}
		}
	}
	return key
}
