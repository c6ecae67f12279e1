// Package rl has the rounds of a loop of reinforcement learning: a round samples answers to prompts, has them judged
// meanwhile, and writes them to a file, on which the run trains as on a file of any other loop.
//
//   - [Prompts] is the order in which prompts are asked.
//   - [Loop.Round] returns the file of a round: the one that is there, or one that it makes. files.go says when a file
//     is whole.
//   - [Place] tells how far a run is in its rounds; a checkpoint has it.
//
// Invariants: a round that is made again has the same bytes where the sampler, the weights and the judges are the same.
// A file is whole or is made again, so that a run that was killed at any moment continues to the bits of one that was
// not.
package rl
