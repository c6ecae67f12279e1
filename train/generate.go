package train

import (
	"context"
	"errors"
	"io"
)

// GenerateOptions say what to continue, and how to choose tokens.
type GenerateOptions struct {
	Model       string // a Hugging Face directory, or a hub id
	Prompt      string
	Tokenizer   string // auto (the model's), bytes, or a path
	MaxTokens   int
	Temperature float64 // 0: the most likely token
	TopK        int     // only the K most likely tokens; 0: all
	TopP        float64 // only the most likely tokens that have this probability together; 0 and 1: all
	Seed        uint64
	Compute     string // bf16 or f32
	Memory      Memory
	Device      string
	Out         io.Writer // gets the text as it comes; may be nil
}

// Generated is a continued text.
type Generated struct {
	Text         string  `json:"text"` // without the prompt
	Tokens       []int32 `json:"tokens"`
	PromptTokens int     `json:"prompt_tokens"`
	TokensPerSec float64 `json:"tokens_per_sec"`
}

// Generate continues a prompt.
func Generate(ctx context.Context, env *Env, o GenerateOptions) (*Generated, error) {
	return nil, errors.New("generate: being written")
}
