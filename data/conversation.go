package data

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/data/template"
)

// The roles that chat templates know.
const (
	roleSystem    = "system"
	roleUser      = "user"
	roleAssistant = "assistant"
	roleTool      = "tool"
)

// roleCall marks a turn of type sharegpt that is a call of a tool.
const roleCall = "call"

// shareGPTRoles are the usual names of who speaks.
var shareGPTRoles = map[string]string{
	"human": roleUser, "user": roleUser,
	"gpt": roleAssistant, "assistant": roleAssistant, "model": roleAssistant,
	"system":      roleSystem,
	"observation": roleTool, "tool": roleTool,
	"function_call": roleCall,
}

// roles maps the names of a source to roles: the usual names, except that a role whose tag is set has only that name.
func (t Tags) roles() map[string]string {
	all := maps.Clone(shareGPTRoles)
	for _, set := range []struct{ tag, role string }{
		{t.User, roleUser}, {t.Assistant, roleAssistant}, {t.Observation, roleTool}, {t.Function, roleCall}, {t.System, roleSystem},
	} {
		if set.tag == "" {
			continue
		}
		maps.DeleteFunc(all, func(_, role string) bool { return role == set.role })
		all[set.tag] = set.role
	}
	return all
}

// message makes a message with the keys in the order that users write.
func message(role, content string) *template.Dict {
	d := template.NewDict(3)
	d.Set("role", template.String(role))
	d.Set("content", template.String(content))
	return d
}

// value returns a field as a value of templates; false where it is missing or null.
func (f *fields) value(name string) (template.Value, bool) {
	raw, ok := f.object[name]
	if !ok || string(raw) == "null" {
		return nil, false
	}
	v, err := template.ParseJSON(raw)
	if err != nil {
		f.fail("field %q: %w", name, err)
		return nil, false
	}
	return v, true
}

// turns returns the items of a list of objects.
func (f *fields) turns(name string) []*template.Dict {
	v, ok := f.value(name)
	if !ok {
		f.missing(name)
		return nil
	}
	list, ok := v.(*template.List)
	if !ok || len(list.Items()) == 0 {
		f.fail("field %q is not a list of turns", name)
		return nil
	}
	var all []*template.Dict
	for i, item := range list.Items() {
		d, ok := item.(*template.Dict)
		if !ok {
			f.fail("turn %d is not an object", i)
			return nil
		}
		all = append(all, d)
	}
	return all
}

// textOf returns a value that is text.
func textOf(d *template.Dict, key string) (string, error) {
	v, ok := d.Get(key)
	if !ok {
		var has []string
		for _, k := range d.Keys() {
			name, _ := k.(template.String)
			has = append(has, string(name))
		}
		return "", fmt.Errorf("%q is missing: it has %s", key, someOf(has))
	}
	s, ok := v.(template.String)
	if !ok {
		return "", fmt.Errorf("%q is not a string", key)
	}
	return string(s), nil
}

// shareGPT reads a row of type sharegpt.
func (f *fields) shareGPT(s Source, out *Record) {
	roles := s.Tags.roles()
	system := f.optional(s.System)
	if !blank(system) {
		out.Messages = append(out.Messages, message(roleSystem, system))
	}
	for i, turn := range f.turns(s.Messages) {
		who, err := textOf(turn, s.Tags.Role)
		if err != nil {
			f.fail("turn %d: %w", i, err)
			return
		}
		text, err := textOf(turn, s.Tags.Content)
		if err != nil {
			f.fail("turn %d: %w", i, err)
			return
		}
		var said *template.Dict
		switch role := roles[who]; role {
		case "":
			f.fail("turn %d: %s %.100q is unknown: known are %s; tags can name others", i, s.Tags.Role, who, strings.Join(slices.Sorted(maps.Keys(roles)), ", "))
			return
		case roleCall:
			calls, err := callsOf(text)
			if err != nil {
				f.fail("turn %d: %w", i, err)
				return
			}
			said = message(roleAssistant, "")
			said.Set("tool_calls", template.NewList(calls...))
		default:
			said = message(role, text)
		}
		if err := out.addMessage(said, turn, s.Tags.Role, s.Tags.Content, "role", "content", "tool_calls"); err != nil {
			f.fail("turn %d: %w", i, err)
			return
		}
	}
	out.Tools = f.tools(s.Tools)
	s.open(out)
	f.checkConversation(out)
}

// callsOf turns the JSON of one call or a list of them, each {"name": ..., "arguments": {...}}, into tool_calls.
func callsOf(text string) ([]template.Value, error) {
	const want = `it must be {"name": ..., "arguments": {...}} or a list of these, as JSON`
	v, err := template.ParseJSON([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("the function call is not JSON: %w; %s", err, want)
	}
	list, ok := v.(*template.List)
	if !ok {
		list = template.NewList(v)
	}
	var calls []template.Value
	for _, item := range list.Items() {
		function, ok := item.(*template.Dict)
		if !ok {
			return nil, fmt.Errorf("the function call is not an object: %s", want)
		}
		if _, err := textOf(function, "name"); err != nil {
			return nil, fmt.Errorf("the function call: %w: %s", err, want)
		}
		parseArguments(function)
		call := template.NewDict(2)
		call.Set("type", template.String("function"))
		call.Set("function", function)
		calls = append(calls, call)
	}
	if len(calls) == 0 {
		return nil, fmt.Errorf("there is no function call: %s", want)
	}
	return calls, nil
}

// parseArguments makes arguments that are an object in a string, as OpenAI writes them, an object: templates print them
// as JSON, and would quote a string a second time.
func parseArguments(function *template.Dict) {
	arguments, ok := function.Get("arguments")
	if !ok {
		return
	}
	if text, ok := arguments.(template.String); ok {
		if v, err := template.ParseJSON([]byte(text)); err == nil {
			if object, ok := v.(*template.Dict); ok {
				function.Set("arguments", object)
			}
		}
	}
}

// tools reads a list of tools, which may be in a string. A bare function is put into {"type": "function"}. The name
// DropTools has no tools.
func (f *fields) tools(name string) []template.Value {
	if name == DropTools {
		return nil
	}
	v, ok := f.value(name)
	if text, isText := v.(template.String); ok && isText {
		if blank(string(text)) {
			return nil
		}
		parsed, err := template.ParseJSON([]byte(text))
		if err != nil {
			f.fail("field %q: %w", name, err)
			return nil
		}
		v = parsed
	}
	if !ok {
		return nil
	}
	list, ok := v.(*template.List)
	if !ok {
		f.fail("field %q is not a list of tools", name)
		return nil
	}
	var all []template.Value
	for i, item := range list.Items() {
		tool, ok := item.(*template.Dict)
		if !ok {
			f.fail("field %q: tool %d is not an object", name, i)
			return nil
		}
		if _, wrapped := tool.Get("function"); !wrapped {
			outer := template.NewDict(2)
			outer.Set("type", template.String("function"))
			outer.Set("function", tool)
			tool = outer
		}
		all = append(all, tool)
	}
	return all
}

// messages reads a row of type messages.
func (f *fields) messages(s Source, out *Record) {
	for i, m := range f.turns(s.Messages) {
		if err := f.message(m, out); err != nil {
			f.fail("message %d: %w", i, err)
			return
		}
	}
	out.Tools = f.tools(s.Tools)
	s.open(out)
	f.checkConversation(out)
}

// messagePair reads a row of type prompt-response whose two fields are lists of messages, as TRL's conversational data
// have them. Only the assistant's messages in the response count.
func (f *fields) messagePair(s Source, out *Record) {
	out.Type = Messages
	for _, name := range []string{s.Prompt, s.Response} {
		if _, ok := f.object[name]; ok && !f.isList(name) {
			f.fail("field %q is no list of messages, and the row's other one is: write both as lists, or both as text", name)
			return
		}
		before := len(out.Messages)
		for i, m := range f.turns(name) {
			if err := f.message(m, out); err != nil {
				f.fail("field %q: message %d: %w", name, i, err)
				return
			}
		}
		if name == s.Response {
			break
		}
		for i, v := range out.Messages[before:] {
			if role, _ := textOf(v.(*template.Dict), "role"); role != roleAssistant {
				continue
			}
			if out.Untrained == nil {
				out.Untrained = map[int]bool{}
			}
			out.Untrained[before+i] = true
		}
	}
	out.Tools = f.tools(cmp.Or(s.Tools, "tools"))
	s.open(out)
	f.checkConversation(out)
}

// message checks a message and brings it into the form that templates expect: content as one text, arguments of calls
// as objects, and the roles of OpenAI's that have other names elsewhere.
func (f *fields) message(m *template.Dict, out *Record) error {
	role, err := textOf(m, "role")
	if err != nil {
		return err
	}
	switch role {
	case "developer":
		role = roleSystem
	case "function":
		role = roleTool
	case roleSystem, roleUser, roleAssistant, roleTool:
	default:
		return fmt.Errorf("role %.100q is unknown: known are system, developer, user, assistant and tool; rows with other "+
			"names are of type sharegpt, with tags such as {role_tag: role, content_tag: content, user_tag: human, "+
			"assistant_tag: bot} and messages naming the list", role)
	}
	calls, _ := m.Get("tool_calls")
	list, hasCalls := calls.(*template.List)
	hasCalls = hasCalls && len(list.Items()) > 0
	if old, ok := m.Get("function_call"); ok && old != template.Value(template.None{}) {
		return fmt.Errorf("function_call is not supported: use tool_calls")
	}
	said, err := contentOf(m)
	if err != nil {
		return err
	}
	switch {
	case said.isMissing && !hasCalls:
		return errNoContent
	case role != roleAssistant && (said.thoughts != "" || len(said.calls) > 0):
		return fmt.Errorf("a part of the content has reasoning or a tool_call, and the role is %s, not assistant", role)
	case hasCalls && len(said.calls) > 0:
		return fmt.Errorf("the message has tool_calls, and a tool_call in its content: one of the two must have all")
	}
	fixed := message(role, said.text)
	if said.thoughts != "" {
		fixed.Set("reasoning_content", template.String(said.thoughts))
	}
	if len(said.calls) > 0 {
		fixed.Set("tool_calls", template.NewList(said.calls...))
	}
	if hasCalls {
		calls, err := checkedCalls(list)
		if err != nil {
			return err
		}
		fixed.Set("tool_calls", calls)
	}
	return out.addMessage(fixed, m, "role", "content", "tool_calls")
}

// addMessage adds a message to the conversation, with those keys of its row that are not named: templates may look at
// them, and only ask whether a key is there, so those that are null are left out.
func (r *Record) addMessage(message, row *template.Dict, but ...string) error {
	for k, key := range row.Keys() {
		name, value := string(key.(template.String)), row.At(k)
		if _, null := value.(template.None); null || slices.Contains(but, name) {
			continue
		}
		switch name {
		case "weight", "train", "training", "loss_weight": // as OpenAI, axolotl and LLaMA-Factory's v1 format call it
			counts, ok := isCounted(value)
			if !ok {
				return fmt.Errorf("%s is neither 0 nor 1: a message counts or does not", name)
			}
			if role, _ := textOf(message, "role"); name == "loss_weight" && counts && role != roleAssistant {
				return fmt.Errorf("%s is 1, and the role is %s: only messages of the assistant count; write 0",
					name, role)
			}
			if !counts {
				if r.Untrained == nil {
					r.Untrained = map[int]bool{}
				}
				r.Untrained[len(r.Messages)] = true
			}
			continue
		case "train_detail":
			return fmt.Errorf("train_detail is not supported: a message counts as a whole (train) or not")
		}
		message.Set(name, value)
	}
	fillReasoning(message)
	r.Messages = append(r.Messages, message)
	return nil
}

// isCounted reads the weight of a message.
func isCounted(v template.Value) (counts, ok bool) {
	switch v := v.(type) {
	case template.Bool:
		return bool(v), true
	case template.Int:
		return v == 1, v == 0 || v == 1
	case template.Float:
		return v == 1, v == 0 || v == 1
	}
	return false, false
}

// reasoningKeys may have a message's thoughts. Most templates read the first; thinking is read by
// those of gpt-oss.
var reasoningKeys = []string{"reasoning_content", "thinking", "reasoning"}

// fillReasoning gives the thoughts of a message the names that templates know, as transformers 5 does
// (_alias_reasoning_fields).
func fillReasoning(message *template.Dict) {
	for _, key := range reasoningKeys {
		if thoughts, ok := message.Get(key); ok {
			if _, ok := message.Get("thinking"); !ok {
				message.Set("thinking", thoughts)
			}
			message.Set("reasoning_content", thoughts)
			return
		}
	}
}

// checkedCalls are tool_calls with arguments as objects.
func checkedCalls(list *template.List) (template.Value, error) {
	for _, item := range list.Items() {
		call, ok := item.(*template.Dict)
		if !ok {
			return nil, fmt.Errorf("a tool call is not an object")
		}
		function := call // some write the function without its wrapping
		if inner, ok := call.Get("function"); ok {
			if function, ok = inner.(*template.Dict); !ok {
				return nil, fmt.Errorf("a tool call's function is not an object")
			}
		}
		if _, err := textOf(function, "name"); err != nil {
			return nil, fmt.Errorf("a tool call's function: %w", err)
		}
		parseArguments(function)
	}
	return list, nil
}

// checkConversation refuses what nothing can be learned from.
func (f *fields) checkConversation(r *Record) {
	if f.err != nil {
		return
	}
	for i, v := range r.Messages {
		m := v.(*template.Dict)
		role, _ := textOf(m, "role")
		content, _ := textOf(m, "content")
		_, calls := m.Get("tool_calls")
		if role == roleAssistant && !r.Untrained[i] && (calls || !blank(content)) {
			return
		}
	}
	f.fail("the conversation has no turn of the assistant that counts")
}

// conversation is a record as messages: those it has, or the prompts and responses of the other types.
func (r Record) conversation() []template.Value {
	if r.Type.conversation() {
		return r.Messages
	}
	var all []template.Value
	add := func(role, text string) { all = append(all, message(role, text)) }
	if !blank(r.System) {
		add(roleSystem, r.System)
	}
	for _, turn := range r.History {
		add(roleUser, turn[0])
		add(roleAssistant, turn[1])
	}
	prompt := r.Prompt
	if r.Input != "" { // as LLaMA-Factory joins them
		prompt += "\n" + r.Input
	}
	add(roleUser, prompt)
	add(roleAssistant, r.Response)
	return all
}

// history reads alpaca's pairs of a question and an answer.
func (f *fields) history(name string) [][2]string {
	raw, ok := f.object[name]
	if !ok {
		return nil
	}
	if loneSurrogate(raw) {
		f.fail("field %q has half of a surrogate pair, which is no character", name)
		return nil
	}
	if string(raw) == `""` {
		return nil
	}
	var pairs [][]string
	if err := json.Unmarshal(raw, &pairs); err != nil {
		f.fail("field %q is not a list of pairs of a question and an answer", name)
		return nil
	}
	var all [][2]string
	for _, p := range pairs {
		if len(p) != 2 {
			f.fail("field %q is not a list of pairs of a question and an answer", name)
			return nil
		}
		all = append(all, [2]string(p))
	}
	return all
}
