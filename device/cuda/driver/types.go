package driver

// Handles and addresses. 0 is never a valid one.
type (
	// A DevicePtr is an address that the GPU understands: of its own memory or, with unified addressing, of the host's.
	DevicePtr uint64
	// A Device is a GPU; devices are counted from 0, in an order that CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER set.
	Device   int32
	Context  uintptr
	Stream   uintptr
	Event    uintptr
	Module   uintptr
	Function uintptr
)

const (
	// MinVersion is the oldest driver that [Load] accepts, as DriverGetVersion counts: CUDA 12.0, which came in December
	// 2022 with the 525 series. It has all functions of [API], and runs machine code of every compiler of CUDA 12, for
	// GPUs that it knows (NVIDIA, "CUDA Compatibility", chapter "Minor Version Compatibility").
	MinVersion = 12000
	// MinPTXVersion is the oldest driver whose compiler reads PTX up to version 8.4, as our kernels are: CUDA 12.4, which
	// came in March 2024 with the 550 series. A GPU that there is no machine code for needs it.
	MinPTXVersion = 12040
)

// CtxSchedBlockingSync is for DevicePrimaryCtxSetFlags: a thread that waits sleeps, and leaves its core to the host's
// own work.
const CtxSchedBlockingSync = 0x4

// StreamNonBlocking is for StreamCreateWithPriority: the stream does not order itself with the legacy default stream.
const StreamNonBlocking = 0x1

// Flags of EventCreate.
const (
	EventBlockingSync  = 0x1 // EventSynchronize sleeps instead of spinning
	EventDisableTiming = 0x2 // cheaper to record, and EventElapsedTime refuses it
)

// Flags of MemHostRegister.
const (
	MemHostRegisterPortable  = 0x1 // the memory is pinned for all contexts of the process, not the current one alone
	MemHostRegisterDeviceMap = 0x2 // kernels can reach the memory, at the address of MemHostGetDevicePointer
)

// Attribute names a property of a device, for DeviceGetAttribute.
type Attribute int32

const (
	MultiprocessorCount          Attribute = 16
	KernelExecTimeout            Attribute = 17 // 1: kernels have a time limit, as where the GPU has a screen
	ComputeCapabilityMajor       Attribute = 75
	ComputeCapabilityMinor       Attribute = 76
	HostPointerOfRegistered      Attribute = 91 // 1: kernels see registered host memory at the address that the host has
	MaxSharedMemoryPerBlockOptin Attribute = 97 // bytes, with FuncSetAttribute
)

// FunctionAttribute names a setting of a kernel, for FuncSetAttribute.
type FunctionAttribute int32

// MaxDynamicSharedSizeBytes raises what a launch may ask for above 48 KiB, up to MaxSharedMemoryPerBlockOptin less
// the kernel's static shared memory.
const MaxDynamicSharedSizeBytes FunctionAttribute = 8
