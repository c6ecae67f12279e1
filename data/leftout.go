package data

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/millrace/millrace/data/template"
)

// labels are keys of messages that say something of a message and are not said: of OpenAI's format, and of public sets.
var labels = map[string]bool{"role": true, "name": true, "id": true, "tool_call_id": true, "model": true, "source": true, "language": true,
	"country": true, "state": true, "timestamp": true, "created_at": true, "finish_reason": true}

// checkNothingLeftOut refuses a text that lacks the content of a message, or a tool: some templates skip keys that they
// do not know, and the model would be trained to answer questions that it does not see, or not to think.
//
// The template may leave the assistant's content out of turns that others follow, if it writes it where the turn is the
// last one: templates for models that think drop thoughts of the past this way. The text of a key that templates do not
// know is looked for if it is more than a word, since it can then be content.
func checkNothingLeftOut(ctx context.Context, t *template.Template, in template.Input, text string) error {
	for i, v := range in.Messages {
		m := v.(*template.Dict)
		role, _ := textOf(m, "role")
		for k, key := range m.Keys() {
			name := string(key.(template.String))
			said, ok := m.At(k).(template.String)
			if !ok || labels[name] || name != "content" && len(strings.Fields(string(said))) < 2 && !isReasoning(name) || stands(string(said), text, role) {
				continue
			}
			if role == roleAssistant && i+1 < len(in.Messages) {
				upTo := in
				upTo.Messages = in.Messages[: i+1 : i+1]
				if out, err := t.Render(ctx, upTo); err == nil && stands(string(said), out.Text, role) {
					continue
				}
			}
			if name == "content" {
				return fmt.Errorf("the chat template leaves out what message %d says (role %s)", i, role)
			}
			return fmt.Errorf("the chat template leaves out %q of message %d (role %s): it does not know that key; remove it, or set chat_template to one that does",
				shownKey(m, name), i, role)
		}
		if err := checkCalls(m, i, text); err != nil {
			return err
		}
	}
	for i, v := range in.Tools {
		function, _ := v.(*template.Dict).Get("function")
		if d, ok := function.(*template.Dict); ok {
			if name, err := textOf(d, "name"); err == nil && !strings.Contains(text, name) {
				return fmt.Errorf("the chat template leaves out tool %d (%s): it knows no tools; set tools: drop in "+
					"the entry to train without them, or chat_template to one that knows tools", i, name)
			}
		}
	}
	return nil
}

// checkCalls refuses a text without the names of the tools that a message calls.
func checkCalls(m *template.Dict, i int, text string) error {
	calls, _ := m.Get("tool_calls")
	list, ok := calls.(*template.List)
	if !ok {
		return nil
	}
	for _, v := range list.Items() {
		function, _ := v.(*template.Dict)
		if function == nil {
			continue
		}
		if inner, ok := function.Get("function"); ok {
			function, _ = inner.(*template.Dict)
		}
		if function == nil {
			continue
		}
		if name, err := textOf(function, "name"); err == nil && !strings.Contains(text, name) {
			return fmt.Errorf("the chat template leaves out the call of %s in message %d: it knows no calls of tools; "+
				"set chat_template to one that does", shown(name), i)
		}
	}
	return nil
}

func isReasoning(key string) bool {
	for _, k := range reasoningKeys {
		if k == key {
			return true
		}
	}
	return false
}

// shownKey is the key that the row has: one of its names where reasoning has several with the same text.
func shownKey(m *template.Dict, key string) string {
	if text, _ := m.Get(key); isReasoning(key) {
		for _, k := range m.Keys() {
			name := string(k.(template.String))
			if other, _ := m.Get(name); isReasoning(name) && other == text {
				return name
			}
		}
	}
	return key
}

// tag matches the marks by which templates take thoughts out of a text: <think>, </think>, [/THINK], <channel|>.
var tag = regexp.MustCompile(`<[^<>\s]{1,40}>|\[[A-Z/ _]{1,40}\]`)

// stands reports whether a template has written what is said: as it is, or what a tool returns also as JSON. Of the
// assistant's texts, tags may have moved.
func stands(said, text, role string) bool {
	said = strings.TrimSpace(said)
	if strings.Contains(text, said) {
		return true
	}
	switch role {
	case roleTool:
		return strings.Contains(text, asJSON(said))
	case roleAssistant:
		pieces := tag.Split(said, -1)
		for _, piece := range pieces {
			if len(pieces) == 1 || !strings.Contains(text, strings.TrimSpace(piece)) {
				return false
			}
		}
		return true
	}
	return false
}

// asJSON is a text as the filter tojson writes it, without the quotes.
func asJSON(text string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(text) != nil {
		return text
	}
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(b.String()), `"`), `"`)
}
