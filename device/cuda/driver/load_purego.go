//go:build linux && (amd64 || arm64) && !nogpu

package driver

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/ebitengine/purego"
)

// names lists the file names of a driver's library, which the dynamic linker looks for on its search path.
var names = []string{"libcuda.so.1", "libcuda.so"}

// folders hold drivers that the linker has not been told of: the multiarch folder of Debian and Ubuntu where its
// cache is older than the driver, where device plugins of clusters mount it, and where Windows puts it for its Linux subsystem.
var folders = []string{
	"/usr/lib/" + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH] + "-linux-gnu",
	"/usr/local/nvidia/lib64",
	"/usr/lib/wsl/lib",
}

// places lists the paths at which the library is looked for, in order: by name first, so that LD_LIBRARY_PATH has its
// say.
func places(names, folders []string) []string {
	list := slices.Clone(names)
	for _, folder := range folders {
		list = append(list, filepath.Join(folder, names[0]))
	}
	return list
}

// Load opens the driver's library and binds the API. The error is one line that says what is missing and what to
// install; it is [ErrMissing] where no driver was found. The library stays open for as long as the process lives.
func Load() (*API, error) { return loadFrom(places(names, folders), openLibrary) }

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
