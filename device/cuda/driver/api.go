package driver

import "unsafe"

// API is the part of the driver that the CUDA device calls. A field's tag is the symbol it is bound to: where the
// driver has several versions of a function, the one that the headers of CUDA 12 choose. The functions may be called
// from any thread.
//
// The text of each function is in NVIDIA's "CUDA Driver API" reference; here stands what a caller must not forget.
type API struct {
	// Init comes before everything but DriverGetVersion; flags are 0.
	Init func(flags uint32) Result `cuda:"cuInit"`
	// DriverGetVersion gives 1000*major + 10*minor of the newest CUDA that the driver supports.
	DriverGetVersion func(version *int32) Result `cuda:"cuDriverGetVersion"`

	DeviceGetCount func(n *int32) Result                 `cuda:"cuDeviceGetCount"`
	DeviceGet      func(d *Device, ordinal int32) Result `cuda:"cuDeviceGet"`
	// DeviceGetName writes at most length bytes, the last of them NUL.
	DeviceGetName      func(name *byte, length int32, d Device) Result          `cuda:"cuDeviceGetName"`
	DeviceTotalMem     func(bytes *uint64, d Device) Result                     `cuda:"cuDeviceTotalMem_v2"`
	DeviceGetAttribute func(value *int32, attribute Attribute, d Device) Result `cuda:"cuDeviceGetAttribute"`
	// DeviceCanAccessPeer gives 1 where a device can reach the memory of another one, else 0.
	DeviceCanAccessPeer func(can *int32, d, peer Device) Result `cuda:"cuDeviceCanAccessPeer"`

	// The primary context of a device is shared by all of the process (cuBLASLt needs it, too) and counted. SetFlags comes
	// before the first Retain.
	DevicePrimaryCtxRetain   func(c *Context, d Device) Result   `cuda:"cuDevicePrimaryCtxRetain"`
	DevicePrimaryCtxRelease  func(d Device) Result               `cuda:"cuDevicePrimaryCtxRelease_v2"`
	DevicePrimaryCtxSetFlags func(d Device, flags uint32) Result `cuda:"cuDevicePrimaryCtxSetFlags_v2"`
	// CtxSetCurrent binds a context to the calling OS thread; every function below needs one. 0 unbinds.
	CtxSetCurrent func(c Context) Result `cuda:"cuCtxSetCurrent"`
	// CtxEnablePeerAccess has the current context reach memory of another one, and not the other way around. It lasts
	// as long as both contexts. Flags are 0.
	CtxEnablePeerAccess func(peer Context, flags uint32) Result `cuda:"cuCtxEnablePeerAccess"`

	MemGetInfo func(free, total *uint64) Result `cuda:"cuMemGetInfo_v2"`
	// MemAlloc gives memory whose address is a multiple of 256 and whose contents are arbitrary. 0 bytes are an error.
	MemAlloc func(p *DevicePtr, bytes uint64) Result `cuda:"cuMemAlloc_v2"`
	MemFree  func(p DevicePtr) Result                `cuda:"cuMemFree_v2"`
	// MemHostRegister pins host memory, so that copies from and to it are asynchronous. Registrations must not overlap.
	MemHostRegister   func(p unsafe.Pointer, bytes uint64, flags uint32) Result `cuda:"cuMemHostRegister_v2"`
	MemHostUnregister func(p unsafe.Pointer) Result                             `cuda:"cuMemHostUnregister"`
	// MemHostGetDevicePointer gives the address at which kernels see registered memory.
	MemHostGetDevicePointer func(p *DevicePtr, host unsafe.Pointer, flags uint32) Result `cuda:"cuMemHostGetDevicePointer_v2"`

	// A copy from or to host memory that is not registered is legal, and blocks the caller.
	MemcpyHtoDAsync func(dst DevicePtr, src unsafe.Pointer, bytes uint64, s Stream) Result `cuda:"cuMemcpyHtoDAsync_v2"`
	MemcpyDtoHAsync func(dst unsafe.Pointer, src DevicePtr, bytes uint64, s Stream) Result `cuda:"cuMemcpyDtoHAsync_v2"`
	MemcpyDtoDAsync func(dst, src DevicePtr, bytes uint64, s Stream) Result                `cuda:"cuMemcpyDtoDAsync_v2"`
	// MemcpyAsync tells device from host by the address (unified addressing).
	MemcpyAsync func(dst, src DevicePtr, bytes uint64, s Stream) Result `cuda:"cuMemcpyAsync"`
	// MemcpyPeerAsync copies from memory of one context to that of another. It works without access, too: the driver
	// then takes the way through host memory.
	MemcpyPeerAsync func(dst DevicePtr, to Context, src DevicePtr, from Context, bytes uint64,
		s Stream) Result `cuda:"cuMemcpyPeerAsync"`
	MemsetD8Async func(dst DevicePtr, value byte, bytes uint64, s Stream) Result `cuda:"cuMemsetD8Async"`

	// StreamCreateWithPriority: a lower number is more urgent; 0 is always valid.
	StreamCreateWithPriority func(s *Stream, flags uint32, priority int32) Result `cuda:"cuStreamCreateWithPriority"`
	// StreamDestroy returns at once; the work that is queued is still done.
	StreamDestroy     func(s Stream) Result `cuda:"cuStreamDestroy_v2"`
	StreamSynchronize func(s Stream) Result `cuda:"cuStreamSynchronize"`
	// StreamWaitEvent waits for the latest EventRecord before the call; for an event without one it does not wait. Flags
	// are 0.
	StreamWaitEvent func(s Stream, e Event, flags uint32) Result `cuda:"cuStreamWaitEvent"`

	EventCreate func(e *Event, flags uint32) Result `cuda:"cuEventCreate"`
	// EventDestroy may come before the event is reached.
	EventDestroy     func(e Event) Result           `cuda:"cuEventDestroy_v2"`
	EventSynchronize func(e Event) Result           `cuda:"cuEventSynchronize"`
	EventRecord      func(e Event, s Stream) Result `cuda:"cuEventRecord"`
	// EventElapsedTime is in milliseconds, at a resolution of about half a microsecond. It is NotReady before both are
	// reached.
	EventElapsedTime func(ms *float32, start, end Event) Result `cuda:"cuEventElapsedTime"`

	// ModuleLoadData compiles PTX text, which ends with a NUL, for the current context's device.
	ModuleLoadData func(m *Module, image *byte) Result `cuda:"cuModuleLoadData"`
	ModuleUnload   func(m Module) Result               `cuda:"cuModuleUnload"`
	// ModuleGetFunction: the name ends with a NUL.
	ModuleGetFunction func(f *Function, m Module, name *byte) Result                    `cuda:"cuModuleGetFunction"`
	FuncSetAttribute  func(f Function, attribute FunctionAttribute, value int32) Result `cuda:"cuFuncSetAttribute"`
	// LaunchKernel reads one pointer in params for each parameter of the kernel, and the parameter's value that it
	// points to, before it returns. Sizes are in blocks and threads; extra is nil.
	LaunchKernel func(f Function, gridX, gridY, gridZ, blockX, blockY, blockZ, sharedBytes uint32, s Stream,
		params, extra *unsafe.Pointer) Result `cuda:"cuLaunchKernel"`
}
