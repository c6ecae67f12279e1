// Package sampler has the types by which a loop of reinforcement learning asks for answers: prompts and answers as
// token ids, never as text, since a text that is tokenized again may have other ids.
package sampler

import "context"

// Prompt asks for some answers to a prompt.
type Prompt struct {
	Group   int64   // the number of the prompt in the run, which names its random numbers
	IDs     []int32 // its tokens, with those that come before an answer; at least one
	Samples int     // answers that are asked for
	Ends    []int32 // tokens that end an answer
}

// Params say how answers are sampled.
type Params struct {
	MaxTokens   int     // of an answer, its end included
	Positions   int     // of prompt and answer together, at most; 0: what the sampler has
	Temperature float64 // that logits are divided by, above 0
	TopK        int     // only the K likeliest tokens; 0: all
	TopP        float64 // only the likeliest tokens that have this probability together; 0 and 1: all
	Seed        uint64
	Version     int64 // of the weights: steps that they have been trained for
}

// Most is the length of an answer to a prompt, at most.
func (p Params) Most(prompt Prompt) int {
	if p.Positions == 0 {
		return p.MaxTokens
	}
	return min(p.MaxTokens, p.Positions-len(prompt.IDs))
}

// Why an answer ends.
const (
	FinishStop   = "stop"   // by one of its prompt's Ends
	FinishLength = "length" // it was cut off
)

// Completion is an answer.
type Completion struct {
	Prompt int     // index of its prompt among those that were asked for
	Sample int     // number among the answers to it, from 0
	IDs    []int32 // its tokens, with the one that ended it
	// LogProbs are those of the tokens, natural logarithms by the distribution that they were drawn from; NaN where one
	// is not known, and nil where none is known.
	LogProbs []float32
	Finish   string
	Version  int64 // of the weights that have sampled it
}

// Sampler answers prompts.
type Sampler interface {
	// Name names the sampler with its version and number format, for the files of rollouts.
	Name() string
	// Sample asks for the answers to all prompts. It calls done with each one as it ends, in any order, one call at a
	// time; an error of done ends it. The same prompts, parameters and weights have the same answers only where the
	// sampler is the program's own.
	Sample(ctx context.Context, prompts []Prompt, p Params, done func(Completion) error) error
}

// Server is a sampler outside of the process, which has weights of its own.
type Server interface {
	Sampler
	// Load has the server take over the weights of a Hugging Face directory that it can read.
	Load(ctx context.Context, dir string, version int64) error
	// Sleep has the server give the memory of its device back, and Wake has it take that again. A server on another
	// device does nothing.
	Sleep(ctx context.Context) error
	Wake(ctx context.Context) error
	Close() error
}
