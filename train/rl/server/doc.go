// Package server samples with a server outside of the process: SGLang or vLLM. Prompts and answers are token ids in
// both directions, and weights are handed over through files.
//
//   - [Open] connects to a server and checks what it says of itself. It returns a [sampler.Server].
//   - [Exports] are the two directories by which weights are handed over, each with a [Manifest]: a checksum by tensor.
//   - sglang.go and vllm.go have the two protocols, as the sources of SGLang 0.5.23 and vLLM 0.33.0 have them (the
//     wheels of November 2026). answer.go has what both must keep; load.go and compare.go
//     check a hand-over.
//
// Invariants: an answer is checked before a caller sees it. Each request has a bound of time and of bytes, and follows
// no redirect. A request is repeated only where the server has not begun it: an answer that is drawn again because it
// took long would make short answers likelier. Goroutines end before Sample returns.
package server
