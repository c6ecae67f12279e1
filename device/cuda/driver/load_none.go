//go:build !(linux && (amd64 || arm64)) || nogpu

package driver

import (
	"fmt"
	"runtime"
)

// Load opens the driver's library where this program can; this build cannot, and its error is [ErrMissing].
func Load() (*API, error) {
	if runtime.GOOS == "linux" && (runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64") {
		return nil, missing("this program was built without GPU support (-tags nogpu); build it without that tag")
	}
	return nil, missing(fmt.Sprintf("there is no GPU support on %s/%s: it needs Linux on amd64 or arm64", runtime.GOOS, runtime.GOARCH))
}
