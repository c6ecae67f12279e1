package data

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/data/template"
)

// The problem. A conversation has many spellings: messages of OpenAI, turns of ShareGPT whose keys and roles an entry
// can rename, two lists as TRL has them, a list within a text, contents in parts, calls of tools that are turns. A chat
// template knows one spelling. A key that a reader overlooks is no error anywhere: the template writes less than the
// row says, and the model learns something else.
//
// The obvious answer is a converter for each format, which copies the keys that it knows. Each of them overlooks other
// keys, and a rule such as "only messages of the assistant count" is written once for each.
//
// The answer here: a type states how its turns are written (turnForm), and one function makes a message of any turn
// (addTurn). Each key of a turn that says something is read, goes to the template, is listed under `ignore` in the
// entry, or has the row refused; keys.go decides which, by the key's name. Two keys that say the same thing have to
// agree (agrees, setMark). A message stays a dictionary, and no struct of Go, since a template may look at any key.
//
// No template knows which messages count. A record has the numbers of those of the assistant that do not, next to the
// messages (Record.Untrained).

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

// openAIRoles maps the roles of type messages.
var openAIRoles = map[string]string{
	"system": roleSystem, "developer": roleSystem,
	"user": roleUser, "assistant": roleAssistant,
	"tool": roleTool, "function": roleTool,
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

// turnForm says how the turns of a type are written.
type turnForm struct {
	turn          string // the word for one
	role, content string // keys
	roles         map[string]string
}

func (t Tags) turns() turnForm { return turnForm{"turn", t.Role, t.Content, t.roles()} }

func openAITurns(Tags) turnForm { return turnForm{"message", "role", "content", openAIRoles} }

// roleOf finds the role of a turn.
func (t turnForm) roleOf(turn *template.Dict) (string, error) {
	who, err := textOf(turn, t.role)
	if err != nil {
		return "", err
	}
	role := t.roles[who]
	switch {
	case role != "":
		return role, nil
	case t.turn == "turn":
		return "", fmt.Errorf("%s %.100q is unknown: known are %s; tags can name others", t.role, who, strings.Join(slices.Sorted(maps.Keys(t.roles)), ", "))
	}
	return "", fmt.Errorf("role %.100q is unknown: known are system, developer, user, assistant and tool; rows with other "+
		"names are of type sharegpt, with tags such as {role_tag: role, content_tag: content, user_tag: human, "+
		"assistant_tag: bot} and messages naming the list", who)
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

// turns returns the items of a list of objects, which may be JSON in a text.
func (f *fields) turns(name string) []*template.Dict {
	v, ok := f.value(name)
	if !ok {
		f.missing(name)
		return nil
	}
	items, err := listOf(v)
	switch {
	case err != nil:
		f.fail("field %q is not a list of turns: it %w", name, err)
		return nil
	case len(items) == 0:
		f.fail("field %q is not a list of turns: it is empty", name)
		return nil
	}
	var all []*template.Dict
	for i, item := range items {
		d, err := objectOf(item)
		if d == nil || err != nil {
			f.fail("turn %d is not an object: it is %s", i, kindOf(item))
			return nil
		}
		all = append(all, d)
	}
	return all
}

// addTurns reads a list of turns into a record, after what it has.
func (f *fields) addTurns(s Source, name string, out *Record) {
	form := f.format.turns(s.Tags)
	for i, turn := range f.turns(name) {
		if err := f.addTurn(s, form, turn, out); err != nil {
			if name == s.Messages {
				f.fail("%s %d: %w", form.turn, i, err)
			} else {
				f.fail("field %q: %s %d: %w", name, form.turn, i, err)
			}
			return
		}
	}
}

// conversation reads a row of type messages or sharegpt.
func (f *fields) conversation(s Source, out *Record) {
	f.addSystem(s, out)
	f.addTurns(s, s.Messages, out)
	out.Tools = f.tools(s)
	s.open(out)
	f.checkConversation(out)
}

// addSystem puts the system prompt of a row's own key first.
func (f *fields) addSystem(s Source, out *Record) {
	if f.system = f.optional(s.System); !blank(f.system) {
		out.Messages = append(out.Messages, message(roleSystem, f.system))
	}
}

// hasTurns reports whether a field of type prompt-response is a list of messages, which may be JSON in a text.
func (f *fields) hasTurns(name string) bool {
	raw := f.object[name]
	switch {
	case len(raw) == 0 || raw[0] == '"' && !strings.HasPrefix(strings.Join(strings.Fields(string(raw[:min(len(raw), 64)])), ""), `"[{`):
		return false
	case raw[0] != '"':
		return raw[0] == '[' || raw[0] == '{'
	}
	v, err := template.ParseJSON(raw)
	if err != nil {
		return false
	}
	items, err := listOf(v)
	for _, item := range items {
		turn, ok := item.(*template.Dict)
		if !ok {
			return false
		}
		_, hasRole := turn.Get("role")
		if _, hasContent := turn.Get("content"); !hasRole || !hasContent {
			return false
		}
	}
	return err == nil && len(items) > 0
}

// textsOrMessages reads a row of type prompt-response. Its two fields are texts, or lists of messages as TRL's
// conversational data have them. Of the lists only the assistant's messages in the response count.
func (f *fields) textsOrMessages(s Source, out *Record) {
	if !f.hasTurns(s.Prompt) && !f.hasTurns(s.Response) {
		f.pair(s, out)
		return
	}
	out.Type = Messages
	f.addSystem(s, out)
	if len(f.history(s.History)) > 0 {
		f.fail("the row has %q, and its %s is a list of messages: put the turns into that list", s.History, s.Prompt)
		return
	}
	for _, name := range []string{s.Prompt, s.Response} {
		if _, ok := f.object[name]; ok && !f.hasTurns(name) {
			f.fail("field %q is no list of messages, and the row's other one is: write both as lists, or both as text", name)
			return
		}
		before := len(out.Messages)
		f.inPrompt = name == s.Prompt
		f.addTurns(s, name, out)
		if name == s.Response {
			break
		}
		for i, v := range out.Messages[before:] {
			if role, _ := textOf(v.(*template.Dict), "role"); role == roleAssistant {
				out.leaveOut(before + i)
			}
		}
	}
	out.Tools = f.tools(s)
	s.open(out)
	f.checkConversation(out)
}

// leaveOut makes a message one that does not count.
func (r *Record) leaveOut(i int) {
	if r.Untrained == nil {
		r.Untrained = map[int]bool{}
	}
	r.Untrained[i] = true
}

// addTurn checks a turn and adds it in the form that templates expect: content as one text, arguments of calls as
// objects, and the roles of OpenAI's that have other names elsewhere.
func (f *fields) addTurn(s Source, form turnForm, turn *template.Dict, out *Record) error {
	role, err := form.roleOf(turn)
	if err != nil {
		return err
	}
	content, err := s.contentOf(turn, form.content)
	if err != nil {
		return err
	}
	if role == roleCall {
		calls, err := s.callsOf(template.String(content.text))
		if err != nil {
			return fmt.Errorf("the function call: %w", err)
		}
		if len(calls) == 0 {
			return fmt.Errorf("there is no function call: %q is empty", form.content)
		}
		role, content = roleAssistant, said{calls: append(content.calls, calls...), thoughts: content.thoughts}
	}
	more, err := s.turnKeys(form, turn, role)
	if err != nil {
		return err
	}
	switch {
	case f.inPrompt && more.counts:
		return fmt.Errorf("%s is 1, and the message is in the prompt, which does not count: use type: messages", more.mark)
	case content.isMissing && len(more.calls) == 0:
		return fmt.Errorf("%s is missing: write what is said, or tool_calls", form.content)
	case role != roleAssistant && (content.thoughts != "" || len(content.calls) > 0):
		return fmt.Errorf("a part of the content has reasoning or a tool_call, and the role is %s, not assistant", role)
	case len(more.calls) > 0 && len(content.calls) > 0:
		return fmt.Errorf("the message has tool_calls, and a tool_call in its content: one of the two must have all")
	case len(more.calls) > 0 && role != roleAssistant:
		return fmt.Errorf("the message has tool_calls, and the role is %s, not assistant", role)
	case role == roleSystem && len(out.Messages) == 1 && !blank(f.system):
		if content.text == f.system {
			return nil // both places have it
		}
		return fmt.Errorf("it is another system prompt than %q of the row: keep one of the two", s.System)
	}
	fixed := message(role, content.text)
	if content.thoughts != "" {
		fixed.Set("reasoning_content", template.String(content.thoughts))
	}
	if calls := append(more.calls, content.calls...); len(calls) > 0 {
		fixed.Set("tool_calls", template.NewList(calls...))
	}
	for _, k := range more.rest {
		fixed.Set(k.name, k.value)
	}
	fillReasoning(fixed)
	if more.mark != "" && !more.counts {
		out.leaveOut(len(out.Messages))
		out.isMarked = true
	}
	out.Messages = append(out.Messages, fixed)
	return nil
}

// turnKeys are the keys of a turn except who speaks and what is said.
type turnKeys struct {
	calls  []template.Value
	mark   string // the key that says whether the message counts; "" if there is no such key
	counts bool
	rest   []restKey // that go to the template, which may look at any key
}

type restKey struct {
	name  string
	value template.Value
}

// turnKeys reads the other keys of a turn, as the table of keys says.
func (s Source) turnKeys(form turnForm, turn *template.Dict, role string) (all turnKeys, err error) {
	for k, key := range turn.Keys() {
		name, value := string(key.(template.String)), turn.At(k)
		if name == form.role || name == form.content || isAbsent(value) || s.ignores(name) {
			continue
		}
		rule := ruleOf(inMessage, name)
		switch {
		case rule == nil && saysNothing(value):
		case rule == nil:
			if what := unknownKey(value); what != "" {
				return all, fmt.Errorf("%q is unknown, and has %s, which could be a mark that something reads: remove it, or list it under ignore "+
					"in the entry", name, what)
			}
			all.rest = append(all.rest, restKey{name, value})
		case rule.does == labels:
			if !isEmpty(value) {
				all.rest = append(all.rest, restKey{name, value})
			}
		case saysNothing(value) && rule.does != reads:
		case rule.does == marks:
			if err := all.setMark(name, value, role); err != nil {
				return all, err
			}
		case rule.does == judges:
			if good, ok := isCounted(value); !ok || !good {
				return all, fmt.Errorf("%q is %s: only true or 1 marks a good answer; leave the message out, or write weight: 0", name, brief(value))
			}
		case rule.does == refuses:
			return all, fmt.Errorf("%s is not supported: %s", name, rule.remedy)
		case rule.entry != "": // role and content of another format
			if err := form.agrees(turn, rule, name, value); err != nil {
				return all, err
			}
		default:
			if err := all.read(s, rule, name, value); err != nil {
				return all, err
			}
		}
	}
	return all, nil
}

// agrees refuses a turn that says who speaks, or what is said, twice and not the same.
func (t turnForm) agrees(turn *template.Dict, rule *keyRule, name string, value template.Value) error {
	read, plain := t.content, func(v template.Value) template.Value { return v }
	if rule.entry == "role_tag" {
		read = t.role
		plain = func(v template.Value) template.Value { // human and user are one
			text, _ := v.(template.String)
			return template.String(cmp.Or(t.roles[string(text)], shareGPTRoles[string(text)], openAIRoles[string(text)], string(text)))
		}
	}
	if has, _ := turn.Get(read); plain(has) != plain(value) {
		return fmt.Errorf("it has %q and %q, which differ: remove the one that is wrong", read, name)
	}
	return nil
}

// read takes the value of a key that templates know.
func (all *turnKeys) read(s Source, rule *keyRule, name string, value template.Value) error {
	if !slices.Contains(strings.Fields(rule.names), name) {
		return fmt.Errorf("%q is not read: write %s", name, strings.Join(strings.Fields(rule.names), " or "))
	}
	if name == "tool_calls" {
		calls, err := s.callsOf(value)
		if err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		all.calls = calls
		return nil
	}
	if _, ok := value.(template.String); !ok {
		return fmt.Errorf("%q is %s, not a text", name, kindOf(value))
	}
	all.rest = append(all.rest, restKey{name, value})
	return nil
}

// setMark reads a key that says whether the message counts.
func (all *turnKeys) setMark(name string, value template.Value, role string) error {
	counts, ok := isCounted(value)
	switch {
	case !ok:
		return fmt.Errorf("%s is neither 0 nor 1: a message counts or does not", name)
	case counts && role != roleAssistant:
		return fmt.Errorf("%s is 1, and the role is %s: only messages of the assistant count; write 0", name, role)
	case all.mark != "" && all.counts != counts:
		return fmt.Errorf("%s and %s disagree: one says that the message counts, and one that it does not", all.mark, name)
	}
	all.mark, all.counts = name, counts
	return nil
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

// checkConversation refuses what nothing can be learned from.
func (f *fields) checkConversation(r *Record) {
	if f.err == nil && !r.isAnswered() {
		f.fail("the conversation has no turn of the assistant that counts")
	}
}

// isAnswered reports whether the assistant says something that counts.
func (r *Record) isAnswered() bool {
	for i, v := range r.Messages {
		m := v.(*template.Dict)
		role, _ := textOf(m, "role")
		content, _ := textOf(m, "content")
		_, calls := m.Get("tool_calls")
		if role == roleAssistant && !r.Untrained[i] && (calls || !blank(content)) {
			return true
		}
	}
	return false
}

// conversation is a record as messages: those it has, or the prompts and responses of the other types.
func (r Record) conversation() []template.Value {
	if r.Type.format().isConversation {
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

// history reads pairs of a question and an answer.
func (f *fields) history(name string) [][2]string {
	v, ok := f.value(name)
	if !ok {
		return nil
	}
	const want = "is not a list of pairs of a question and an answer"
	items, err := listOf(v)
	if err != nil {
		f.fail("field %q %s: it %w", name, want, err)
		return nil
	}
	var all [][2]string
	for i, item := range items {
		pair, err := listOf(item)
		if err != nil || len(pair) != 2 {
			f.fail("field %q %s: number %d is %s of %d", name, want, i, kindOf(item), len(pair))
			return nil
		}
		question, isText := pair[0].(template.String)
		answer, isAlso := pair[1].(template.String)
		if !isText || !isAlso {
			f.fail("field %q %s: number %d has %s and %s", name, want, i, kindOf(pair[0]), kindOf(pair[1]))
			return nil
		}
		all = append(all, [2]string{string(question), string(answer)})
	}
	return all
}
