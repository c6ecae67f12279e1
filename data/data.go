// Package data turns files into the batches that a training step sees.
//
// The way is: a [Source] names files, of this machine or of the Hugging Face hub; each row of them is a [Record]; a
// [Renderer] turns a record into segments of text, some of which the model shall learn to produce; a tokenizer turns
// these into an [Example]; [Prepare] does all of this in parallel, keeps the result in a cache, and returns a [Dataset]; a
// [Loader] shuffles and packs its documents into rows of a fixed length and hands them out as micro-batches, step by step.
//
// There are two renderers: [Plain], and [Chat] for conversations, which asks the model's own chat template.
//
// Invariants:
//   - the order of documents, the packing and every batch depend only on the dataset's content, the seed and the
//     loader's sizes: never on timing, the number of workers or the cache;
//   - in an epoch each token of each document stands in exactly one batch, and each target is counted exactly once;
//   - a [Cursor] is all that a loader remembers: seeking to it gives the batches that would have come next;
//   - bad input is an error that names the file and the line (in Parquet the number of the row). No row is skipped
//     unless its source says so, and then it is counted. No byte is replaced before the tokenizer sees it.
package data

// Ignore is the label of a token that does not count in the loss, as in PyTorch and transformers.
const Ignore int32 = -100

// Example is one tokenized document before packing. Labels[t] is InputIDs[t] or [Ignore]: it is not shifted, as in
// transformers, so position t learns Labels[t+1], and Labels[0] is never a target.
type Example struct {
	InputIDs []int32 `json:"input_ids"`
	Labels   []int32 `json:"labels"`
}
