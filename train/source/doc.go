// Package source reads the model that a run or a verb begins with, and what goes with its weights.
//
//   - [Source] is a directory with its configuration, or the weights of a run: [OpenTrained] finds out which.
//   - [Reader] turns rows into tokens, by the tokenizer and the chat template that a run file names; [PrepareRun] reads
//     the data sets.
//   - [Carried] are tensors that are not trained and travel to an export unchanged, and [FrozenBase] reads those that
//     are frozen from the model that a run began with.
//   - [Handover] has the files by which other programs use a model as its run did.
//   - [Fill] brings the weights into the store of a session.
package source
