package convert

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/millrace/millrace/data"
)

// comparedForms are the forms of rows of Axolotl's types for preferences, after the name of a chat template and a dot,
// by the keys of an entry that are not the usual ones of our types (prompt_strategies/dpo, kto and orpo).
var comparedForms = map[string]entry{
	"default": {}, "intel": {}, "prompt_pairs": {}, "ultra": {}, "argilla_chat": {}, "": {},
	"icr":     {{"prompt", "input"}},
	"argilla": {{"chosen", "chosen_response"}, {"rejected", "rejected_response"}},
}

// comparedType adds the type of an entry of preferences, and the keys of its rows.
func (c *conversion) comparedType(at string, e *entry, values map[string]any, text func(string) string) {
	typed := c.dataType()
	e.add("type", string(typed))
	if custom, ok := values["type"].(map[string]any); ok {
		c.customPairs(at, e, custom)
		return
	}
	template, form, _ := strings.Cut(textOf(values["type"]), ".")
	keys, known := comparedForms[form]
	switch {
	case template == "chat_template":
		c.comparedMessages(at, e, values, text)
		return
	case template == "bradley_terry": // rows of a question and two answers, as prompt_strategies/bradley_terry reads them
		e.add("prompt", "input")
		return
	case template == "passthrough":
		return
	case known && (template == "chatml" || template == "llama3"):
		if typed == data.Preference {
			*e = append(*e, keys...)
		}
		c.templates(at, template)
	default:
		c.decide(nil, "%s: type %s has rows of its own form, so %s is a guess until you compare them with docs/data.md", at,
			shown(values["type"]), typed)
	}
	if typed == data.Binary && form == "argilla_chat" {
		c.decide(nil, "%s: its rows have whole conversations under completion; write the last turn there, and the others "+
			"under prompt", at)
	}
}

// templates says once that a type of data sets has a chat template in its name.
func (c *conversion) templates(at, template string) {
	if c.textAt("chat_template") == template {
		return
	}
	c.decide(nil, "chat_template: %s has %s in its type; here the model's own template is used, if it has one. Look at "+
		"it with millrace preview, or name another one's file", at, template)
}

// customPairs adds the keys of rows whose texts have a format in the file.
func (c *conversion) customPairs(at string, e *entry, custom map[string]any) {
	fields := [][2]string{{"prompt", "field_prompt"}, {"chosen", "field_chosen"}, {"rejected", "field_rejected"}}
	if e.value("type") == string(data.Binary) {
		fields = [][2]string{{"prompt", "field_prompt"}, {"response", "field_completion"}, {"label", "field_label"}}
	}
	for _, f := range append(fields, [2]string{"system", "field_system"}) {
		if name := textOf(custom[f[1]]); name != f[0] {
			e.add(f[0], name)
		}
	}
	for _, key := range []string{"prompt_format", "chosen_format", "rejected_format", "completion_format"} {
		plain := "{" + strings.TrimSuffix(key, "_format") + "}"
		if format := textOf(custom[key]); format != "" && format != plain {
			c.decide(nil, "%s: its type has a format of its own; here the model's chat template renders the rows, so look at "+
				"them with millrace preview", at)
			return
		}
	}
}

// comparedMessages adds the keys of rows with a list of messages.
func (c *conversion) comparedMessages(at string, e *entry, values map[string]any, text func(string) string) {
	for _, f := range [][2]string{{"messages", "field_messages"}, {"chosen", "field_chosen"},
		{"rejected", "field_rejected"}} {
		if name := text(f[1]); name != f[0] && name != "conversations" {
			e.add(f[0], name)
		}
	}
	mapped, _ := values["message_property_mappings"].(map[string]any)
	text("message_property_mappings")
	role := cmp.Or(textOf(mapped["role"]), text("message_field_role"), "role")
	content := cmp.Or(textOf(mapped["content"]), text("message_field_content"), "content")
	if tags := role + " " + content; tags != "role content" && tags != "from value" { // which rows tell by themselves
		e.add("tags", fmt.Sprintf("{role_tag: %s, content_tag: %s}", scalar(role), scalar(content)))
	}
	if roles, ok := values["roles"].(map[string]any); ok && isPlain(roles) {
		text("roles")
	}
	if e.value("type") == string(data.Preference) {
		return
	}
	c.decide(nil, "%s: type %s has rows of its own form, so %s is a guess until you compare them with docs/data.md", at,
		shown(values["type"]), data.Binary)
}

// isPlain reports whether roles have their own names.
func isPlain(roles map[string]any) bool {
	for role, names := range roles {
		if all := list(names); len(all) != 1 || all[0] != role {
			return false
		}
	}
	return true
}
