// Package export writes models: as Hugging Face directories, as GGUF files, and to the hub.
//
//   - [HuggingFace], [GGUF], [AddTokens] and [Push] are verbs. An error that the request caused is marked with
//     blame.ErrRequest.
//   - [Write] and [Checkpoint] write the model of a run, with a card (card.go). [Together] has host 0 of several write
//     it, and ask the others for what it has not.
//
// A model is written a part or a piece of a tensor at a time, so that one of any size fits, and its directory appears
// as a whole.
package export
