package data

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestFormsOfLists: turns, calls and tools are read in each form in which files have them.
func TestFormsOfLists(t *testing.T) {
	const (
		talk  = "<user>a</s>\n<assistant>[b</s>]\n"
		calls = `<tools>{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}</tools>` +
			"\n<user>a</s>\n<assistant>[b<call>f {\"x\": 1}</s>]\n"
		noArguments = "<user>a</s>\n<assistant>[b<call>f {}</s>]\n"
	)
	turns := `[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]`
	quoted := func(s string) string {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
	}
	called := func(call string) string {
		return `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": ` + call + `}]}`
	}
	offered := func(call, tools string) string {
		return strings.TrimSuffix(called(call), "}") + `, "tools": ` + tools + "}"
	}
	const (
		call = `[{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]`
		tool = `{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}`
		bare = `{"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}`
	)
	for _, c := range []struct {
		kind      Type
		row, want string
	}{
		{Messages, `{"messages": ` + quoted(turns) + `}`, talk},
		{Messages, `{"messages": ` + quoted(quoted(turns)) + `}`, talk},
		{Messages, `{"messages": {"role": ["user", "assistant"], "content": ["a", "b"]}}`, talk},
		{Messages, `{"messages": [` + quoted(`{"role": "user", "content": "a"}`) + `, {"role": "assistant", "content": "b"}]}`, talk},
		{ShareGPT, `{"conversations": ` + quoted(`[{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]`) + `}`, talk},
		{ShareGPT, `{"conversations": {"from": ["human", "gpt"], "value": ["a", "b"]}}`, talk},
		{PromptResponse, `{"prompt": ` + quoted(`[{"role": "user", "content": "a"}]`) + `, "response": ` + quoted(`[{"role": "assistant", "content": "b"}]`) + `}`, talk},
		{PromptResponse, `{"prompt": {"role": ["user"], "content": ["a"]}, "response": {"role": ["assistant"], "content": ["b"]}}`, talk},
		{PromptResponse, `{"prompt": "[{\"x\": 1}]", "response": "b"}`, "<user>[{\"x\": 1}]</s>\n<assistant>[b</s>]\n"},
		{PromptResponse, `{"system": "S", "prompt": "c", "response": "d", "history": [["a", "b"]]}`, "<system>S</s>\n<user>a</s>\n<assistant>[b</s>]\n<user>c</s>\n<assistant>[d</s>]\n"},
		{PromptResponse, `{"prompt": "a", "response": "b", "history": ` + quoted(`[["q", "r"]]`) + `}`, "<user>q</s>\n<assistant>[r</s>]\n" + talk},
		{PromptResponse, `{"prompt": "a", "response": "b", "tools": [{"name": "f"}]}`, `<tools>{"type": "function", "function": {"name": "f"}}</tools>` + "\n" + talk},
		{Alpaca, `{"instruction": "a", "output": "b", "tools": "[{\"name\": \"f\"}]"}`, `<tools>{"type": "function", "function": {"name": "f"}}</tools>` + "\n" + talk},
		{PromptResponse, `{"system": "S", "prompt": [{"role": "user", "content": "a"}], "response": [{"role": "assistant", "content": "b"}]}`, "<system>S</s>\n" + talk},
		{Messages, `{"system": "S", "messages": ` + turns + `}`, "<system>S</s>\n" + talk},
		{Messages, `{"system": "S", "messages": [{"role": "system", "content": "S"}, ` + turns[1:] + `}`, "<system>S</s>\n" + talk},
		{Messages, offered(call, "["+tool+"]"), calls},
		{Messages, offered(quoted(call), quoted("["+tool+"]")), calls},
		{Messages, offered(quoted(quoted(call)), "["+quoted(tool)+"]"), calls},
		{Messages, offered(`[`+quoted(`{"name": "f", "arguments": "{\"x\": 1}"}`)+`]`, "["+bare+"]"), calls},
		{Messages, offered(`{"type": ["function"], "function": [{"name": "f", "arguments": "\"{\\\"x\\\": 1}\""}]}`,
			`[{"type": "function", "name": "f", "parameters": {"type": "object", "properties": "{\"x\": {\"type\": \"integer\"}}"}}]`), calls},
		{Messages, offered(`{"name": "f", "arguments": {"x": 1}}`, `[{"name": "f", "parameters": `+quoted(`{"type": "object", "properties": {"x": {"type": "integer"}}}`)+`}]`), calls},
		{Messages, called(`[{"function": {"name": "f", "arguments": ""}}]`), noArguments},
		{Messages, called(`[{"function": {"name": "f", "arguments": " "}}]`), noArguments},
		{Messages, called(`[{"function": {"name": "f", "arguments": null}}]`), noArguments},
		{Messages, called(`[{"function": {"name": "f", "arguments": "{}"}}]`), noArguments},
		{Messages, called(`[{"id": "1", "type": "function", "name": "f", "arguments": []}]`), noArguments},
		{Messages, called(`[{"function": ` + quoted(`{"name": "f"}`) + `}]`), noArguments},
		{ShareGPT, `{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "tool_calls": [{"name": "f", "arguments": "{}"}]}]}`, noArguments},
	} {
		chat := chatOf(t, chatML)
		chat.All = true
		d, err := prepare(t, Source{Type: c.kind, Path: write(t, t.TempDir(), "a.jsonl", c.row)}, Options{Renderer: chat})
		if err != nil {
			t.Errorf("%s: %v", c.row, err)
		} else if diff := cmp.Diff([]string{c.want}, marked(d)); diff != "" {
			t.Errorf("%s: %s", c.row, diff)
		}
	}
	for _, c := range []struct {
		kind      Type
		row, want string
	}{
		{Messages, `{"messages": "[{'role': 'user', 'content': 'a'}]"}`, `field "messages" is not a list of turns: it is not JSON`},
		{Messages, `{"messages": {"role": ["user", "assistant"], "content": ["a"]}}`, `field "messages" is not a list of turns: it is an object`},
		{Messages, called(`"[{\"function\": {\"name\": \"f\""`), `message 1: "tool_calls": it is not JSON`},
		{Messages, called(`3`), `message 1: "tool_calls": it is a number, not a list`},
		{Messages, called(`[{"function": {"name": "f", "arguments": "{\"city\": \"Os"}}]`), `message 1: "tool_calls": call 0: "arguments" is not JSON`},
		{Messages, called(`[{"function": {"name": "f", "arguments": "not json"}}]`), `"arguments" is not JSON`},
		{Messages, called(`[{"function": {"name": "f", "arguments": 3}}]`), `"arguments" is a number, not an object`},
		{Messages, called(`[{"function": {"name": "f", "arguments": "3"}}]`), `"arguments" is a number, not an object`},
		{Messages, called(`[{"function": {"name": "f", "arguments": [1]}}]`), `"arguments" is a list, not an object`},
		{Messages, called(`[{"function": {"name": "f", "parameters": {"x": 1}}}]`), `parameters is not read in a function of a call: write arguments`},
		{Messages, called(`[{"name": "f", "args": {"x": 1}}]`), `args is not read in a function of a call: write arguments`},
		{Messages, called(`[{"type": "custom", "custom": {"name": "f"}}]`), `"type" is "custom": only calls of type function`},
		{Messages, called(`[{"function": {"name": "f"}, "arguments": {"x": 1}}]`), `arguments is unknown in a call`},
		{Messages, called(`[null]`), `call 0: it is null`},
		{Messages, offered(call, `[{"name": "f", "input_schema": {"type": "object"}}]`), `tool 0: input_schema is not read in a tool: write parameters`},
		{Messages, offered(call, `[{"name": "f", "parameters": "{\"type\": "}]`), `tool 0: "parameters" is not JSON`},
		{Messages, offered(call, `[{"type": "web_search"}]`), `tool 0: the function: "name" is missing`},
		{Messages, offered(call, `{"name": "f"}`), `field "tools" is not a list of tools: it is an object`},
		{Messages, `{"system": "S", "messages": [{"role": "system", "content": "T"}, ` + turns[1:] + `}`, `message 0: it is another system prompt than "system" of the row`},
		{Messages, `{"messages": [{"role": "user", "content": "a", "tool_calls": ` + call + `}, {"role": "assistant", "content": "b"}]}`, "message 0: the message has tool_calls, and the role is user"},
		{PromptResponse, `{"prompt": "a", "response": 3}`, `field "response" is not a string, but a number: write it as a text`},
		{PromptResponse, `{"prompt": "a", "response": true}`, `field "response" is not a string, but true`},
		{PromptResponse, `{"prompt": "a", "response": "b", "history": [["a", null]]}`, `number 0 has a text and null`},
		{PromptResponse, `{"prompt": "a", "response": "b", "history": [{"role": "user"}]}`, `field "history" is not a list of pairs`},
		{PromptResponse, `{"history": [["a", "b"]], "prompt": [{"role": "user", "content": "a"}], "response": [{"role": "assistant", "content": "b"}]}`, `the row has "history", and its prompt is a list`},
		{PromptResponse, `{"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 1}], "response": [{"role": "assistant", "content": "b"}]}`, `weight is 1, and the message is in the prompt`},
	} {
		chat := chatOf(t, chatML)
		chat.All = true
		_, err := prepare(t, Source{Type: c.kind, Path: write(t, t.TempDir(), "a.jsonl", c.row)}, Options{Renderer: chat})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want %q", c.row, err, c.want)
		}
	}
}

// TestListsAsRows: a row that is a list of turns is a conversation, in a file that is one array; else the line says the
// form.
func TestListsAsRows(t *testing.T) {
	const talk = `[{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]`
	for content, want := range map[string]string{
		"[" + talk + ", " + talk + "]": "",
		"[\n " + talk + "\n]":          "",
		talk + "\n" + talk + "\n":      `the row is one turn of a conversation; write each conversation as one row, such as {"conversations": [...]}`,
		talk + "\n":                    `the row is one turn`,
	} {
		d, err := prepare(t, Source{Type: ShareGPT, Path: write(t, t.TempDir(), "a.jsonl", content)}, Options{Renderer: chatOf(t, chatML)})
		switch {
		case want == "" && (err != nil || marked(d)[0] != "<user>a</s>\n<assistant>[b</s>]\n"):
			t.Errorf("%s: %v", content, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: error %v, want %q", content, err, want)
		}
	}
}

// TestTablesOfConversations: a cell of a table in text may hold the list of messages as JSON.
func TestTablesOfConversations(t *testing.T) {
	path := write(t, t.TempDir(), "a.csv", "id,messages,tools\n1,\"[{\"\"role\"\": \"\"user\"\", \"\"content\"\": \"\"a\"\"}, {\"\"role\"\": \"\"assistant\"\", \"\"content\"\": \"\"b\"\"}]\",\n")
	d, err := prepare(t, Source{Type: Messages, Path: path}, Options{Renderer: chatOf(t, chatML)})
	if err != nil || marked(d)[0] != "<user>a</s>\n<assistant>[b</s>]\n" {
		t.Errorf("%v", err)
	}
	path = write(t, t.TempDir(), "a.csv", "prompt,response,system_prompt\na,b,be brief\n")
	if _, err := prepare(t, Source{Type: PromptResponse, Path: path}, Options{}); err == nil || !strings.Contains(err.Error(), `a.csv:2: the row has "system_prompt"`) {
		t.Errorf("a column that carries meaning: %v", err)
	}
	path = write(t, t.TempDir(), "a.csv", "prompt,response,tools\na,b,\"[{\"\"name\"\": \"\"f\"\"}]\"\n")
	if _, err := prepare(t, Source{Type: PromptResponse, Path: path}, Options{}); err == nil || !strings.Contains(err.Error(), `a.csv:2: field "tools" is not supported without a chat template`) {
		t.Errorf("tools without a template: %v", err)
	}
}
