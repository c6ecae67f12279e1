package data

import "github.com/millrace/millrace/data/template"

// DropOpening is Source.Opening of rows whose turns before the first question shall be left out, for chat templates
// that refuse conversations which do not begin with a question.
const DropOpening = "drop"

// opening counts the messages before the first question that are no system prompt: a greeting of the assistant. A
// conversation without a question has none, since nothing would be left of it.
func opening(messages []template.Value) (n int) {
	for _, v := range messages {
		switch role, _ := textOf(v.(*template.Dict), "role"); role {
		case roleUser:
			return n
		case roleSystem:
		default:
			n++
		}
	}
	return 0
}

// open leaves out the opening of a conversation where the source says so.
func (s Source) open(r *Record) {
	left := opening(r.Messages)
	if s.Opening != DropOpening || left == 0 {
		return
	}
	var kept []template.Value
	untrained := map[int]bool{}
	for i, v := range r.Messages {
		role, _ := textOf(v.(*template.Dict), "role")
		if left > 0 && role != roleSystem {
			left--
			continue
		}
		if r.Untrained[i] {
			untrained[len(kept)] = true
		}
		kept = append(kept, v)
	}
	r.Messages, r.Untrained = kept, untrained
}
