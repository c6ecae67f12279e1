package template

import (
	"errors"
	"fmt"
	"sort"
	"strings"
)

// Config has the keys of a tokenizer_config.json that are about chats.
type Config struct {
	// Templates are the sources by name; a single one is "default".
	Templates map[string]string
	// Tokens are the texts of special tokens by variable: bos_token, eos_token, pad_token and so on. They belong into
	// Input.Extra.
	Tokens map[string]Value
}

// ReadConfig reads a tokenizer_config.json. It does not see a chat_template.jinja in the same directory, whose text
// replaces Templates["default"].
func ReadConfig(data []byte) (Config, error) {
	v, err := ParseJSON(data)
	if err != nil {
		return Config{}, err
	}
	d, ok := v.(*Dict)
	if !ok {
		return Config{}, errors.New("a tokenizer's configuration must be a JSON object")
	}
	c := Config{Templates: map[string]string{}, Tokens: map[string]Value{}}
	for i, k := range d.Keys() {
		name := string(k.(String))
		switch {
		case name == "chat_template":
			if err := c.addTemplates(d.At(i)); err != nil {
				return Config{}, err
			}
		case strings.HasSuffix(name, "_token"):
			token := d.At(i)
			if added, ok := token.(*Dict); ok {
				token, _ = added.Get("content")
			}
			if text, ok := token.(String); ok {
				c.Tokens[name] = text
			}
		}
	}
	return c, nil
}

func (c *Config) addTemplates(v Value) error {
	switch v := v.(type) {
	case String:
		c.Templates["default"] = string(v)
		return nil
	case None:
		return nil
	case *List:
		for _, item := range v.Items() {
			d, ok := item.(*Dict)
			if !ok {
				return errors.New("chat_template: an entry is not an object")
			}
			name, _ := d.Get("name")
			source, _ := d.Get("template")
			nameText, ok1 := name.(String)
			sourceText, ok2 := source.(String)
			if !ok1 || !ok2 {
				return errors.New("chat_template: an entry needs name and template")
			}
			c.Templates[string(nameText)] = string(sourceText)
		}
		return nil
	}
	return errors.New("chat_template is neither a text nor a list")
}

// Source chooses a template as transformers does: tool_use where there are tools and such a template, or else default.
func (c *Config) Source(hasTools bool) (string, error) {
	if source, ok := c.Templates["tool_use"]; ok && hasTools {
		return source, nil
	}
	if source, ok := c.Templates["default"]; ok {
		return source, nil
	}
	if len(c.Templates) == 0 {
		return "", errors.New("the tokenizer has no chat template: name one with chat_template")
	}
	var names []string
	for name := range c.Templates {
		names = append(names, name)
	}
	sort.Strings(names)
	return "", fmt.Errorf("the tokenizer has no default chat template, only %s: name one with chat_template",
		strings.Join(names, ", "))
}
