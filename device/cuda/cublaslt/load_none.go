//go:build !(linux && (amd64 || arm64)) || nogpu

package cublaslt

import "errors"

// Load finds the library where this program can call it; this build cannot.
func Load(driverVersion int32) (*Library, error) {
	return nil, errors.New("cuBLASLt cannot be called: this program was built without GPU support")
}
