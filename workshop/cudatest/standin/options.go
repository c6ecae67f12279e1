package standin

import (
	"runtime"
	"time"

	"github.com/millrace/millrace/device/cuda/driver"
)

// Options describes the GPUs and the driver to play. The zero value is one card of compute capability 8.0 with 1 GiB,
// and a driver of CUDA 12.4.
type Options struct {
	// Cards counts the cards, which are alike. 0: one.
	Cards int

	// Peers says that each card can reach the memory of the others, once it is given access.
	Peers bool

	// Odd has the compute capabilities of cards that are of another kind, by number.
	Odd map[int][2]int32

	// MemoryBytes bounds what MemAlloc gives of each card in all.
	MemoryBytes uint64

	// Capability is the compute capability, major and minor. PTX for another target is refused as a driver would.
	Capability [2]int32

	// DriverVersion answers DriverGetVersion, and limits the PTX version that ModuleLoadData takes.
	DriverVersion int32

	// SharedOptinBytes is the shared memory that a block may have after FuncSetAttribute: 99 KiB if 0, which is what cards
	// of compute capability 8.6, 8.9 and 12.0 have, the smallest of all that this program runs on.
	SharedOptinBytes int32

	// Screen says that the card has one: DeviceGetAttribute then tells of a time limit on kernels, which there is not.
	Screen bool

	// HostApart says that kernels do not see registered host memory at the host's address: DeviceGetAttribute says so, as
	// that of Windows does.
	HostApart bool

	// Seed and MaxDelay make streams pause for a random time of up to MaxDelay before each piece of work. 0: no pauses.
	Seed     uint64
	MaxDelay time.Duration

	// Now is the clock of events. Nil: time.Now.
	Now func() time.Time

	// Workers counts the goroutines that share a launch. 0: GOMAXPROCS.
	Workers int

	// Load reads the image of a module. Nil: [LoadPTX].
	Load func(image []byte) (*Image, error)

	// Code reads the image of a module that is machine code. Nil: such images are refused, as those for another GPU are.
	Code func(image []byte) (*Image, error)

	// Fail is called at the start of every call, with the name of its field in driver.API and its number among all
	// calls, from 1. If it does not return Success, the call returns the same result. Many goroutines call it.
	Fail func(call string, n int) driver.Result

	// Log, if not nil, gets the reason of every result that the stand-in itself decides on; a driver would not tell.
	Log func(format string, args ...any)
}

func (o Options) withDefaults() Options {
	if o.Cards == 0 {
		o.Cards = 1
	}
	if o.MemoryBytes == 0 {
		o.MemoryBytes = 1 << 30
	}
	if o.Capability == [2]int32{} {
		o.Capability = [2]int32{8, 0}
	}
	if o.DriverVersion == 0 {
		o.DriverVersion = driver.MinPTXVersion
	}
	if o.SharedOptinBytes == 0 {
		o.SharedOptinBytes = 99 << 10
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Workers == 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	if o.Load == nil {
		o.Load = func(image []byte) (*Image, error) { return LoadPTX(image, o.Workers) }
	}
	return o
}
