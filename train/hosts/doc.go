// Package hosts has what the hosts of a run do together: the processes that compute its steps, each with a store,
// devices and an engine of its own.
//
// An algorithm that runs on one host or on several has boundaries at which all hosts must do the same, such as the end
// of a step. At each of them a host brings a [Report] to [Decide], and does what the [Decision] says. A process that is
// alone, whose [Cluster] is nil, decides by its own report: so the algorithm is one for both.
//
// An error is in one of three states. A report tells an error of one host to all, which then end with it in good order,
// each with an [Error]. An error that follows from what is the same everywhere is known without that: it has the
// method SameOnAll. Any other one, from the middle of what all do together, is of this host alone: [Cluster.Alone]
// marks it, no report tells it, and the others learn of it by the end of this process.
//
// [Together] is for work that takes a different time on each host, such as to read a model.
package hosts
