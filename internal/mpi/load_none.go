//go:build !(linux && (amd64 || arm64)) || nogpu

package mpi

import (
	"errors"
	"fmt"
	"runtime"
)

// join says why this build can join no ranks.
func join(Launch) (joined, error) {
	if runtime.GOOS == "linux" && (runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64") {
		return joined{}, errors.New("several hosts need an MPI library, and this static program (-tags nogpu) can " +
			"load no library: use the program that is built without that tag")
	}
	return joined{}, fmt.Errorf("several hosts need Linux on amd64 or arm64, and this is %s/%s: run on one host, "+
		"without a launcher", runtime.GOOS, runtime.GOARCH)
}
