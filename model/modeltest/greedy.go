package modeltest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Continued is a prompt and the tokens that transformers generates after it, always the likeliest one. Source:
// golden_tokens.py.
type Continued struct {
	Prompt, Tokens []int32
	// The least by which the logit of a token was greater than the next one's: far more than rounding in fp32.
	Margin float64
}

// readGreedy reads the greedy.json of a variant's directory.
func readGreedy(dir string) (all []Continued, err error) {
	path := filepath.Join(dir, "greedy.json")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: run model/modeltest/golden_tokens.py", err)
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}
