package train

import (
	"context"
	"errors"
)

// PreviewExample is one example as the model will see it, before packing.
type PreviewExample struct {
	InputIDs []int32        `json:"input_ids"`
	Labels   []int32        `json:"labels"` // -100 where the token does not count in the loss
	Pieces   []PreviewPiece `json:"-"`
}

// PreviewPiece is a run of tokens that count, or that do not.
type PreviewPiece struct {
	Text    string
	Trained bool
}

// PreviewSummary counts what a run would train on.
type PreviewSummary struct {
	Documents    int     `json:"documents"`
	Tokens       int64   `json:"tokens"`
	TargetTokens int64   `json:"target_tokens"`
	LongestDoc   int     `json:"longest_document"` // tokens
	Split        int     `json:"split_documents"`  // longer than a row
	Rows         int     `json:"rows"`
	Efficiency   float64 `json:"packing_efficiency"` // share of positions that are not padding
}

// Preview shows the first examples of a run's training data, at most limit of them; 0 shows all.
func Preview(ctx context.Context, env *Env, c *Config, limit int, show func(PreviewExample) error) (*PreviewSummary, error) {
	return nil, errors.New("preview: being written")
}
