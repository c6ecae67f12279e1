// Package kernels carries the compiled GPU kernels of the CUDA device, and says how each one is launched.
//
// The kernels are written in Triton (the .py files here), compiled ahead of time by build.py to PTX and, for the
// architectures that people have, to machine code ([LoadCode]), and embedded: building the program takes neither Python
// nor CUDA. A [Set] has all kernels of a target; a [Kernel] has its PTX, its arguments in order, and its grid as
// expressions over them. Nothing about a launch is known anywhere else:
//
//	set, err := kernels.Load("sm80")
//	values := []uint64{y, a, b, rows, cols, sy, sa, sb}
//	k, err := set.Choose("add.bf16", values) // add.bf16.a16 if the operands are aligned, else add.bf16.any
//	grid, err := k.Programs(values)
//	params := k.Params(values)
//
// # Names
//
// A name is OP.TYPE[.VARIANT]. The variant a16 takes operands whose addresses, columns and strides are multiples of
// 16, in bytes and elements, so that threads move 16 bytes at once; any takes all. What exactly must be a multiple is
// in [Kernel.Aligned]. narrow, c2048, c4096 and c8192 are such for rows that are not longer, see [Kernel.Most].
//
// # Targets
//
// "sm80" is PTX that every GPU from compute capability 8.0 on takes, newer ones by translation in their driver; "sm90a"
// is for 9.0 alone. Both need a driver of CUDA 12.4. Machine code is made from one of them, see [Architecture]; drivers
// of CUDA 12.0 take it. A GPU without machine code, or whose driver refuses it, takes the PTX, which the driver
// compiles for over a minute at the first start.
//
// # Laws
//
// The tests here hold the embedded files to their sources (by checksum), the PTX and the machine code to their
// manifest (arguments, target, version), and the figures of ptxas to their limits. README.md says how to add a
// kernel.
package kernels
