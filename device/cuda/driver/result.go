package driver

import "fmt"

// Result is the status that every driver function returns (CUresult). An asynchronous failure comes from whatever
// call follows it.
type Result int32

// Results that callers tell apart, or that the stand-in returns; [Result.String] knows more.
const (
	Success                     Result = 0
	InvalidValue                Result = 1
	OutOfMemory                 Result = 2
	NotInitialized              Result = 3
	StubLibrary                 Result = 34
	NoDevice                    Result = 100
	InvalidDevice               Result = 101
	InvalidImage                Result = 200
	InvalidContext              Result = 201
	NoBinaryForGPU              Result = 209
	ECCUncorrectable            Result = 214
	PeerAccessUnsupported       Result = 217
	InvalidPTX                  Result = 218
	UnsupportedPTXVersion       Result = 222
	OperatingSystem             Result = 304
	InvalidHandle               Result = 400
	NotFound                    Result = 500
	NotReady                    Result = 600 // not an error: an event has not been reached
	IllegalAddress              Result = 700
	LaunchTimeout               Result = 702
	PeerAccessAlreadyEnabled    Result = 704
	ContextIsDestroyed          Result = 709
	TooManyPeers                Result = 711
	HostMemoryAlreadyRegistered Result = 712
	HostMemoryNotRegistered     Result = 713
	MisalignedAddress           Result = 716
	LaunchFailed                Result = 719
	NotPermitted                Result = 800
	NotSupported                Result = 801
	Unknown                     Result = 999
)

// results has the names of cuda.h, and texts that tell a user why training stopped.
var results = map[Result]struct{ name, text string }{
	Success:                     {"CUDA_SUCCESS", "success"},
	InvalidValue:                {"CUDA_ERROR_INVALID_VALUE", "an argument is not valid"},
	OutOfMemory:                 {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	NotInitialized:              {"CUDA_ERROR_NOT_INITIALIZED", "the driver is not initialized"},
	4:                           {"CUDA_ERROR_DEINITIALIZED", "the driver is shutting down"},
	StubLibrary:                 {"CUDA_ERROR_STUB_LIBRARY", "libcuda is the toolkit's stub, not the driver"},
	46:                          {"CUDA_ERROR_DEVICE_UNAVAILABLE", "the GPU is in use by another process that wants it for itself"},
	NoDevice:                    {"CUDA_ERROR_NO_DEVICE", "there is no GPU, or CUDA_VISIBLE_DEVICES hides it"},
	InvalidDevice:               {"CUDA_ERROR_INVALID_DEVICE", "there is no such GPU"},
	102:                         {"CUDA_ERROR_DEVICE_NOT_LICENSED", "the virtual GPU has no licence"},
	InvalidImage:                {"CUDA_ERROR_INVALID_IMAGE", "the module is not valid"},
	InvalidContext:              {"CUDA_ERROR_INVALID_CONTEXT", "no context is current for this thread"},
	205:                         {"CUDA_ERROR_MAP_FAILED", "memory could not be mapped"},
	206:                         {"CUDA_ERROR_UNMAP_FAILED", "memory could not be unmapped"},
	NoBinaryForGPU:              {"CUDA_ERROR_NO_BINARY_FOR_GPU", "the module is for another kind of GPU"},
	ECCUncorrectable:            {"CUDA_ERROR_ECC_UNCORRECTABLE", "the GPU's memory has an error that could not be corrected"},
	215:                         {"CUDA_ERROR_UNSUPPORTED_LIMIT", "the GPU has no such limit"},
	216:                         {"CUDA_ERROR_CONTEXT_ALREADY_IN_USE", "the context is in use by another thread"},
	PeerAccessUnsupported:       {"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "the GPU does not reach the other one"},
	InvalidPTX:                  {"CUDA_ERROR_INVALID_PTX", "the kernel's PTX could not be compiled"},
	220:                         {"CUDA_ERROR_NVLINK_UNCORRECTABLE", "NVLink has an error that could not be corrected"},
	221:                         {"CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "the driver's libnvidia-ptxjitcompiler.so is missing"},
	UnsupportedPTXVersion:       {"CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the driver is too old for the kernel's PTX"},
	223:                         {"CUDA_ERROR_JIT_COMPILATION_DISABLED", "compilation of PTX is disabled (CUDA_DISABLE_PTX_JIT)"},
	226:                         {"CUDA_ERROR_CONTAINED", "a memory error of the GPU was contained to this process"},
	302:                         {"CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", "a library of the driver lacks a symbol"},
	303:                         {"CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", "a library of the driver does not start"},
	OperatingSystem:             {"CUDA_ERROR_OPERATING_SYSTEM", "the operating system refused a call"},
	InvalidHandle:               {"CUDA_ERROR_INVALID_HANDLE", "a handle is not valid"},
	401:                         {"CUDA_ERROR_ILLEGAL_STATE", "a resource is in a state that does not allow this"},
	NotFound:                    {"CUDA_ERROR_NOT_FOUND", "no such name"},
	NotReady:                    {"CUDA_ERROR_NOT_READY", "not done yet"},
	IllegalAddress:              {"CUDA_ERROR_ILLEGAL_ADDRESS", "a kernel or copy went to an illegal address; the context is lost"},
	701:                         {"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "the launch needs more registers or shared memory than there are"},
	LaunchTimeout:               {"CUDA_ERROR_LAUNCH_TIMEOUT", "a kernel ran for too long for the display's watchdog; the context is lost"},
	PeerAccessAlreadyEnabled:    {"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "access was given before"},
	708:                         {"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "the GPU's primary context is already active"},
	ContextIsDestroyed:          {"CUDA_ERROR_CONTEXT_IS_DESTROYED", "the context is destroyed"},
	710:                         {"CUDA_ERROR_ASSERT", "a kernel's assertion failed; the context is lost"},
	TooManyPeers:                {"CUDA_ERROR_TOO_MANY_PEERS", "the GPU reaches the memory of too many others"},
	HostMemoryAlreadyRegistered: {"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "the host memory is already pinned"},
	HostMemoryNotRegistered:     {"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "the host memory is not pinned"},
	714:                         {"CUDA_ERROR_HARDWARE_STACK_ERROR", "a kernel's call stack broke; the context is lost"},
	715:                         {"CUDA_ERROR_ILLEGAL_INSTRUCTION", "a kernel met an illegal instruction; the context is lost"},
	MisalignedAddress:           {"CUDA_ERROR_MISALIGNED_ADDRESS", "a kernel went to a misaligned address; the context is lost"},
	717:                         {"CUDA_ERROR_INVALID_ADDRESS_SPACE", "a kernel went to the wrong kind of memory; the context is lost"},
	718:                         {"CUDA_ERROR_INVALID_PC", "a kernel jumped out of its code; the context is lost"},
	LaunchFailed:                {"CUDA_ERROR_LAUNCH_FAILED", "a kernel failed; the context is lost"},
	NotPermitted:                {"CUDA_ERROR_NOT_PERMITTED", "not permitted"},
	NotSupported:                {"CUDA_ERROR_NOT_SUPPORTED", "not supported by this GPU or system"},
	802:                         {"CUDA_ERROR_SYSTEM_NOT_READY", "the system is not ready: is nvidia-fabricmanager running?"},
	803:                         {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "libcuda and the kernel module differ in version: reboot after an update"},
	804:                         {"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "this GPU does not support the compatibility libcuda"},
	909:                         {"CUDA_ERROR_TIMEOUT", "the time is over"},
	911:                         {"CUDA_ERROR_EXTERNAL_DEVICE", "another device of the system failed; the context is lost"},
	Unknown:                     {"CUDA_ERROR_UNKNOWN", "unknown error: is the kernel module loaded (nvidia-smi)?"},
}

// String is the name in cuda.h, such as CUDA_ERROR_OUT_OF_MEMORY.
func (r Result) String() string {
	if known, ok := results[r]; ok {
		return known.name
	}
	return fmt.Sprintf("CUresult %d", int32(r))
}

// Err is nil for Success and else an [*Error] that names the call, such as "cuMemAlloc".
func (r Result) Err(call string) error {
	if r == Success {
		return nil
	}
	return &Error{Call: call, Result: r}
}

// Error is a driver call that failed.
type Error struct {
	Call   string // as in cuda.h, without a version: "cuMemAlloc"
	Result Result
}

// OfMachine reports that the request is not to blame: a GPU, its driver or its memory fails, and may not the next time.
func (*Error) OfMachine() bool { return true }

func (e *Error) Error() string {
	if known, ok := results[e.Result]; ok {
		return fmt.Sprintf("%s: %s (%s, %d)", e.Call, known.text, known.name, int32(e.Result))
	}
	return fmt.Sprintf("%s: error %d", e.Call, int32(e.Result))
}
