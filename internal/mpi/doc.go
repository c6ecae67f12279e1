// Package mpi lets the hosts of a cluster exchange bytes through the MPI library that is installed there.
//
// It is for training on several hosts. The rows of a step are split into groups, and each host has a group. The fp32
// gradient of a part travels as raw bytes to the rank that owns the part; the owner adds the groups' sums in their
// order, updates the part, and sends the new weights back. MPI only moves bytes and starts processes, so none of its
// algorithms can change a bit.
//
// [Detect] reads from the environment which launcher has started this process, [Start] joins the ranks, and a [World]
// has the operations: [World.Send] and [World.Receive] of bytes with a tag, which give a [Request] to wait for, and
// [World.Barrier] and [World.Exchange] of small bytes, which every rank calls in the same order. [Peers] gives an
// engine the messages that it sends and receives.
//
// Invariants:
//
//   - One OS thread makes every call of the library, from MPI_Init_thread to the end. It asks for
//     MPI_THREAD_SERIALIZED. Goroutines hand it their requests; it tests them in turn, and sleeps ever longer, up to
//     200 us, while nothing arrives.
//   - No wait is without end: one that is longer than the timeout fails, and names the rank that keeps the others
//     waiting. Ranks tell each other what they are at and for whom they wait, every second (signs.go), so it is the
//     last one of a chain of waits.
//   - The first failure is the world's: all requests fail with it, those that wait and those to come. [World.Abort] is
//     then the only way out.
//   - A process that called [Start] ends through [World.Leave] or [World.Abort]: MPICH takes leave of its launcher in a
//     C atexit handler, which os.Exit skips, and the launcher may then report a rank that failed. So both end through
//     exit of the C library.
//
// There are three binary interfaces of MPI, a table each: Open MPI 4 and 5, where handles are addresses of the
// library's variables; MPICH and all that follow its ABI (Intel MPI, MVAPICH, Cray MPICH), where handles are 32-bit
// numbers; and that of the MPI Forum. No cgo is needed; which table a library needs is asked of the library itself.
// Sources: mpi.h of Open MPI 5.0.11; mpi.h and mpi_abi.h of MPICH 5.0.2; "MPI: A Message-Passing Interface Standard",
// version 5.0, chapter 20.
//
// With the build tag nogpu, whose programs are static, and anywhere but on Linux on amd64 and arm64, Start returns an
// error that says so.
package mpi
