package data

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/data/template"
)

// placeholders stand in a text for a picture, a film or a sound.
var placeholders = []string{"<image>", "<video>", "<audio>"}

// unfit says why a row is not to be trained as its type reads it, or "" if it is: it has a key that carries meaning,
// and that the type does not read. A key that the source names is read as that says.
func (s Source) unfit(object map[string]json.RawMessage) string {
	read, _ := s.columns()
	var names []string
	for name := range object {
		if rule := ruleOf(inRow, name); rule != nil && rule.concerns(s.Type) && !slices.Contains(read, name) {
			names = append(names, name)
		}
	}
	takesOne := !s.Type.format().isPair && slices.ContainsFunc(read, isChoice) // chosen or rejected
	slices.Sort(names)                                                         // so that a row has one answer
	for _, name := range names {
		rule := ruleOf(inRow, name)
		switch {
		case rule.entry == "tools" && s.Tools == DropTools, isChoice(name) && takesOne:
			continue
		case s.Type.format().isText && rule.remedy == onlyText && !slices.ContainsFunc(placeholders,
			func(p string) bool { return strings.Contains(string(object[s.Field]), p) }):
			continue // the text of a row with a picture can be trained on as long as nothing in it stands for the picture
		}
		value, err := template.ParseJSON(object[name])
		if err != nil { // the bytes of a picture
			value = template.String("?")
		}
		if saysNothing(value) {
			continue
		}
		if why := rule.refusal(s, name, value); why != "" {
			return why
		}
	}
	return ""
}

// isChoice reports whether a key of a row has one of two answers.
func isChoice(name string) bool {
	rule := ruleOf(inRow, name)
	return rule != nil && strings.HasSuffix(rule.says, "answer of two")
}

// refusal says why a row with this value under a key cannot be used, or "".
func (k *keyRule) refusal(s Source, name string, value template.Value) string {
	const orIgnore = "; or list it under ignore in the entry"
	counts, isMark := isCounted(value)
	isJudge := k.does == judges && !s.Type.format().isLabeled
	switch {
	case k.does == marks && isMark && counts, isJudge && isMark && counts:
		return ""
	case k.does == marks && isMark:
		return fmt.Sprintf("%q is %s, which marks the row as one that is not to be learned: %s%s", name, brief(value), k.remedy, orIgnore)
	case k.does == marks:
		return fmt.Sprintf("%q is %s: a row counts or does not; %s%s", name, brief(value), k.remedy, orIgnore)
	case isJudge && isMark:
		return fmt.Sprintf("%q is %s, which marks the answer as a bad one: leave the row out, or use type: binary%s, if it says something else", name, brief(value), orIgnore)
	case isJudge:
		return fmt.Sprintf("%q is %s: only true or 1 marks a good answer; name the key in the entry if it is the answer%s", name, brief(value), orIgnore)
	case isChoice(name):
		if _, isBool := value.(template.Bool); isBool && counts == (k == ruleOf(inRow, "chosen")) {
			return "" // chosen: true, rejected: false
		}
	case strings.Contains(k.says, "thoughts"):
		// One word is a label, as in reasoning: "on".
		if text, ok := value.(template.String); ok && len(strings.Fields(string(text))) < 2 {
			return ""
		}
	}
	if k.remedy == onlyText {
		return fmt.Sprintf("the row has %q: %s", name, onlyText)
	}
	remedy := k.remedy
	canBeNamed := func(e entryKey) bool { return e.name == k.entry && e.of != nil && e.isOf(s.Type.format()) }
	if slices.ContainsFunc(entryKeys, canBeNamed) {
		remedy = fmt.Sprintf("write %s: %s in the entry", k.entry, shown(name))
	}
	return fmt.Sprintf("the row has %q, which type %s does not read (%s): %s%s", name, s.Type, k.says, remedy, orIgnore)
}

// checkPlaceholders refuses a question with a mark for a picture that no key has: the rows are of a set with pictures.
func (f *fields) checkPlaceholders(out *Record) {
	if f.err != nil || f.format.isText || f.format.isTokens || f.format.isAsked {
		return
	}
	for _, v := range out.conversation() {
		m := v.(*template.Dict)
		if role, _ := textOf(m, "role"); role != roleUser {
			continue
		}
		content, _ := textOf(m, "content")
		for _, p := range placeholders {
			if standsForMedia(content, p) {
				f.fail("the question has %s, which stands for a picture, a film or a sound: %s", p, onlyText)
				return
			}
		}
	}
}

// standsForMedia tells a placeholder from the name of an element that the text is about. A placeholder for a film or a
// sound begins or ends a line; people ask for the <video> element in the middle of one. An element is closed somewhere,
// and in quotes it is code.
func standsForMedia(text, placeholder string) bool {
	if !strings.Contains(text, placeholder) || strings.Contains(text, "</"+placeholder[1:]) {
		return false
	}
	text = strings.ReplaceAll(text, "`"+placeholder+"`", "")
	if placeholder == "<image>" {
		return strings.Contains(text, placeholder)
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, placeholder) || strings.HasSuffix(line, placeholder) {
			return true
		}
	}
	return false
}
