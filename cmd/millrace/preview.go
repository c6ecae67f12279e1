package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/train/verbs"
	"github.com/millrace/millrace/vfs"
)

type previewCmd struct {
	runFile
	Limit  int    `default:"3" help:"Examples to show; 0 shows all."`
	Losses string `complete:"DIR" placeholder:"MODEL" help:"Show the loss of each token by a model: a directory, a hub id, a run's output directory, or one of its checkpoints."`
	Worst  bool   `help:"Show those with the greatest losses, instead of the first ones; with --losses."`
	JSON   bool   `help:"Print one object per example, with input_ids and labels, before packing (-100 does not count), and then one with the summary."`
	HTML   string `name:"html" placeholder:"FILE" help:"Write a page that shows every token of the examples."`
}

func (*previewCmd) Help() string {
	return `Shows the first examples of the training data as text, with what counts in the loss in [[double brackets]]
(and in green on a terminal, unless NO_COLOR is set), and then what the whole of the data comes to: documents, tokens,
packed rows.

Examples:

  millrace preview run.yaml --limit 1
  millrace preview run.yaml --html preview.html
  millrace preview run.yaml --json --limit 0 > tokens.jsonl
  millrace preview run.yaml --losses runs/a --worst --limit 200 --json > runs/a/rows.jsonl`
}

// Run shows examples.
func (c *previewCmd) Run(p *program) error {
	if c.Limit < 0 {
		return badFlag("--limit is %d: it must not be negative", c.Limit)
	}
	if c.JSON && c.HTML != "" {
		return badFlag("--json and --html are both given: choose one")
	}
	if c.Worst && c.Losses == "" {
		return badFlag("--worst needs losses: add --losses MODEL")
	}
	var html *vfs.Output
	if c.HTML != "" { // made now, so that an hour of tokenizing does not end in finding that it cannot be
		var err error
		if html, err = vfs.CreateOutput(c.HTML); err != nil {
			return badFlag("--html: %w", err)
		}
		defer html.Abort()
	}
	config, err := c.read()
	if err != nil {
		return err
	}
	var page []verbs.PreviewExample
	objects := json.NewEncoder(p.stdout)
	shown := 0
	show := func(e verbs.PreviewExample) error {
		shown++
		switch {
		case c.JSON && c.Losses != "":
			return objects.Encode(struct {
				verbs.PreviewExample
				Tokens []string `json:"tokens"` // as people read them
			}{e, e.Tokens})
		case c.JSON:
			return objects.Encode(e)
		case c.HTML != "":
			page = append(page, e)
			return nil
		}
		loss := ""
		if e.Loss != nil {
			loss = fmt.Sprintf(", which is %.4f", *e.Loss)
		}
		if err := p.printf("--- %s: %d tokens, %d count in the loss%s\n", exampleName(e, shown), len(e.InputIDs),
			counted(e.Labels), loss); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(p.stdout,
			marked(e.Pieces, terminal.Is(p.stdout), terminal.CanColor(p.stdout))); err != nil {
			return err
		}
		if more := len(e.InputIDs) - len(e.Tokens); more > 0 {
			return p.printf("--- and %d more tokens, which --json has\n", more)
		}
		return nil
	}
	s, err := verbs.Preview(p.ctx, p.env, config,
		verbs.PreviewOptions{Limit: c.Limit, Losses: c.Losses, Worst: c.Worst}, show)
	if err != nil {
		return err
	}
	if c.JSON {
		return objects.Encode(struct {
			Summary *verbs.PreviewSummary `json:"summary"`
		}{s})
	}
	if c.HTML != "" {
		err := previewPage(html, page, s, config)
		if err == nil {
			err = html.Commit()
		}
		if err != nil {
			return fmt.Errorf("--html: %w", err)
		}
	}
	lines := summaryLines(s, config.SequenceLen)
	if c.HTML == "" {
		lines = append(lines, "What stands in [[double brackets]] counts in the loss.")
	}
	for _, line := range lines {
		if err := p.printf("%s\n", line); err != nil {
			return err
		}
	}
	return nil
}

// exampleName names an example, given its number.
func exampleName(e verbs.PreviewExample, number int) string {
	switch {
	case e.Side == "":
		return fmt.Sprintf("example %d", number)
	case e.Pair == 0:
		return fmt.Sprintf("example %d, %s", number, e.Side)
	case e.Margin != 0 && e.Side == "chosen":
		return fmt.Sprintf("pair %d, %s (margin %.6g)", e.Pair, e.Side, e.Margin)
	}
	return fmt.Sprintf("pair %d, %s", e.Pair, e.Side)
}

// summaryLines says what the data come to.
func summaryLines(s *verbs.PreviewSummary, sequenceLen int) []string {
	lines := []string{fmt.Sprintf("--- %s, %d tokens, of which %d count in the loss; the longest has %d",
		spelling.Count(s.Documents, "document"), s.Tokens, s.TargetTokens, s.LongestDoc)}
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if l := s.Lengths; s.Documents > 0 && s.Tokens > 0 {
		over := make([]string, len(l.Over))
		for i, o := range l.Over {
			over[i] = fmt.Sprintf("%d over %d", o.Documents, o.Tokens)
		}
		add("half of the documents have at most %d tokens, 90%% at most %d, 99%% at most %d (%s); %.1f%% of the tokens count in the loss",
			l.P50, l.P90, l.P99, strings.Join(over, ", "), 100*float64(s.TargetTokens)/float64(s.Tokens))
	}
	if s.Repeated > 0 {
		add("%s equal to an earlier one", spelling.Count(s.Repeated, "document"))
	}
	if s.HeldInTrain > 0 {
		add("%d of %s are in the training data, too: the held-out loss is lower than that of new data", s.HeldInTrain, spelling.Count(s.HeldOf, "held-out document"))
	}
	if s.Pairs > 0 {
		add("%s of two documents: the answers of %d chosen and %d rejected sides reach beyond sequence_len (%d)",
			spelling.Count(s.Pairs, "pair"), s.LongChosen, s.LongRejected, sequenceLen)
	}
	if s.EqualPairs > 0 {
		add("%s left out, whose sides have the same tokens", spelling.Count(s.EqualPairs, "more pair"))
	}
	if labeled := s.Desirable + s.Undesirable; labeled > 0 {
		add("%d of %s are desirable", s.Desirable, spelling.Count(labeled, "answer"))
	}
	if s.SkippedRows > 0 {
		add("%s skipped", spelling.Count(s.SkippedRows, "bad row"))
	}
	if s.HeldOut > 0 {
		add("%s held out for evaluation (val_size)", spelling.Count(s.HeldOut, "more document"))
	}
	lines = append(lines, s.TurnLines...)
	p := data.Packing{Split: s.Split, Truncated: s.Truncated, Dropped: s.Dropped, CutTokens: s.CutTokens}
	if cut := p.Cut(s.Documents, sequenceLen); cut != "" {
		add("%s", cut)
	}
	if s.LeftOut != "" {
		add("%s", s.LeftOut)
	}
	if weighted := s.Packed != s.Documents-s.Dropped && s.LeftOut == ""; weighted {
		add("%s in an epoch, by the weights", spelling.Count(s.Packed, "document"))
	}
	add("%s of %d positions, %.1f%% of them filled", spelling.Count(s.Rows, "row"), sequenceLen, 100*s.Efficiency)
	return lines
}

// counted returns the number of labels that count. The first one is no target: nothing predicts it.
func counted(labels []int32) (n int) {
	for t, l := range labels {
		if t > 0 && l >= 0 {
			n++
		}
	}
	return n
}

// marked is an example's text with what counts in brackets: without control characters on a terminal, and there in
// green, unless the user wants no colors.
func marked(pieces []verbs.PreviewPiece, onTerminal, colors bool) string {
	open, end := "[[", "]]"
	if onTerminal && colors {
		open, end = "\x1b[32m[[", "]]\x1b[0m"
	}
	var b strings.Builder
	for _, piece := range pieces {
		text := piece.Text
		if onTerminal {
			text = terminal.Text(text)
		}
		if piece.Trained {
			text = open + text + end
		}
		b.WriteString(text)
	}
	return b.String()
}
