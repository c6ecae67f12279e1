package standin

import (
	"crypto/sha256"
	"errors"
	"os"
	"runtime"
	"sync"

	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/device/cuda/kernels"
)

// Load is driver.Load for a rehearsal, in programs that are built with the tag standin. A process has one driver, so
// that whatever it asks for twice is refused.
var Load = sync.OnceValues(func() (*driver.API, error) {
	workers := runtime.GOMAXPROCS(0)
	return Rehearsal(func(text []byte) (*Image, error) { return LazyPTX(text, workers) }).API(), nil
})

// Rehearsal is the driver of two cards like H200s, which reach each other's memory, take the machine code that the
// program carries for them, and have load read PTX. The memory that they have is not there before it is allocated.
func Rehearsal(load func(text []byte) (*Image, error)) *Driver {
	text := sync.OnceValues(func() (map[[sha256.Size]byte]string, error) { return codeText("sm_90a", "sm90a") })
	fail := func(call string, _ int) driver.Result {
		if visible, ok := os.LookupEnv("CUDA_VISIBLE_DEVICES"); ok && visible == "" && call == "Init" {
			return driver.NoDevice
		}
		return driver.Success
	}
	return New(Options{Cards: 2, Peers: true, Fail: fail, Capability: [2]int32{9, 0}, MemoryBytes: 139 << 30,
		SharedOptinBytes: 227 << 10, DriverVersion: 13000, Load: load,
		Code: func(code []byte) (*Image, error) {
			known, err := text()
			if err != nil {
				return nil, err
			}
			ptx, ok := known[sha256.Sum256(code)]
			if !ok {
				return nil, errors.New("this machine code is not the program's for sm_90a")
			}
			return load([]byte(ptx))
		}})
}

// codeText is the PTX of which the machine code for an architecture was made, by the sum of the code: the stand-in
// cannot run that.
func codeText(architecture, target string) (map[[sha256.Size]byte]string, error) {
	set, err := kernels.Load(target)
	if err != nil {
		return nil, err
	}
	code, err := kernels.LoadCode(architecture)
	if err != nil {
		return nil, err
	}
	text := map[[sha256.Size]byte]string{}
	for name, c := range code {
		if k, ok := set.Find(name); ok {
			text[sha256.Sum256(c)] = k.PTX
		}
	}
	return text, nil
}
