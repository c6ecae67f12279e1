//go:build linux && (amd64 || arm64) && !nogpu

package cublaslt

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"

	"github.com/ebitengine/purego"
)

// Load finds and loads the library for a driver of the given version (as DriverGetVersion counts). The error is one line that
// says where it was looked for and what to install. The library stays loaded for as long as the process lives.
func Load(driverVersion int32) (*Library, error) {
	var first error // of a library that is there and of no use
	for _, path := range places(driverVersion, os.Getenv, filepath.Glob, os.Readlink) {
		if filepath.IsAbs(path) {
			if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
				continue
			}
		}
		library, err := open(path)
		if err != nil && strings.HasPrefix(err.Error(), path+": cannot open shared object file: No such file") {
			continue
		}
		if err == nil {
			l, err := bind(library, path)
			if err == nil {
				return l, nil
			}
			first = cmp.Or(first, err)
			continue
		}
		first = cmp.Or(first, fmt.Errorf("cuBLASLt does not load: %w", err))
	}
	if first != nil {
		return nil, first
	}
	return nil, fmt.Errorf("cuBLASLt was not found: neither the dynamic linker nor a CUDA toolkit nor the packages of the Python on PATH have %s; "+
		"install the toolkit's libcublas or the pip package nvidia-cublas-cu12, or add its directory to LD_LIBRARY_PATH",
		strings.Join(names(driverVersion), " or "))
}

func open(path string) (uintptr, error) {
	// The dynamic linker keeps its reasons by thread: asked from another one, it has none.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func bind(library uintptr, path string) (*Library, error) {
	var a api
	fields := reflect.ValueOf(&a).Elem()
	for i := range fields.NumField() {
		symbol := "cublasLt" + fields.Type().Field(i).Name
		address, err := purego.Dlsym(library, symbol)
		if err != nil {
			return nil, fmt.Errorf("cuBLASLt (%s) lacks %s; install that of CUDA 12 or newer", path, symbol)
		}
		purego.RegisterFunc(fields.Field(i).Addr().Interface(), address)
	}
	return newLibrary(a), nil
}
