// Package ptx executes PTX text, the assembly language of NVIDIA GPUs, on the CPU, as far as Triton emits it
// for sm_80, and for sm_90a what Hopper adds (wgmma, stmatrix).
//
// It is test support: machines without a GPU run the very kernels that the program carries and compare their results
// with the CPU device's. So it computes what the PTX ISA defines, lane by lane, and never
// approximates: for an opcode, a modifier or an operand that no kernel uses, [Parse] returns an error with its name
// and its line.
//
// [Parse] reads a [Module]; a [Kernel] of it is launched over a [Memory], the caller's global memory. A launch that
// goes wrong returns a [*Fault], which names the kernel, the line, the block and the thread.
//
// How it runs:
//
//   - Registers are stored by warp, 32 lanes side by side, and an instruction runs over the lanes of its warp at once.
//     A constant or a special register is a row like any other, filled when the warp is made.
//   - Lanes that diverge are run lowest program counter first, and join where their counters meet. This is a legal order for any
//     program without spin locks between the lanes of a warp.
//   - The warps of a block take turns at bar.sync. Blocks run in order, or on several goroutines ([Config.Workers]).
//   - cp.async copies nothing until a wait_group needs it, so that a missing wait shows. wgmma is done when it is issued, so that
//     a missing wait, or a missing fence, does not.
//   - Shared memory, local memory and registers start as NaN in every float type, so that what is read before it is written shows.
//
// Where it may differ from a GPU, within what the ISA promises:
//
//   - ex2, lg2, sin, cos, tanh, rcp, rsqrt, sqrt, div in their .approx and .full forms are computed in float64 and rounded once;
//     a GPU is off by up to 2 units in the last place (2^-20.5 absolute for sin and cos, 2^-11 relative for tanh).
//   - mma and wgmma round after each product, in the order of k, from the accumulator on; a GPU adds in groups, at a width of its
//     own, and truncates.
//   - mul and add without a rounding modifier may be fused by ptxas. They are not fused here: kernels whose bits matter ask
//     for .rn, and [Kernel.MayFuse] says whether they do.
package ptx
