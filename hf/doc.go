// Package hf reads and writes model directories in the form that Hugging Face transformers uses.
//
// A model directory is config.json, weights in safetensors (one file, or shards with an index) and the tokenizer's
// files.
//
//   - [Weights] reads tensors, by ranges of elements, so that a tensor larger than memory can be streamed.
//     Tensors in MXFP4, which gpt-oss has, are read as what they stand for.
//   - [ModelWriter] writes a model directory; [FileWriter] writes one safetensors file. Both stream.
//   - [Config] is config.json, kept byte for byte; [ConfigReader] reads it so that no key goes unnoticed.
//   - [ResolveModel] turns a hub id into a local directory.
//
// Invariants:
//
//   - Every size that comes from a file is checked against the file's real size before anything is allocated for it.
//   - A file that two programs could read in two ways is refused: duplicate keys, overlapping tensors, gaps, trailing data.
//   - A written file becomes visible by one rename, after it was synced: a reader sees all of it or nothing.
//   - An error is one line that names the file and the tensor or key, and says how to fix it.
package hf
