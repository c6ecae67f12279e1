package mpi

// library does what a World needs of MPI: [binding] calls an installed one, and tests have one in Go. One thread makes
// all calls.
type library interface {
	// send starts to send b to a rank, and receive to fill b from one. b stays in use until the transfer has ended.
	send(to, tag int, b []byte) (transfer, error)
	receive(from, tag int, b []byte) (transfer, error)
	// test gives every transfer a chance to proceed, and says whether t has ended; received counts the bytes of a
	// receive. A transfer that has ended, also by an error, must not be tested again.
	test(t transfer) (ended bool, received int, err error)
	// leave takes leave of the other ranks, when all of them do, and ends the process; abort ends all ranks. Neither
	// returns.
	leave(status int)
	abort(status int)
}

// transfer is a message on its way.
type transfer any

// joined describes this process and its library, once it has joined the others.
type joined struct {
	library    library
	version    string // such as "MPICH Version: 5.0.2"
	rank, size int
	local      []int // the ranks that share this host's memory, ascending
}
