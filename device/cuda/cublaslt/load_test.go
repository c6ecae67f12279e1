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

	// It takes the descriptions of products as they are made here, each attribute and each layout. An algorithm it only names with a handle,
	// and that it makes on NVIDIA's own driver alone.
	h := &handle{Library: library, plans: map[shape]*plan{}}
	for _, s := range []shape{
		{m: 4608, n: 16384, k: 3584, lda: 3584, ldb: 3584, ldc: 4608, ldd: 4608, operands: BF16, result: BF16, transA: true,
			alignA: 256, alignB: 256, alignC: 256, alignD: 256},
		{m: 3584, n: 4608, k: 16384, lda: 3584, ldb: 4608, ldc: 3584, ldd: 3584, operands: BF16, result: F32, transB: true,
			alignA: 16, alignB: 256, alignC: 16, alignD: 16},
		{m: 64, n: 80, k: 48, lda: 64, ldb: 48, ldc: 64, ldd: 64, operands: F32, result: F32, alignA: 16, alignB: 16, alignC: 16, alignD: 16},
	} {
		p := &plan{}
		err := h.describe(p, s)
		if err != nil {
			t.Errorf("%+v: %v", s, err)
		}
		if err = h.choose(p, s); err == nil || !strings.HasPrefix(err.Error(), "cublasLtMatmulAlgoGetHeuristic: ") {
			t.Errorf("%+v: %v; only a handle is missing", s, err)
		}
		if err := h.forget(p); err != nil {
			t.Error(err)
		}
	}
}
