package train

import (
	"context"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/tokenizer"
)

// PreviewExample is one example as the model will see it, before packing.
type PreviewExample struct {
	InputIDs []int32        `json:"input_ids"`
	Labels   []int32        `json:"labels"` // not shifted; -100 where the token does not count in the loss
	Pieces   []PreviewPiece `json:"-"`
}

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
	LongestDoc   int     `json:"longest_document"` // tokens
	Split        int     `json:"split_documents"`  // longer than a row: cut into several pieces
	Rows         int     `json:"rows"`             // of sequence_len positions
	Efficiency   float64 `json:"packing_efficiency"`
}

// Preview shows the first examples of a run's training data, at most limit of them; 0 shows all. Of the model it reads
// config.json and the tokenizer, no weights.
func Preview(ctx context.Context, env *Env, c *Config, limit int, show func(PreviewExample) error) (*PreviewSummary, error) {
	src, err := openModel(ctx, env, c.Model)
	if err != nil {
		return nil, err
	}
	tok, err := src.openTokenizer(c.Tokenizer)
	if err != nil {
		return nil, err
	}
	d, err := env.prepare(ctx, "the training data", c.Datasets, tok, c.TrainOnPrompt)
	if err != nil {
		return nil, err
	}
	sum := &PreviewSummary{Documents: d.Len(), Tokens: d.Tokens(), TargetTokens: d.TargetTokens(), LongestDoc: d.LongestDocument()}
	rows, err := data.NewLoader(d, data.LoaderOptions{SequenceLen: c.SequenceLen, BatchTokens: c.SequenceLen, MicroBatch: 1, Seed: c.Seed, Epochs: 1})
	if err != nil {
		return nil, Request(err)
	}
	packing := rows.Packing()
	sum.Rows, sum.Efficiency = packing.Rows, packing.Efficiency()
	for i := range d.Len() {
		shown := limit > 0 && i >= limit
		if shown && sum.LongestDoc <= c.SequenceLen {
			break
		}
		e := d.Example(i)
		if len(e.InputIDs) > c.SequenceLen {
			sum.Split++
		}
		if shown {
			continue
		}
		if err := show(PreviewExample{InputIDs: e.InputIDs, Labels: e.Labels, Pieces: pieces(tok, e)}); err != nil {
			return nil, err
		}
	}
	return sum, ctx.Err()
}

// pieces cuts an example where counting begins and ends. The first token is never predicted, so it never counts.
func pieces(tok tokenizer.Tokenizer, e data.Example) []PreviewPiece {
	trained := func(t int) bool { return t > 0 && e.Labels[t] != data.Ignore }
	var all []PreviewPiece
	for t := 0; t < len(e.InputIDs); {
		end := t + 1
		for end < len(e.InputIDs) && trained(end) == trained(t) {
			end++
		}
		all = append(all, PreviewPiece{Text: tok.Decode(e.InputIDs[t:end], false), Trained: trained(t)})
		t = end
	}
	return all
}
