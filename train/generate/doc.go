// Package generate has models write texts.
//
//   - [Text] and [Each] continue prompts, and [Conversation] is a talk; they are verbs. An error that the request
//     caused is marked with blame.ErrRequest.
//   - [Sampling] has the prompts that the key samples gives to a model in training, and [WriteSamples] the texts.
//   - texts.go computes what is expected to follow texts, with caches of what it has read; writing.go has texts grow
//     together, and picker.go chooses tokens by their logits.
package generate
