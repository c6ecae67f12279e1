package template

// Conversation is a conversation as text, and the spans of it that the assistant wrote.
type Conversation struct {
	Text  string
	Spans []Span
	// Unended is set where the template writes nothing after the assistant's content in the last turn, so that the text
	// alone does not teach a model to stop. It is nil where {% generation %} blocks say what counts.
	Unended *Unended
	// OtherPrompt are the messages whose turns stand after another prompt than a generation gets there, such as one that
	// does not begin thoughts.
	OtherPrompt []int
}

// Unended is the text that a template writes around turns that end in nothing. Only a tokenizer can tell which part of
// it ends a turn.
type Unended struct {
	// Tail is what the template writes after the last text of a turn that is the last one: white space, or after a call
	// of a tool what closes the call.
	Tail string
	// Next is the text between the last of the turns and the content of a message that follows it: what a tool
	// returned if the turn calls one, else a question. It is "" where the template does not render that.
	Next string
	// Header is the text before the content of a question that begins a conversation.
	Header string
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
