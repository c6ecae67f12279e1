//go:build onednn

package main

import (
	"fmt"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/millrace/millrace/device/cpu/gemm"
	"github.com/millrace/millrace/tensor"
)

// oneDNN has the part of oneDNN 2.x that multiplies matrices: the BLAS-like calls, which write fp32, and the matmul
// primitive, for a bf16 C.
type oneDNN struct {
	sgemm  func(ta, tb int8, m, n, k int64, alpha float32, a unsafe.Pointer, lda int64, b unsafe.Pointer, ldb int64, beta float32, c unsafe.Pointer, ldc int64) int32
	bgemm  func(ta, tb int8, m, n, k int64, alpha float32, a unsafe.Pointer, lda int64, b unsafe.Pointer, ldb int64, beta float32, c unsafe.Pointer, ldc int64) int32
	engine uintptr
	stream uintptr

	descByStrides  func(md unsafe.Pointer, ndims int32, dims *int64, dtype int32, strides *int64) int32
	matmulDesc     func(d, src, weights, bias, dst unsafe.Pointer) int32
	primitiveDesc  func(pd *uintptr, desc unsafe.Pointer, attr, engine, hint uintptr) int32
	primitive      func(p *uintptr, pd uintptr) int32
	memory         func(m *uintptr, md unsafe.Pointer, engine uintptr, data unsafe.Pointer) int32
	execute        func(p, stream uintptr, n int32, args unsafe.Pointer) int32
	wait           func(stream uintptr) int32
	destroy        func(p uintptr) int32
	destroyMemory  func(m uintptr) int32
	destroyPrimDes func(pd uintptr) int32
}

func openOneDNN(threads int) (*oneDNN, error) {
	h, err := purego.Dlopen("libdnnl.so.2", purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("oneDNN 2 is not installed (apt-get install libdnnl2): %w", err)
	}
	omp, err := purego.Dlopen("libgomp.so.1", purego.RTLD_NOW)
	if err != nil {
		return nil, fmt.Errorf("OpenMP's runtime is not installed (apt-get install libgomp1): %w", err)
	}
	var setThreads func(int32)
	purego.RegisterLibFunc(&setThreads, omp, "omp_set_num_threads")
	setThreads(int32(threads))

	var engineCreate func(*uintptr, int32, uintptr) int32
	var streamCreate func(*uintptr, uintptr, uint32) int32
	l := &oneDNN{}
	for name, f := range map[string]any{
		"dnnl_sgemm": &l.sgemm, "dnnl_gemm_bf16bf16f32": &l.bgemm,
		"dnnl_engine_create": &engineCreate, "dnnl_stream_create": &streamCreate, "dnnl_stream_wait": &l.wait,
		"dnnl_memory_desc_init_by_strides": &l.descByStrides, "dnnl_matmul_desc_init": &l.matmulDesc,
		"dnnl_primitive_desc_create": &l.primitiveDesc, "dnnl_primitive_create": &l.primitive,
		"dnnl_memory_create": &l.memory, "dnnl_primitive_execute": &l.execute,
		"dnnl_primitive_destroy": &l.destroy, "dnnl_memory_destroy": &l.destroyMemory,
		"dnnl_primitive_desc_destroy": &l.destroyPrimDes,
	} {
		purego.RegisterLibFunc(f, h, name)
	}
	must(engineCreate(&l.engine, 1, 0), "engine") // 1: CPU
	must(streamCreate(&l.stream, l.engine, 1), "stream")
	return l, nil
}

func must(status int32, what string) {
	if status != 0 {
		panic(fmt.Sprintf("oneDNN: %s: status %d", what, status))
	}
}

// prepare returns the call that runs a product, and what frees it.
func (l *oneDNN) prepare(op gemm.Op) (run, done func()) {
	if op.C.DType == tensor.BF16 {
		return l.prepareMatmul(op)
	}
	m, n, k := op.Shape()
	flag := func(t bool) int8 {
		if t {
			return 'T'
		}
		return 'N'
	}
	f, beta := l.sgemm, float32(0)
	if op.A.DType == tensor.BF16 {
		f = l.bgemm
	}
	if op.Accumulate {
		beta = 1
	}
	return func() {
		must(f(flag(op.TransA), flag(op.TransB), int64(m), int64(n), int64(k), 1, op.A.Data, int64(op.A.Stride),
			op.B.Data, int64(op.B.Stride), beta, op.C.Data, int64(op.C.Stride)), "gemm")
	}, func() {}
}

func (l *oneDNN) prepareMatmul(op gemm.Op) (run, done func()) {
	const typeBF16, typeF32 = 2, 3
	desc := func(x gemm.Mat, trans bool) unsafe.Pointer {
		md := make([]byte, 8192) // larger than dnnl_memory_desc_t
		dims, strides := []int64{int64(x.Rows), int64(x.Cols)}, []int64{int64(x.Stride), 1}
		if trans {
			dims, strides = []int64{dims[1], dims[0]}, []int64{1, int64(x.Stride)}
		}
		dtype := int32(typeF32)
		if x.DType == tensor.BF16 {
			dtype = typeBF16
		}
		must(l.descByStrides(unsafe.Pointer(&md[0]), 2, &dims[0], dtype, &strides[0]), "memory description")
		return unsafe.Pointer(&md[0])
	}
	a, b, c := desc(op.A, op.TransA), desc(op.B, op.TransB), desc(op.C, false)
	d := make([]byte, 16384) // larger than dnnl_matmul_desc_t
	must(l.matmulDesc(unsafe.Pointer(&d[0]), a, b, nil, c), "product description")
	var pd, p, ma, mb, mc uintptr
	must(l.primitiveDesc(&pd, unsafe.Pointer(&d[0]), 0, l.engine, 0), "primitive description")
	must(l.primitive(&p, pd), "primitive")
	must(l.memory(&ma, a, l.engine, op.A.Data), "A")
	must(l.memory(&mb, b, l.engine, op.B.Data), "B")
	must(l.memory(&mc, c, l.engine, op.C.Data), "C")
	type arg struct {
		index  int64
		memory uintptr
	}
	args := []arg{{1, ma}, {33, mb}, {17, mc}} // source, weights, destination
	run = func() {
		must(l.execute(p, l.stream, 3, unsafe.Pointer(&args[0])), "product")
		must(l.wait(l.stream), "wait")
	}
	return run, func() {
		for _, m := range []uintptr{ma, mb, mc} {
			must(l.destroyMemory(m), "memory")
		}
		must(l.destroy(p), "primitive")
		must(l.destroyPrimDes(pd), "primitive description")
	}
}
