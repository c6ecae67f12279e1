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
	p, s := t.loader.Packing(), &t.summary
	s.Split, s.Truncated, s.Dropped, s.CutTokens = p.Split, p.Truncated, p.Dropped, p.CutTokens
	if cut := p.Cut(t.data.Len(), t.config.SequenceLen); cut != "" {
		t.env.note("%s (overlong: %s); to change that, raise sequence_len, or set overlong to split, truncate or drop", cut,
			t.config.Overlong)
	}
}
