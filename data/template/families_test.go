package template

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
)

// familyMessages are the messages that testdata/families.txt names.
var familyMessages = map[string]string{
	"system":      `{"role": "system", "content": "Be brief."}`,
	"question":    `{"role": "user", "content": "1+2?"}`,
	"answer":      `{"role": "assistant", "content": "It is 3."}`,
	"thought":     `{"role": "assistant", "content": "It is 3.", "thinking": "so"}`,
	"inContent":   `{"role": "assistant", "content": "<think>so</think>It is 3."}`,
	"call":        `{"role": "assistant", "content": "", ` + familyCall,
	"saidCall":    `{"role": "assistant", "content": "well", ` + familyCall,
	"thoughtCall": `{"role": "assistant", "content": "", "thinking": "well", ` + familyCall,
	"result":      `{"role": "tool", "name": "add", "tool_call_id": "c1", "content": "3"}`,
}

const familyCall = `"tool_calls": [{"id": "c1", "type": "function",
	"function": {"name": "add", "arguments": {"a": 1}}}]}`

// family is a template of testdata/families.txt, with conversations and what is found in them.
type family struct {
	name, source string
	cases        []string
}

func readFamilies(t testing.TB) (all []family) {
	t.Helper()
	doc, err := os.ReadFile("testdata/families.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range strings.Split(string(doc), "\n### ")[1:] {
		name, rest, _ := strings.Cut(text, "\n")
		source, cases, _ := strings.Cut(rest, "\n> ")
		source = strings.ReplaceAll(strings.ReplaceAll(source, "\n", ""), `\n`, "\n")
		all = append(all, family{name, source, strings.Split(cases, "\n> ")})
	}
	return all
}

// TestFindTurnsOfFamilies states what the model has to write for templates with the structure of public ones, in
// conversations with tools and thoughts.
func TestFindTurnsOfFamilies(t *testing.T) {
	tried := 0
	for _, family := range readFamilies(t) {
		tmpl, err := Parse(family.source)
		if err != nil {
			t.Errorf("%s: %v", family.name, err)
			continue
		}
		for _, c := range family.cases {
			tried++
			conversation, want, _ := strings.Cut(strings.TrimSpace(c), "\n")
			found, err := tmpl.FindTurns(context.Background(), familyInput(t, strings.Fields(conversation)), AllTurns)
			var lines []string
			for _, s := range found.Spans {
				turn := strings.ReplaceAll(found.Text[s.Start:s.End], "\n", `\n`)
				lines = append(lines, fmt.Sprintf("= %d:%s", s.Message, turn))
			}
			got := strings.Join(lines, "\n")
			if part, isError := strings.CutPrefix(want, "! "); isError {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("%s\n%s: got\n%s and the error %v, want %q", family.name, conversation, got, err, part)
				}
			} else if err != nil || got != want {
				t.Errorf("%s\n%s: got\n%s, %v, want\n%s", family.name, conversation, got, err, want)
			}
		}
	}
	if tried < 20 {
		t.Errorf("only %d conversations were tried", tried)
	}
}

func familyInput(t testing.TB, names []string) Input {
	t.Helper()
	var all []string
	for _, name := range names {
		message, ok := familyMessages[name]
		if !ok {
			t.Fatalf("no message %q", name)
		}
		all = append(all, message)
	}
	list, err := ParseJSON([]byte("[" + strings.Join(all, ", ") + "]"))
	if err != nil {
		t.Fatal(err)
	}
	return Input{Messages: list.(*List).Items(),
		Extra: map[string]Value{"bos_token": String("<s>"), "eos_token": String("</s>")}}
}
