package data

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/millrace/millrace/vfs"
)

// Prompt asks a model to continue it: a text, or a conversation that it answers. In JSON and YAML it is one
// text, or a list of messages.
type Prompt struct {
	Text     string
	Messages []Message // nil: Text
}

// MarshalJSON writes the text, or the list.
func (p Prompt) MarshalJSON() ([]byte, error) {
	if p.Messages != nil {
		return json.Marshal(p.Messages)
	}
	return json.Marshal(p.Text)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (p *Prompt) UnmarshalJSON(doc []byte) error {
	*p = Prompt{}
	if bytes.HasPrefix(doc, []byte("[")) {
		return json.Unmarshal(doc, &p.Messages)
	}
	return json.Unmarshal(doc, &p.Text)
}

// MarshalYAML writes the text, or the list.
func (p Prompt) MarshalYAML() (any, error) {
	if p.Messages != nil {
		return p.Messages, nil
	}
	return p.Text, nil
}

// UnmarshalYAML reads what MarshalYAML writes.
func (p *Prompt) UnmarshalYAML(unmarshal func(any) error) error {
	*p = Prompt{}
	err := unmarshal(&p.Text)
	if err != nil && unmarshal(&p.Messages) == nil {
		err = nil
	}
	return err
}

// Check refuses what no chat template can be given.
func (p Prompt) Check() error {
	for i, m := range p.Messages {
		switch {
		case m.Role != System && m.Role != User && m.Role != Assistant:
			return fmt.Errorf("message %d has the role %q: use %s, %s or %s", i+1, m.Role, System, User, Assistant)
		case i == len(p.Messages)-1 && m.Role != User:
			return fmt.Errorf("its last message is of the role %s: end with one of the user, which the model answers",
				m.Role)
		}
	}
	if p.Messages != nil && len(p.Messages) == 0 {
		return errors.New("it has no messages: write one of the user")
	}
	return nil
}

// maxPromptsBytes bounds a file of prompts.
const maxPromptsBytes = 16 << 20

// promptLine shows users a line of a file of prompts.
const promptLine = `{"prompt": "text"}`

// ReadPrompts reads a file of prompts: a JSON object in each line, with a prompt, which is a text, or with messages.
func ReadPrompts(path string) (all []Prompt, err error) {
	text, err := vfs.ReadFile(vfs.OS{}, path, maxPromptsBytes)
	if err != nil {
		return nil, fmt.Errorf("%w; name a file that has %s in each line", err, promptLine)
	}
	for i, line := range bytes.Split(text, []byte("\n")) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var row struct {
			Prompt   *string   `json:"prompt"`
			Messages []Message `json:"messages"`
		}
		err := json.Unmarshal(line, &row)
		switch {
		case err == nil && row.Prompt != nil && row.Messages == nil:
			all = append(all, Prompt{Text: *row.Prompt})
		case err == nil && row.Prompt == nil && row.Messages != nil:
			all = append(all, Prompt{Messages: row.Messages})
		default:
			return nil, fmt.Errorf("line %d of %s is no object with a prompt; write %s in each", i+1, path, promptLine)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s is empty; write %s in each line", path, promptLine)
	}
	return all, nil
}
