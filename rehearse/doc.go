// Package rehearse runs plans on devices that only count, with state that is addresses alone: a model of any size
// rehearses on any machine.
//
//   - [Steps] and [Hosts] fail where the engine differs from the plan, to the byte.
//   - [Products] lists the matrix products of a step, for devices that choose algorithms for them.
package rehearse
