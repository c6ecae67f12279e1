package verbs

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
)

// PreviewTokens bounds the tokens of an example that are spelled: more than a person reads, while each takes many
// times the memory of its id.
const PreviewTokens = 1 << 17

// PreviewExample is one example as the model will see it, before packing.
type PreviewExample struct {
	InputIDs []int32 `json:"input_ids"`
	Labels   []int32 `json:"labels"` // not shifted; -100 where the token does not count in the loss
	// Pair counts the pairs from 1, and Side is chosen or rejected, where the data are pairs. Margin is by how much the
	// chosen side is the better one, as the row says. Of an answer with a label the side is desirable or undesirable.
	Pair   int     `json:"pair,omitempty"`
	Side   string  `json:"side,omitempty"`
	Margin float64 `json:"margin,omitempty"`
	// Losses are those of each token, and Loss is their mean over the tokens that count, where PreviewOptions ask for
	// them.
	Losses TokenLosses `json:"losses,omitempty"`
	Loss   *float64    `json:"loss,omitempty"`
	// Pieces are the text, of the first PreviewTokens tokens.
	Pieces []PreviewPiece `json:"-"`
	// Tokens spells the first PreviewTokens tokens one by one. One that is a part of a character is what its bytes
	// print as.
	Tokens []string `json:"-"`
}

// Trained reports whether token t counts in the loss. The first one never does: nothing predicts it.
func (e PreviewExample) Trained(t int) bool { return t > 0 && e.Labels[t] != data.Ignore }

// PreviewPiece is a run of tokens that count, or that do not, with special tokens spelled out.
type PreviewPiece struct {
	Text    string
	Trained bool
}

// PreviewSummary counts what a run would train on in one pass over its data.
type PreviewSummary struct {
	Documents    int     `json:"documents"`
	Tokens       int64   `json:"tokens"`
	TargetTokens int64   `json:"target_tokens"`
	LongestDoc   int     `json:"longest_document"`    // tokens
	SkippedRows  int     `json:"skipped_rows"`        // bad ones, where bad_rows is skip
	HeldOut      int     `json:"held_out"`            // documents of val_size, which are not counted above
	Split        int     `json:"split_documents"`     // longer than a row: cut into several pieces
	Truncated    int     `json:"truncated_documents"` // longer than a row: cut off
	Dropped      int     `json:"dropped_documents"`   // longer than a row: left out
	CutTokens    int64   `json:"cut_tokens"`          // that are left out so
	Packed       int     `json:"packed_documents"`    // in an epoch; a weight makes documents come more or less often than once
	Rows         int     `json:"rows"`                // of sequence_len positions
	Efficiency   float64 `json:"packing_efficiency"`

	Pairs        int `json:"pairs,omitempty"`         // each of two documents
	EqualPairs   int `json:"equal_pairs,omitempty"`   // left out, since their sides have the same tokens
	LongChosen   int `json:"long_chosen,omitempty"`   // chosen sides that are longer than a row
	LongRejected int `json:"long_rejected,omitempty"` // rejected ones
	Desirable    int `json:"desirable,omitempty"`     // answers with a label
	Undesirable  int `json:"undesirable,omitempty"`
	// LeftOut says how many pairs no step can have, and why.
	LeftOut string `json:"left_out,omitempty"`

	Lengths     data.Lengths `json:"lengths"`           // of the documents, in tokens
	Repeated    int          `json:"repeated"`          // documents that are equal to an earlier one
	HeldInTrain int          `json:"held_out_repeated"` // held-out documents that are in the training data, too
	HeldOf      int          `json:"held_out_all"`      // held-out documents, of val_size or of eval.datasets

	// Turns counts the assistant's turns before a split, and EndedTurns those that end with a token at which a
	// generation ends. TurnLines say that for people.
	Turns      data.TurnCounts `json:"turns"`
	EndedTurns int64           `json:"ended_turns"`
	TurnLines  []string        `json:"-"`
}

// PreviewOptions say which examples are shown, and what of them.
type PreviewOptions struct {
	Limit  int    // examples, or pairs; 0: all
	Losses string // a model, a run's output directory, or a checkpoint, whose losses are shown; empty: none
	Worst  bool   // those with the greatest losses come first
}

// Preview shows the first examples of a run's training data, or those with the greatest losses. Of pairs it shows both
// sides, and counts pairs. Of the model it reads config.json, the tokenizer and the chat template, and weights only
// where losses are asked for: these take one evaluation of all of the data, which is kept.
func Preview(ctx context.Context, env *session.Env, c *runfile.Config, o PreviewOptions,
	show func(PreviewExample) error) (sum *PreviewSummary, err error) {
	var ask blame.Asking
	defer ask.Judge(ctx, &err)
	src, err := source.OpenModel(ctx, env, c.Model)
	if err != nil {
		return nil, err
	}
	source.ShareReading(env, c.Memory.Host.N)
	r, err := src.OpenReader(c)
	if err != nil {
		return nil, err
	}
	r.Check = nil // any data can be looked at
	if note := source.TokenizerNote(r.Tokenizer); note != "" {
		env.Note("%s", note)
	}
	d, held, err := source.PrepareRun(ctx, env, c, r)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	if held != nil {
		defer held.Close()
	}
	batchTokens := c.SequenceLen
	if d.HasPairs() || d.HasRollouts() { // of which a step takes as many as fit
		batchTokens = c.BatchTokens
	}
	var scoreAt data.ScoreAt
	if c.Objective.Scores() {
		if err := src.EndInScore(c.Tokenizer); err != nil {
			return nil, err
		}
		scoreAt = src.Model.Scoring.Position
	}
	var p data.Packing
	if !d.HasPrompts() { // which have nothing to pack until they are answered
		rows, err := data.NewLoader(d, data.LoaderOptions{SequenceLen: c.SequenceLen, BatchTokens: batchTokens,
			Seed: c.Seed, Epochs: 1, ScoreAt: scoreAt,
			LongDocuments: data.LongDocuments(c.Overlong), Accounts: env.Accounts})
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		p = rows.Packing()
	}
	ask.IsOver = true
	sum = &PreviewSummary{Documents: d.Len(), Tokens: d.Tokens(), TargetTokens: d.TargetTokens(), LongestDoc: d.LongestDocument(),
		Split: p.Split, Truncated: p.Truncated, Dropped: p.Dropped, CutTokens: p.CutTokens,
		Packed: p.Documents, Rows: p.Rows, Efficiency: p.Efficiency()}
	if scoreAt != nil {
		sum.TargetTokens = int64(d.Len())
	}
	sum.SkippedRows, _ = d.Skipped()
	sum.Turns, sum.EndedTurns, sum.TurnLines = d.Turns(), d.EndedTurns(), d.TurnLines(c.TrainOnLast)
	if d.HasPairs() {
		sum.Pairs, sum.EqualPairs = d.Len()/2, d.EqualPairs()
		sum.LongChosen, sum.LongRejected = d.SidesOver(c.SequenceLen)
		sum.LeftOut = p.LeftOut(c.SequenceLen)
		o.Limit *= 2
	}
	sum.Desirable, sum.Undesirable = d.Labels()
	if c.ValSize > 0 {
		sum.HeldOut = held.Len()
	}
	if sum.Lengths, err = d.Lengths(); err != nil {
		return nil, err
	}
	if sum.Repeated, sum.HeldInTrain, err = d.Repeats(ctx, held); err != nil {
		return nil, err
	}
	if held != nil {
		sum.HeldOf = held.Len()
	}
	var order []int // nil: as they are
	var by *losses
	if o.Losses != "" {
		if by, err = openLosses(ctx, env, c, o.Losses, src, d); err != nil {
			return nil, fmt.Errorf("--losses: %w", err)
		}
		defer by.close()
		if o.Worst {
			if order, err = by.worst(ctx); err != nil {
				return nil, err
			}
		}
	}
	for n := range d.Len() {
		if o.Limit > 0 && n >= o.Limit {
			break
		}
		i := n
		if order != nil {
			i = order[n]
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		e, err := d.Example(i)
		if err != nil {
			return nil, err
		}
		if n := len(e.InputIDs); scoreAt != nil && n > 0 {
			at := scoreAt(e.InputIDs)
			e.Labels = slices.Repeat([]int32{data.Ignore}, n)
			e.Labels[at] = e.InputIDs[at]
		}
		p := previewOf(r.Tokenizer, e)
		if by != nil {
			mean := 0.0
			if p.Losses, mean, err = by.of(i, e); err != nil {
				return nil, err
			}
			if !math.IsNaN(mean) {
				p.Loss = &mean
			}
		}
		p.Side = sides[d.Side(i)]
		if d.HasPairs() {
			p.Pair, p.Margin = i/2+1, d.Margin(i)
		}
		if err := show(p); err != nil {
			return nil, err
		}
	}
	return sum, ctx.Err()
}

// sides are the names of sides; a document by itself has none.
var sides = map[objective.Side]string{objective.Chosen: "chosen", objective.Rejected: "rejected",
	objective.Desirable: "desirable", objective.Undesirable: "undesirable"}

// previewOf spells an example, and cuts it where counting begins and ends.
func previewOf(tok tokenizer.Tokenizer, e data.Example) PreviewExample {
	p := PreviewExample{InputIDs: e.InputIDs, Labels: e.Labels}
	shown := e.InputIDs[:min(len(e.InputIDs), PreviewTokens)]
	for t := 0; t < len(shown); {
		end := t + 1
		for end < len(shown) && p.Trained(end) == p.Trained(t) {
			end++
		}
		p.Pieces = append(p.Pieces, PreviewPiece{Text: tok.Decode(shown[t:end], false), Trained: p.Trained(t)})
		t = end
	}
	var text []byte
	for _, id := range shown {
		text = tok.AppendBytes(text[:0], id, false)
		p.Tokens = append(p.Tokens, string(text))
	}
	return p
}
