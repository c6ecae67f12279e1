package data

import "slices"

// binary reads a row of type binary: a prompt, an answer and a label, or a conversation whose last message is the
// answer.
func (f *fields) binary(s Source, out *Record) {
	isWanted := f.label(s)
	answer := f.oneOf(s, "response")
	texts, lists := f.prompts(s)
	switch {
	case f.err != nil:
	case answer == "" && len(lists) == 0:
		f.missing(f.namesOf(s, "response")[0])
	case answer == "":
		f.lastAnswer(s, texts, lists, out)
	case !f.isSpoken(s, answer):
		f.textAnswer(s, answer, texts, lists, out)
	case len(texts)+len(lists) == 0:
		f.missing(s.Prompt)
	default:
		turns, n := f.spoken(s, answer), 0
		if *out, n = f.afterPrompt(s, answer, turns, texts, lists); f.err == nil {
			f.answered(s, answer, n, out)
		}
	}
	out.isLabeled, out.IsWanted = true, isWanted
}

// label reads whether an answer is wanted.
func (f *fields) label(s Source) bool {
	name := f.oneOf(s, "label")
	if name == "" {
		f.missing(f.namesOf(s, "label")[0])
		return false
	}
	v, _ := f.value(name)
	isWanted, ok := isCounted(v)
	if !ok {
		f.fail("field %q is %s: an answer is wanted (true or 1), or it is not (false or 0)", name, brief(v))
	}
	return isWanted
}

// lastAnswer reads a conversation whose last message is the answer.
func (f *fields) lastAnswer(s Source, texts, lists []string, out *Record) {
	if all := slices.Concat(lists, texts); len(all) > 1 {
		f.fail("the row has %q and %q, and no key for the answer: list one of the two under ignore in the entry", all[0],
			all[1])
		return
	}
	turns := f.spoken(s, lists[0])
	*out = Record{Type: Messages}
	f.addSystem(s, out)
	f.addSpoken(s, lists[0], turns, out)
	if f.err != nil {
		return
	}
	f.inPrompt = true // for what marks of its messages say
	f.addSpoken(s, lists[0], turns[:len(turns)-1], &Record{})
	f.inPrompt = false
	if len(out.Messages) < 2 {
		f.fail("field %q has no message before the answer", lists[0])
		return
	}
	f.answered(s, lists[0], len(out.Messages)-1, out)
}
