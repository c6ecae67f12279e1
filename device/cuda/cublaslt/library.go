package cublaslt

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/millrace/millrace/device/cuda/driver"
)

// Library is a cuBLASLt that has been loaded.
type Library struct {
	api  api
	name string
}

// Name says which one it is, for people: "cuBLASLt 12.8.4".
func (l *Library) Name() string { return l.name }

// newLibrary asks the library for its version.
func newLibrary(a api) *Library {
	// 10000*major + 100*minor + patch since version 12; before that the major number had another factor and no driver that is
	// new enough for us came with it.
	v := a.GetVersion()
	return &Library{api: a, name: fmt.Sprintf("cuBLASLt %d.%d.%d", v/10000, v/100%100, v%100)}
}

// Open makes a BLAS for the context that is current for the calling thread.
func (l *Library) Open() (BLAS, error) {
	h := &handle{Library: l, plans: map[shape]*plan{}}
	if err := l.api.Create(&h.handle).err("Create"); err != nil {
		return nil, fmt.Errorf("%s: %w", l.name, err)
	}
	return h, nil
}

// handle is an open library, with the algorithms that have been chosen so far.
type handle struct {
	*Library
	handle uintptr

	mu    sync.Mutex
	plans map[shape]*plan
}

// shape is what the choice of an algorithm depends on. Sizes are those of the transposed product.
type shape struct {
	m, n, k          int
	lda, ldb, ldc    int
	operands, result Type
	transA, transB   bool
	alignA, alignB   uint32 // bytes that their addresses are multiples of, see alignment
	alignC           uint32
}

// plan is the library's description of one shape of product, and the algorithm; missing where it has none.
type plan struct {
	desc, a, b, c uintptr
	algo          algorithm
	missing       bool
}

// transposed is the shape of C' = op(B)'·op(A)'.
func transposed(p *Product) shape {
	s := shape{m: p.C.Cols, n: p.C.Rows, k: p.A.Cols, lda: p.B.Stride, ldb: p.A.Stride, ldc: p.C.Stride,
		operands: p.A.Type, result: p.C.Type, transA: p.TransB, transB: p.TransA,
		alignA: alignment(p.B.At), alignB: alignment(p.A.At), alignC: alignment(p.C.At)}
	if p.TransA {
		s.k = p.A.Rows
	}
	return s
}

// alignment is what the library is told of an address. It excludes algorithms by it, so it has two values only: what an arena gives to its
// operands wherever they lie, and what all have. Else the bits of a product could depend on where its operands are.
func alignment(at driver.DevicePtr) uint32 {
	if at%wholeAlignBytes == 0 {
		return wholeAlignBytes
	}
	return AlignBytes
}

// wholeAlignBytes is the library's own default, and no more than device.ArenaAlign.
const wholeAlignBytes = 256

// MatMul implements BLAS.
func (h *handle) MatMul(p *Product, w Workspace, s driver.Stream) (bool, error) {
	if !p.Suits() {
		return false, nil
	}
	t, err := h.plan(transposed(p))
	if err != nil || t.missing {
		return false, err
	}
	alpha, beta := &factors[1], &factors[0]
	if p.Accumulate {
		beta = &factors[1]
	}
	err = h.api.Matmul(h.handle, t.desc, alpha, p.B.At, t.a, p.A.At, t.b, beta, p.C.At, t.c, p.C.At, t.c,
		&t.algo, w, WorkspaceBytes, s).err("Matmul")
	return true, err
}

// factors are what alpha and beta point at. The library reads them before Matmul returns.
var factors = [2]float32{0, 1}

// plan finds the algorithm for a shape.
func (h *handle) plan(s shape) (*plan, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.plans[s]; p != nil {
		return p, nil
	}
	p := &plan{}
	if err := h.describe(p, s); err != nil {
		return nil, errors.Join(err, h.forget(p))
	}
	h.plans[s] = p
	return p, nil
}

func (h *handle) describe(p *plan, s shape) error {
	a := &h.api
	if err := a.MatmulDescCreate(&p.desc, compute32F, int32(F32)).err("MatmulDescCreate"); err != nil {
		return err
	}
	for attribute, is := range map[int32]bool{descTransA: s.transA, descTransB: s.transB} {
		if op := int32(transpose); is {
			err := a.MatmulDescSetAttribute(p.desc, attribute, unsafe.Pointer(&op), 4).err("MatmulDescSetAttribute")
			if err != nil {
				return err
			}
		}
	}
	layout := func(to *uintptr, t Type, rows, cols, stride int, transposed bool) error {
		if transposed {
			rows, cols = cols, rows
		}
		return a.MatrixLayoutCreate(to, t, uint64(rows), uint64(cols), int64(stride)).err("MatrixLayoutCreate")
	}
	if err := layout(&p.a, s.operands, s.m, s.k, s.lda, s.transA); err != nil {
		return err
	}
	if err := layout(&p.b, s.operands, s.k, s.n, s.ldb, s.transB); err != nil {
		return err
	}
	if err := layout(&p.c, s.result, s.m, s.n, s.ldc, false); err != nil {
		return err
	}
	return h.choose(p, s)
}

// choose asks the heuristic for its best algorithm.
func (h *handle) choose(p *plan, s shape) (err error) {
	a := &h.api
	var preference uintptr
	if err := a.MatmulPreferenceCreate(&preference).err("MatmulPreferenceCreate"); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, a.MatmulPreferenceDestroy(preference).err("MatmulPreferenceDestroy"))
	}()
	workspace := uint64(WorkspaceBytes)
	err = a.MatmulPreferenceSetAttribute(preference, preferWorkspaceBytes, unsafe.Pointer(&workspace), 8).err("MatmulPreferenceSetAttribute")
	numbers := map[int32]uint32{preferReductionScheme: reduceInComputeType, preferAlignmentA: s.alignA, preferAlignmentA + 1: s.alignB,
		preferAlignmentA + 2: s.alignC, preferAlignmentA + 3: s.alignC}
	for attribute, value := range numbers {
		if err == nil {
			err = a.MatmulPreferenceSetAttribute(preference, attribute, unsafe.Pointer(&value), 4).err("MatmulPreferenceSetAttribute")
		}
	}
	if err != nil {
		return err
	}
	var result heuristicResult
	var found int32
	said := a.MatmulAlgoGetHeuristic(h.handle, p.desc, p.a, p.b, p.c, p.c, preference, 1, &result, &found)
	switch {
	case said == statusNotSupported || said == statusSuccess && (found == 0 || result.state != statusSuccess):
		p.missing = true
		return nil
	case said != statusSuccess:
		return said.err("MatmulAlgoGetHeuristic")
	}
	p.algo = result.algo
	return nil
}

// forget gives back what describes a shape.
func (h *handle) forget(p *plan) error {
	var err error
	for _, layout := range []uintptr{p.a, p.b, p.c} {
		if layout != 0 {
			err = errors.Join(err, h.api.MatrixLayoutDestroy(layout).err("MatrixLayoutDestroy"))
		}
	}
	if p.desc != 0 {
		err = errors.Join(err, h.api.MatmulDescDestroy(p.desc).err("MatmulDescDestroy"))
	}
	return err
}

// Close implements BLAS.
func (h *handle) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var err error
	for s, p := range h.plans {
		err = errors.Join(err, h.forget(p))
		delete(h.plans, s)
	}
	return errors.Join(err, h.api.Destroy(h.handle).err("Destroy"))
}
