package template

import (
	"errors"
	"slices"
	"strings"
	"unicode/utf8"
)

// trimTurn cuts white space off the end of a turn, unless nothing else ends the turn: then it follows the content
// directly.
func (f *turnFinder) trimTurn(turn string, message Value) string {
	trimmed := strings.TrimRightFunc(turn, isSpace)
	if d, ok := message.(*Dict); trimmed == "" || f.isOpen && ok && len(callsOf(d)) == 0 {
		return turn
	}
	return trimmed
}

// cutEnding takes from wholeTail what ends the turn: aloneTail without the white space at its end. Some templates put
// an end-of-text token after the last message only; one that follows in wholeTail, too, is of the turn.
func (f *turnFinder) cutEnding(aloneTail, wholeTail string) (rest string, ok bool) {
	ending := strings.TrimRightFunc(aloneTail, isSpace)
	if ending == "" {
		return strings.CutPrefix(wholeTail, aloneTail)
	}
	if rest, ok := strings.CutPrefix(wholeTail, ending); ok {
		return rest, true
	}
	trimmed := f.trimEOS(ending)
	if rest, ok = strings.CutPrefix(wholeTail, trimmed); !ok || trimmed == ending {
		return rest, ok
	}
	if after, ok := strings.CutPrefix(strings.TrimLeftFunc(rest, isSpace), f.eos()); ok {
		return after, true
	}
	return rest, true
}

func (f *turnFinder) trimEOS(text string) string {
	return strings.TrimRightFunc(strings.TrimSuffix(strings.TrimRightFunc(text, isSpace), f.eos()), isSpace)
}

// cutEOS takes from wholeTail what ends the turn where a template ends it in another way if more follows: the text to
// the first eos_token, where a generation ends in any case. turn is the text up to the content of the next message.
func (f *turnFinder) cutEOS(turn, wholeTail string) (rest string, ok bool) {
	at := strings.Index(turn, f.eos())
	if f.eos() == "" || at < 0 {
		return "", false
	}
	return strings.CutPrefix(wholeTail, turn[:at+len(f.eos())])
}

// endsInEOS reports whether there is nothing after the first eos_token of a text.
func (f *turnFinder) endsInEOS(text string) bool {
	_, rest, ok := strings.Cut(text, f.eos())
	return f.eos() != "" && ok && isBlank(strings.ReplaceAll(rest, f.eos(), ""))
}

// checkEnd checks that the text after the last turn would be the same if a question followed, or the result of the tool
// that it calls, or that it ends with an end-of-text token. A template that opens the next turn by itself fails here.
func (f *turnFinder) checkEnd(i int) error {
	following := []Value{spokenBy("user", "?")}
	if message, ok := f.in.Messages[i].(*Dict); ok {
		if _, ok := message.Get("tool_calls"); ok {
			answer := toolAnswer(message)
			answer.Set("content", String("?"))
			following = append(following, answer)
		}
	}
	differs := false
	for _, mark := range append(slices.Clip(markings), markedCallWithoutID) {
		messages, err := mark(f.in.Messages[:i+1:i+1], i)
		if err != nil {
			continue
		}
		alone, ok := f.afterMark(messages)
		for _, next := range following {
			followed, ok2 := f.afterMark(append(messages, next))
			if !ok || !ok2 {
				continue
			}
			if strings.HasPrefix(followed, f.trimEOS(alone)) || f.endsInEOS(alone) {
				return nil
			}
			differs = true
		}
	}
	if differs {
		return errors.New("the template puts text after the last turn that does not belong to it: " +
			"put {% generation %} into the template")
	}
	return nil // what cannot be tried so is left as it was found
}

// turnStart returns where a marked turn begins. before is the text before it with the generation prompt, and prompt the
// text of that alone, "" if it is not known.
func (f *turnFinder) turnStart(m *markedTurn, before, prompt string) (int, bool) {
	header, ok1 := f.afterMessage(m.asked, true)
	between, ok2 := f.between(m.asked, m.rest...)
	isBetween := ok1 && ok2
	if isBetween {
		if start, ok := startAfterHeader(header, between, m.wholeHead); ok {
			return start, true
		}
	}
	opening := m.aloneHead[commonPrefix(m.aloneHead, before):]
	if start, ok := startAfterPrompt(prompt, opening, m.wholeHead); ok {
		return start, true
	}
	if isBetween {
		if start, ok := f.startAtFork(m, header, between); ok {
			return start, true
		}
	}
	// The prompts of some templates continue with text that past turns do not have, such as <think>.
	for n := len(prompt) - 1; n > 0 && 2*n >= len(prompt); n-- {
		if start, ok := startAfterPrompt(prompt[:n], opening, m.wholeHead); ok {
			return start - n + len(wholeTags(prompt[:n])), true
		}
	}
	return 0, false
}

// startAfterHeader finds the header, which ends with the generation prompt, in the text between the content of the
// message before and the mark. What stands after it is of the turn, whatever it is: emptied thoughts for instance.
func startAfterHeader(header, between, wholeHead string) (int, bool) {
	at := 0
	if !strings.HasPrefix(between, header) {
		at = strings.LastIndex(between, header)
	}
	switch {
	case at >= 0 && strings.HasSuffix(wholeHead, between[at:]):
		return len(wholeHead) - len(between) + at + len(header), true
	case strings.HasPrefix(header, between) && strings.HasSuffix(wholeHead, between):
		return len(wholeHead), true // the prompt continues with text that past turns do not have
	}
	return 0, false
}

// startAfterPrompt finds the prompt in the text before the mark. opening is the text between the two where the turn is
// the last one.
func startAfterPrompt(prompt, opening, wholeHead string) (int, bool) {
	at := strings.LastIndex(wholeHead, prompt)
	if prompt == "" || at < 0 || !strings.HasSuffix(opening, wholeHead[at+len(prompt):]) {
		return 0, false
	}
	return at + len(prompt), true
}

// startAtFork finds where the header and the text between the content of the message before and the mark part: the
// prompt may begin a thought where the turn has none, or end one where the turn has some.
func (f *turnFinder) startAtFork(m *markedTurn, header, between string) (int, bool) {
	common := commonHeader(header, between)
	// Thoughts that the turn has may begin as those of the prompt do. An answer of the past has none.
	if past, ok := f.between(m.asked, spoken("assistant"), spokenBy("user", "?")); ok {
		common = commonHeader(common, past)
	}
	plain, _ := f.afterMessage(m.asked, false)
	plain = strings.TrimSuffix(plain, f.eos())
	prompt, ok := strings.CutPrefix(common, plain)
	// After the result of a tool some templates continue the assistant's turn without a header.
	isContinued := roleOf(m.asked[len(m.asked)-1]) == "tool"
	if !ok || isBlank(prompt) && !isContinued || !strings.HasSuffix(m.wholeHead, between[len(plain):]) {
		return 0, false
	}
	return len(m.wholeHead) - len(between) + len(common), true
}

// commonHeader is the text that two texts begin with, without a tag at its end that only one of them has whole.
func commonHeader(a, b string) string {
	n := commonPrefix(a, b)
	if n == len(a) || n == len(b) {
		return a[:n]
	}
	for n > 0 && !utf8.RuneStart(a[n]) {
		n--
	}
	return wholeTags(a[:n])
}

// wholeTags cuts off a tag that a text ends in the middle of, such as <|im_ or [/IN.
func wholeTags(text string) string {
	if at := strings.LastIndexAny(text, "<>[]\n"); at >= 0 && (text[at] == '<' || text[at] == '[') {
		return text[:at]
	}
	return text
}

func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func isBlank(text string) bool { return strings.TrimSpace(text) == "" }
