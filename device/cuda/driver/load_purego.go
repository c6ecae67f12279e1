//go:build linux && (amd64 || arm64) && !nogpu

package driver

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/ebitengine/purego"
)

// places is where a driver's library is looked for, in order. The first two go through the dynamic linker's search path; the
// last is where Windows puts it for its Linux subsystem.
var places = []string{"libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"}

// Load opens the driver's library and binds the API. The error is one line that says what is missing and what to
// install; it is [ErrMissing] where no driver was found. The
// library stays open for as long as the process lives.
func Load() (*API, error) { return loadFrom(places, openLibrary) }

// handle is a library that dlopen has opened.
type handle uintptr

func openLibrary(path string) (handle, error) {
	// The dynamic linker keeps its reasons by thread: asked from another one, it has none.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	h, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	switch {
	case err == nil:
		return handle(h), nil
	case strings.HasPrefix(err.Error(), path+": cannot open shared object file: No such file"):
		return 0, fmt.Errorf("%s: %w", path, errNotFound) // and not a library that it depends on
	}
	return 0, err
}

func (h handle) bind(fn any, symbol string) bool {
	address, err := purego.Dlsym(uintptr(h), symbol)
	if err != nil {
		return false
	}
	purego.RegisterFunc(fn, address)
	return true
}
