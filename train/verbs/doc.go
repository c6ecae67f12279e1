// Package verbs has what a program asks of a model besides training, exports and texts: [Evaluate] is its loss over
// data, [Gradients] those of a batch, [PlanFor] the plan of a run, and [Preview] the examples that a run would see.
//
// An error that the request caused is marked with blame.ErrRequest: each verb says where its asking ends.
package verbs
