package train

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/data"
)

// templateUse says whether data that are no conversations are rendered with the model's chat template: trainers
// differ in that. It is empty if there are no such data, or no template.
func templateUse(sources []data.Source, renderer data.Renderer, asked string) string {
	chat, ok := renderer.(*data.Chat)
	var kinds []string
	for _, s := range sources {
		if (s.Type == data.PromptResponse || s.Type == data.Alpaca) && !slices.Contains(kinds, string(s.Type)) {
			kinds = append(kinds, string(s.Type))
		}
	}
	of := strings.Join(kinds, " and ")
	switch {
	case !ok || of == "":
		return ""
	case !chat.All:
		return fmt.Sprintf("%s data are rendered without the model's chat template (chat_template: %s)", of, asked)
	case asked == "auto":
		return fmt.Sprintf("%s data are rendered with the model's chat template; chat_template: conversations leaves it out",
			of)
	}
	return fmt.Sprintf("%s data are rendered with a chat template (chat_template: %s)", of, asked)
}

// noteCut says what became of documents that are longer than a row, and keeps it for the summary.
func (t *trainer) noteCut() {
	if t.loader == nil {
		return // of a loop, whose answers end in time
	}
	p, s := t.loader.Packing(), &t.summary
	s.Split, s.Truncated, s.Dropped, s.CutTokens = p.Split, p.Truncated, p.Dropped, p.CutTokens
	if left := p.LeftOut(t.config.SequenceLen); left != "" {
		t.env.Note("%s", left)
	}
	cut := p.Cut(t.data.Len(), t.config.SequenceLen)
	const remedy = "to change that, raise sequence_len, or set overlong to"
	switch chosen, rejected := t.data.SidesOver(t.config.SequenceLen); {
	case cut == "":
	case chosen+rejected == 0:
		others := "split, truncate or drop"
		if of := t.aim.objective; of != nil && (of.Needs().Labels || of.Needs().TopK > 0) { // which refuse split
			others = "truncate or drop"
		}
		t.env.Note("%s (overlong: %s); %s %s", cut, t.config.Overlong, remedy, others)
	case t.config.Overlong == string(data.DropLong):
		t.env.Note("%s; %d of them are chosen sides and %d are rejected ones, and their pairs are left out (overlong: %s); "+
			"%s truncate", cut, chosen, rejected, t.config.Overlong, remedy)
	default:
		t.env.Note("%s; %d of them are chosen sides and %d are rejected ones, which have no end then (overlong: %s); %s drop",
			cut, chosen, rejected, t.config.Overlong, remedy)
	}
}

// noteTurns says how many turns of the assistant count, and what the chat template makes of them.
func (t *trainer) noteTurns() {
	if t.rounds != nil {
		return // prompts have none to train on
	}
	c, s := t.data.Turns(), &t.summary
	s.Turns, s.EndedTurns, s.OtherPromptTurns = c.Trained, t.data.EndedTurns(), c.OtherPrompt
	s.ThoughtsLeftOut, s.CallsLeftOut = c.LeftOut.Thoughts, c.LeftOut.Calls
	for _, line := range t.data.TurnLines(t.config.TrainOnLast) {
		t.env.Note("%s", line)
	}
}
