// Package nn holds the parts that transformers are made of, with forward and backward written by hand over
// [device.Stream]: the [Block], which is made of a [Mixer] and a [FeedForward], and the [Head] (final norm, vocabulary,
// loss). A [Rule] joins a block's halves to the residual stream. Tensors go by their roles ("q.weight"); package model
// knows what files call them. An embedding of tokens is two operations of the stream, Gather and ScatterAdd, and needs
// nothing here; one of positions is a block's (Block.Positions).
//
// The parts own no memory and allocate none. Four kinds of buffers come from a [device.Arena]:
//
//   - [Params] are the weights, or the fp32 gradients, of one part of the model: a range of memory and its layout.
//   - [Kept] has the values that a block's forward leaves for its backward, in addition to the block's input; [Keep]
//     says which.
//   - [Cache] has what a mixer keeps of positions from pass to pass, where text is generated.
//   - [Work] is scratch for one call. All blocks and micro-batches of a stream can share it.
//
// An arena over no memory counts what the same calls would take: that is how a plan sizes these buffers.
//
// Invariants:
//
//   - All activations and weights of a call have one type, F32 or BF16; gradients of parameters are F32 and accumulate.
//   - Backward gives the same bits for every Keep, since it repeats the operations of forward on the same shapes.
//   - The head gives the same bits whether its tiles visit one by one or all at once.
//   - A frozen tensor's gradient is the zero Mat, and its product is skipped.
package nn
