package template

import "strings"

// Conversation is a conversation as text, and the spans of it that the assistant wrote.
type Conversation struct {
	Text  string
	Spans []Span
	// Unended is set where the template writes nothing after the assistant's content in the last turn, so that the text
	// alone does not teach a model to stop. It is nil where {% generation %} blocks say what counts.
	Unended *Unended
}

// Unended is the text that a template writes around turns that end in nothing. Only a tokenizer can tell which part of
// it ends a turn.
type Unended struct {
	// Next is the text between the last of the turns and the content of a message that follows it: what a tool
	// returned if the turn calls one, else a question. It is "" where the template does not render that.
	Next string
	// Header is the text before the content of a question that begins a conversation.
	Header string
}

// unended finds what follows the last of the turns, if the template does not end it.
func (f *turnFinder) unended(last Span) *Unended {
	i := last.Message
	message, ok := f.in.Messages[i].(*Dict)
	if !ok {
		return nil
	}
	_, hasCalls := message.Get("tool_calls")
	content, _ := contentText(message)
	content = strings.TrimSpace(content)
	isSure := !hasCalls && content != ""
	if isSure && !strings.HasSuffix(strings.TrimSpace(f.text[last.Start:last.End]), content) {
		return nil
	}
	messages, err := markedContent(f.in.Messages[:i+1:i+1], i)
	if err != nil {
		return nil
	}
	// The content may end as a turn does, so that is asked once more with the mark.
	tail, ok := f.afterMark(append(messages[:i:i], except(messages[i].(*Dict), "tool_calls")))
	if ok && strings.TrimSpace(tail) != "" || !ok && !isSure {
		return nil
	}
	u := &Unended{}
	if hasCalls {
		tail, _ = f.afterMark(messages)
	}
	question := spoken("user")
	following := []*Dict{question}
	if hasCalls {
		following = []*Dict{toolAnswer(message), question}
	}
	for _, next := range following {
		if text, err := f.render(append(messages[:i+1:i+1], next), false); err == nil {
			if parts := strings.Split(text, mark); len(parts) == 3 {
				if u.Next, ok = strings.CutPrefix(parts[1], tail); !ok {
					u.Next = strings.TrimPrefix(parts[1], strings.TrimRightFunc(tail, isSpace))
				}
				break
			}
		}
	}
	if text, err := f.render([]Value{question}, false); err == nil {
		u.Header, _, _ = strings.Cut(text, mark)
	}
	return u
}

// toolAnswer makes the answer of the first tool that a message calls: the mark.
func toolAnswer(message *Dict) *Dict {
	answer := spoken("tool")
	calls, _ := message.Get("tool_calls")
	if list, ok := calls.(*List); ok && len(list.items) > 0 {
		if call, ok := list.items[0].(*Dict); ok {
			if id, ok := call.Get("id"); ok {
				answer.Set("tool_call_id", id)
			}
			function, _ := call.Get("function")
			if d, ok := function.(*Dict); ok {
				if name, ok := d.Get("name"); ok {
					answer.Set("name", name)
				}
			}
		}
	}
	return answer
}
