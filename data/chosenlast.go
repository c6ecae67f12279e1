package data

import (
	"encoding/json"
	"slices"

	"github.com/millrace/millrace/data/template"
	"github.com/millrace/millrace/internal/budget"
)

// chosenLast reads a row of ms-swift: a conversation whose last message is the chosen answer, and the rejected one
// under a key of its own, as a text, as messages, or as the whole conversation with it. It gives the row the keys of
// another form: a prompt, and a message for each answer; or two whole conversations. Other rows stay as they are.
func (f *fields) chosenLast(s Source) {
	has := func(name string) bool { _, ok := f.object[name]; return ok }
	chosen := f.namesOf(s, sideKeys[0])
	names := slices.DeleteFunc(f.namesOf(s, "messages"), func(name string) bool {
		return !has(name) || !f.isSpoken(s, name)
	})
	if slices.ContainsFunc(chosen, has) || !slices.ContainsFunc(f.namesOf(s, sideKeys[1]), has) || len(names) != 1 {
		return
	}
	turns := f.spoken(s, names[0])
	rejected := f.sideOf(s, sideKeys[1])
	if f.err != nil {
		return
	}
	last := len(turns) - 1
	if !isOfAssistant(s, turns[last]) {
		f.fail("field %q does not end with an answer, and the row has no other chosen one: write it there, or under %q",
			names[0], chosen[0])
		return
	}
	var all []json.RawMessage
	if err := budget.Unmarshal(f.object[names[0]], &all); err != nil || len(all) != len(turns) {
		f.fail("field %q is JSON in a text, and ends with the chosen answer: write it as a list, or the answer under %q",
			names[0], chosen[0])
		return
	}
	isText := !f.isSpoken(s, rejected)
	if !isText {
		other := f.spoken(s, rejected)
		switch {
		case f.err != nil:
			return
		case !isOfAssistant(s, other[0]): // the whole conversation
			f.object[chosen[0]] = f.object[names[0]]
			delete(f.object, names[0])
			return
		}
	}
	f.object[chosen[0]] = slices.Concat([]byte("["), all[last], []byte("]"))
	f.object[names[0]], f.err = json.Marshal(all[:last])
	if isText {
		f.object[rejected] = slices.Concat([]byte(`[{"role": "assistant", "content": `), f.object[rejected], []byte("}]"))
	}
}

// isOfAssistant reports whether a turn is an answer.
func isOfAssistant(s Source, turn *template.Dict) bool {
	role, err := formOf(s, turn).roleOf(turn)
	return err == nil && role == roleAssistant
}
