package template

import (
	"errors"
	"strings"
)

// mark stands for a content: private characters, which no template looks for and no text has.
const mark = "\U0010F0D1\U0010F0D2\U0010F0D3"

// nextMark stands for the content of the message after the one with the mark.
const nextMark = "\U0010F0D4\U0010F0D5\U0010F0D6"

// markings put the mark into message i, in ways that are tried in this order.
var markings = []func(messages []Value, i int) ([]Value, error){markedContent, markedAnswer, markedCall}

// markedContent is message i with the mark as its content.
func markedContent(messages []Value, i int) ([]Value, error) { return withContent(messages, i, mark) }

// withContent is message i with another content.
func withContent(messages []Value, i int, text string) ([]Value, error) {
	d, ok := messages[i].(*Dict)
	if !ok {
		return nil, errors.New("it is not an object")
	}
	d = d.clone()
	content, _ := d.Get("content")
	if parts, ok := content.(*List); ok {
		d.Set("content", partsWith(parts, text))
	} else {
		d.Set("content", String(text))
	}
	out := append([]Value(nil), messages...)
	out[i] = d
	return out, nil
}

// partsWith replaces the first text.
func partsWith(parts *List, text string) Value {
	items := append([]Value(nil), parts.items...)
	for j, item := range items {
		if part, ok := item.(*Dict); ok {
			if _, ok := part.Get("text"); ok {
				part = part.clone()
				part.Set("text", String(text))
				items[j] = part
				return &List{items}
			}
		}
	}
	return String(text)
}

// endOfThoughts is the tag that ends thoughts which stand in the content.
const endOfThoughts = "</think>"

// markedAnswer is message i with the mark instead of what its content says after thoughts.
func markedAnswer(messages []Value, i int) ([]Value, error) {
	content, _ := contentText(messages[i])
	at := strings.LastIndex(content, endOfThoughts)
	if at < 0 {
		return nil, errors.New("its content has no thoughts")
	}
	return withContent(messages, i, content[:at+len(endOfThoughts)]+mark)
}

// markedCall is message i with the mark as the argument of its last call, for templates that write no content next to
// a call, or write the result between the two.
func markedCall(messages []Value, i int) ([]Value, error) {
	return withCall(messages, i, func(call *Dict) *Dict {
		arguments := NewDict(1)
		arguments.Set("x", String(mark))
		return withFunction(call, "arguments", arguments)
	})
}

// markedCallName is message i with the mark as the name of its last call, for templates that write no arguments.
func markedCallName(messages []Value, i int) ([]Value, error) {
	return withCall(messages, i, func(call *Dict) *Dict { return withFunction(call, "name", String(mark)) })
}

// withFunction is a call with another value of its function, which it has inside or is itself.
func withFunction(call *Dict, key string, v Value) *Dict {
	call = call.clone()
	inner, _ := call.Get("function")
	function, ok := inner.(*Dict)
	if !ok {
		call.Set(key, v)
		return call
	}
	function = function.clone()
	function.Set(key, v)
	call.Set("function", function)
	return call
}

// markedCallWithoutID is markedCall without an id, which some templates write only where an answer follows.
func markedCallWithoutID(messages []Value, i int) ([]Value, error) {
	messages, err := markedCall(messages, i)
	if err != nil {
		return nil, err
	}
	return withCall(messages, i, func(call *Dict) *Dict { return except(call, "id") })
}

// withCall is message i with a change to its last call.
func withCall(messages []Value, i int, change func(call *Dict) *Dict) ([]Value, error) {
	d, ok := messages[i].(*Dict)
	if !ok {
		return nil, errors.New("it is not an object")
	}
	calls, _ := d.Get("tool_calls")
	list, ok := calls.(*List)
	if !ok || len(list.items) == 0 {
		return nil, errors.New("it calls no tool")
	}
	items := append([]Value(nil), list.items...)
	call, ok := items[len(items)-1].(*Dict)
	if !ok {
		return nil, errors.New("its call is not an object")
	}
	items[len(items)-1] = change(call)
	d = d.clone()
	d.Set("tool_calls", &List{items})
	out := append([]Value(nil), messages...)
	out[i] = d
	return out, nil
}

// except is a copy of a dict without a key.
func except(d *Dict, key string) *Dict {
	out := NewDict(d.Len())
	for i, k := range d.Keys() {
		if name, ok := k.(String); ok && string(name) != key {
			out.Set(string(name), d.At(i))
		}
	}
	return out
}

// spoken is a message that says the mark.
func spoken(role string) *Dict { return spokenBy(role, mark) }

func spokenBy(role, text string) *Dict {
	d := NewDict(2)
	d.Set("role", String(role))
	d.Set("content", String(text))
	return d
}

// contentText is a message's content where it is text, or the last text of its parts.
func contentText(message Value) (string, bool) {
	d, ok := message.(*Dict)
	if !ok {
		return "", false
	}
	content, _ := d.Get("content")
	switch content := content.(type) {
	case String:
		return string(content), true
	case *List:
		for i := len(content.items) - 1; i >= 0; i-- {
			if part, ok := content.items[i].(*Dict); ok {
				if text, ok := part.Get("text"); ok {
					s, ok := text.(String)
					return string(s), ok
				}
			}
		}
	}
	return "", false
}

// afterMark returns the text after the mark in a rendered conversation that has one.
func (f *turnFinder) afterMark(messages []Value) (string, bool) {
	text, err := f.render(messages, false)
	parts := strings.Split(text, mark)
	if err != nil || len(parts) != 2 {
		return "", false
	}
	return parts[1], true
}

// afterMessage returns the text after the content of the last of the messages, with more messages after it or with the
// generation prompt: that is the end of the turn and the header of the next.
func (f *turnFinder) afterMessage(messages []Value, prompt bool, more ...Value) (string, bool) {
	if len(messages) == 0 {
		return "", false
	}
	messages, err := markedContent(messages, len(messages)-1)
	if err != nil {
		return "", false
	}
	text, err := f.render(append(messages, more...), prompt)
	parts := strings.Split(text, mark)
	if err != nil || len(parts) != 2 {
		return "", false
	}
	return parts[1], parts[1] != ""
}

// between returns the text between the content of the last of the messages and the mark of the next one, which more
// may follow.
func (f *turnFinder) between(messages []Value, more ...Value) (string, bool) {
	if len(messages) == 0 {
		return "", false
	}
	messages, err := markedContent(messages, len(messages)-1)
	if err != nil {
		return "", false
	}
	text, err := f.render(append(messages, more...), false)
	parts := strings.Split(text, mark)
	if err != nil || len(parts) != 3 {
		return "", false
	}
	return parts[1], true
}
