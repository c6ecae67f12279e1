package main

import (
	"encoding/json"
	"strings"

	"github.com/millrace/millrace/train"
)

type previewCmd struct {
	runFile
	Limit int  `default:"3" help:"Examples to show; 0 shows all."`
	JSON  bool `help:"Print one object per example, with input_ids and labels, before packing; -100 does not count."`
}

func (*previewCmd) Help() string {
	return `Shows the first examples of the training data as text, with what counts in the loss in [[double brackets]] (in
green on a terminal), and then what the whole of the data comes to: documents, tokens, packed rows.

Examples:

  millrace preview run.yaml --limit 1
  millrace preview run.yaml --json --limit 0 > tokens.jsonl`
}

// Run shows examples.
func (c *previewCmd) Run(p *program) error {
	if c.Limit < 0 {
		return badFlag("--limit is %d: it must not be negative", c.Limit)
	}
	config, err := c.read()
	if err != nil {
		return err
	}
	lines := json.NewEncoder(p.stdout)
	shown := 0
	show := func(e train.PreviewExample) error {
		shown++
		if c.JSON {
			return lines.Encode(e)
		}
		return p.printf("--- example %d: %d tokens, %d count in the loss\n%s\n", shown, len(e.InputIDs), counted(e.Labels), p.marked(e.Pieces))
	}
	s, err := train.Preview(p.ctx, p.env, config, c.Limit, show)
	if err != nil || c.JSON {
		return err
	}
	split := ""
	if s.Split > 0 {
		split = " (longer than a row and split: " + plural(s.Split, "document") + ")"
	}
	return p.printf("--- %s, %d tokens, of which %d count in the loss; the longest has %d%s\n%s of %d positions, %.1f%% of them filled\n",
		plural(s.Documents, "document"), s.Tokens, s.TargetTokens, s.LongestDoc, split, plural(s.Rows, "row"), config.SequenceLen, 100*s.Efficiency)
}

// counted is how many labels count. The first one is no target: nothing predicts it.
func counted(labels []int32) (n int) {
	for t, l := range labels {
		if t > 0 && l >= 0 {
			n++
		}
	}
	return n
}

// marked is an example's text with what counts marked.
func (p *program) marked(pieces []train.PreviewPiece) string {
	open, end := "[[", "]]"
	if isTerminal(p.stdout) {
		open, end = "\x1b[32m", "\x1b[0m"
	}
	var b strings.Builder
	for _, piece := range pieces {
		if piece.Trained {
			b.WriteString(open + piece.Text + end)
		} else {
			b.WriteString(piece.Text)
		}
	}
	return b.String()
}
