// Package gguf writes models as GGUF files, which llama.cpp and what is built on it run, and turns such files into
// model directories.
//
//   - [Export] writes a model: its weights in a [Type], its configuration and its tokenizer. [Report] has what it wrote.
//   - [Import] turns a file into a directory as package hf has them: weights dequantized, config.json, tokenizer.json.
//
// Invariants:
//
//   - Every size that comes from a file is checked against the file's real size before anything is allocated for it.
//   - An import refuses what a model directory cannot say, and an export what a GGUF file cannot say.
//   - A written file becomes visible by one rename, after it was synced and read back.
package gguf
