package train

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/runfile"
)

// openData reads and tokenizes the data sets.
func (t *trainer) openData(ctx context.Context, env *Env) error {
	c := t.config
	r, err := t.src.openReader(c)
	if err != nil {
		return err
	}
	if t.data, t.evalData, err = env.prepareRun(ctx, c, r); err != nil {
		return err
	}
	t.rendering = templateUse(t.data.Sources(), r.renderer, c.ChatTemplate)
	return nil
}

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

// openLoaders packs the data and counts the steps. What that takes for the whole run is reserved before the run is
// planned.
func (t *trainer) openLoaders(env *Env) (err error) {
	c := t.config
	epochs := 0 // without an end: max_steps ends the run
	if c.MaxSteps == 0 {
		epochs = max(int(math.Ceil(c.Epochs)), 1)
	}
	if t.evalData != nil { // first, since it gives back what only packing needs
		if t.eval, err = data.NewEvalLoader(t.evalData, c.SequenceLen, env.Accounts); err != nil {
			return err
		}
	}
	t.loader, err = data.NewLoader(t.data, loaderOptions(c, env, epochs))
	if err != nil {
		return err
	}
	if c.MaxSteps == 0 {
		t.dataSteps = epochSteps(t.loader.Steps(), c.Epochs, epochs)
	}
	return nil
}

// noteCut says what became of documents that are longer than a row, and keeps it for the summary.
func (t *trainer) noteCut(env *Env) {
	p, s := t.loader.Packing(), &t.summary
	s.Split, s.Truncated, s.Dropped, s.CutTokens = p.Split, p.Truncated, p.Dropped, p.CutTokens
	if cut := p.Cut(t.data.Len(), t.config.SequenceLen); cut != "" {
		env.say("%s (overlong: %s); to change that, raise sequence_len, or set overlong to split, truncate or drop", cut,
			t.config.Overlong)
	}
}

// loaderOptions are the sizes of a step and the order of the data.
func loaderOptions(c *runfile.Config, env *Env, epochs int) data.LoaderOptions {
	return data.LoaderOptions{SequenceLen: c.SequenceLen, BatchTokens: c.BatchTokens, Seed: c.Seed, Epochs: epochs,
		LongDocuments: data.LongDocuments(c.Overlong), Accounts: env.Accounts}
}

// closeInputs gives back what the data take, and the devices.
func (t *trainer) closeInputs() {
	var open []io.Closer // nothing was written to them, so there is no error to tell
	if t.loader != nil {
		open = append(open, t.loader)
	}
	if t.eval != nil {
		open = append(open, t.eval)
	}
	if t.evalData != nil {
		open = append(open, t.evalData)
	}
	if t.data != nil {
		open = append(open, t.data)
	}
	if t.dev != nil {
		open = append(open, t.dev)
	}
	for _, c := range open {
		_ = c.Close()
	}
}
