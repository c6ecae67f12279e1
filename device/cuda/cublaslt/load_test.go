//go:build linux && (amd64 || arm64) && !nogpu

package cublaslt

import (
	"strings"
	"testing"
)

// Where the library is installed it loads and knows its version, also without a GPU; where it is not, one line says what to install.
func TestLoad(t *testing.T) {
	library, err := Load(13000)
	if err != nil {
		for _, want := range []string{"cuBLASLt was not found", "libcublasLt.so.13 or libcublasLt.so.12", "nvidia-cublas-cu12"} {
			if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("the error is %q, want %q", err, want)
			}
		}
		return
	}
	if !strings.HasPrefix(library.Name(), "cuBLASLt 1") {
		t.Errorf("it is %q", library.Name())
	}
	t.Log(library.Name())
}
