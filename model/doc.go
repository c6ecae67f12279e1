// Package model turns a Hugging Face config.json into a decoder that is made of nn parts and cut into the pieces that
// are streamed, and moves weights between checkpoints and those pieces.
//
//   - [Family] declares a kind of models: how its config.json becomes a [Spec], which says what block each layer has.
//   - [Names] is a family's table of tensors: the role of each, its names in checkpoints and GGUF files, and its cuts.
//   - [Model] is the network: its blocks, its head, and all its parts.
//   - [Part] is a unit of weights, fetched, updated and stored as one: its layout and the checkpoint tensors that fill
//     it.
//   - [Values] are a part's weights in host memory, as fp32 or as split master weights.
//
// [Model.ReadPart] fills a part from a checkpoint, [Model.InitPart] with random numbers; [Model.Tensors] says where
// each tensor of the checkpoint is, for an export or for gradients by name.
//
// Layers are numbered in the order of the forward pass: 0 is the token embedding, 1 to L are the blocks of all chains
// ([Chain]), the text's last, L+1 is the final norm and the head. Layers may differ; their parts share a layout where
// they have the same tensors. The [vocabulary, hidden] matrices are cut into tiles about as large as the largest block,
// so that no part is much larger than another one; a tied matrix is one set of parts with two uses.
//
// Invariants:
//
//   - A model depends on config.json alone; so do its cuts, which set the order of sums.
//   - A key of config.json that the family does not know is an error, never ignored (see hf.ConfigReader).
//   - A checkpoint has every tensor of the model in the right shape. Each other tensor of its files is carried
//     ([Model.Carried]: not loaded, and exports copy it), or on a list of those that change nothing, or an error; a tied
//     model's head is the embedding once more, or an error.
//   - Padding in an extent is zero.
package model
