package ptx

import (
	"errors"
	"fmt"
)

// The reasons for which a launch can fail; a [*Fault] wraps one of these.
var (
	ErrConfig      = errors.New("the launch does not fit the kernel") // CUDA_ERROR_INVALID_VALUE
	ErrAddress     = errors.New("illegal address")                    // CUDA_ERROR_ILLEGAL_ADDRESS
	ErrMisaligned  = errors.New("misaligned address")                 // CUDA_ERROR_MISALIGNED_ADDRESS
	ErrDivergence  = errors.New("lanes are elsewhere")                // a hang or undefined results on a GPU
	ErrBudget      = errors.New("the kernel does not end")            // CUDA_ERROR_LAUNCH_TIMEOUT
	ErrUnsupported = errors.New("not supported")                      // by this package, of what only a launch can tell
	ErrTrap        = errors.New("the kernel stopped itself")          // CUDA_ERROR_LAUNCH_FAILED
)

// A Fault tells what ended a launch, and where.
type Fault struct {
	Kernel      string
	Instruction string    // its opcode; empty if the launch did not begin
	Line        int       // of the PTX text
	Block       [3]uint32 // %ctaid
	Thread      int       // within the block, x first
	Err         error
}

func (f *Fault) Error() string {
	if f.Instruction == "" {
		return fmt.Sprintf("ptx: %s: %v", f.Kernel, f.Err)
	}
	return fmt.Sprintf("ptx: %s: line %d: %s: block %v, thread %d: %v", f.Kernel, f.Line, f.Instruction, f.Block, f.Thread,
		f.Err)
}

func (f *Fault) Unwrap() error { return f.Err }

// errorAt is an error of Parse.
func errorAt(line int, format string, args ...any) error {
	return fmt.Errorf("ptx: line %d: %s", line, fmt.Sprintf(format, args...))
}
