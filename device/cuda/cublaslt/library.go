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
	h := &handle{Library: l, plans: map[shape]*plan{}, chosen: map[shape]algorithm{}}
	if err := l.api.Create(&h.handle).err("Create"); err != nil {
		return nil, fmt.Errorf("%s: %w", l.name, err)
	}
	return h, nil
}

// handle is an open library, with what it knows of each shape so far.
type handle struct {
	*Library
	handle uintptr

	mu     sync.Mutex
	plans  map[shape]*plan
	chosen map[shape]algorithm // by Tune and UseAlgorithms
}

// plan is the library's description of one shape of product, and the algorithms for it, the one to use first; none where it has none.
type plan struct {
	desc, a, b, c, d uintptr
	algorithms       []algorithm
}

// MatMul implements BLAS.
func (h *handle) MatMul(p *Product, w Workspace, s driver.Stream) (bool, error) {
	if !p.Suits() {
		return false, nil
	}
	t, err := h.plan(transposed(p))
	if err != nil || len(t.algorithms) == 0 {
		return false, err
	}
	return true, h.multiply(p, t, &t.algorithms[0], w, s)
}

// multiply enqueues the product.
func (h *handle) multiply(p *Product, t *plan, algo *algorithm, w Workspace, s driver.Stream) error {
	alpha, beta := &factors[1], &factors[0]
	if p.Accumulate {
		beta = &factors[1]
	}
	return h.api.Matmul(h.handle, t.desc, alpha, p.B.At, t.a, p.A.At, t.b, beta, p.Base.At, t.c, p.C.At, t.d,
		algo, w, WorkspaceBytes, s).err("Matmul")
}

// factors are what alpha and beta point at. The library reads them before Matmul returns.
var factors = [2]float32{0, 1}

// plan describes a shape to the library, once.
func (h *handle) plan(s shape) (*plan, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.plans[s]; p != nil {
		return p, nil
	}
	p := &plan{}
	err := h.describe(p, s)
	if err == nil {
		err = h.choose(p, s)
	}
	if err != nil {
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
	for _, l := range []struct {
		to                 *uintptr
		t                  Type
		rows, cols, stride int
		transposed         bool
	}{
		{&p.a, s.operands, s.m, s.k, s.lda, s.transA}, {&p.b, s.operands, s.k, s.n, s.ldb, s.transB},
		{&p.c, s.result, s.m, s.n, s.ldc, false}, {&p.d, s.result, s.m, s.n, s.ldd, false},
	} {
		if l.transposed {
			l.rows, l.cols = l.cols, l.rows
		}
		err := a.MatrixLayoutCreate(l.to, l.t, uint64(l.rows), uint64(l.cols), int64(l.stride)).err("MatrixLayoutCreate")
		if err != nil {
			return err
		}
	}
	return nil
}

// choose finds the algorithms: the one that was chosen before if the library still takes it, else the heuristic's, its best one first.
func (h *handle) choose(p *plan, s shape) error {
	if algo, ok := h.chosen[s]; ok {
		var result heuristicResult
		said := h.api.MatmulAlgoCheck(h.handle, p.desc, p.a, p.b, p.c, p.d, &algo, &result)
		if said == statusSuccess && result.state == statusSuccess && result.workspaceBytes <= WorkspaceBytes {
			p.algorithms = []algorithm{algo}
			return nil
		}
		delete(h.chosen, s)
	}
	return h.ask(p, s)
}

// candidates is how many algorithms the heuristic is asked for.
const candidates = 8

// ask takes the heuristic's algorithms.
func (h *handle) ask(p *plan, s shape) (err error) {
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
		preferAlignmentA + 2: s.alignC, preferAlignmentA + 3: s.alignD}
	for attribute, value := range numbers {
		if err == nil {
			err = a.MatmulPreferenceSetAttribute(preference, attribute, unsafe.Pointer(&value), 4).err("MatmulPreferenceSetAttribute")
		}
	}
	if err != nil {
		return err
	}
	var results [candidates]heuristicResult
	var found int32
	said := a.MatmulAlgoGetHeuristic(h.handle, p.desc, p.a, p.b, p.c, p.d, preference, candidates, &results[0], &found)
	switch {
	case said == statusNotSupported:
		return nil
	case said != statusSuccess:
		return said.err("MatmulAlgoGetHeuristic")
	}
	for _, r := range results[:min(max(found, 0), candidates)] {
		if r.state == statusSuccess {
			p.algorithms = append(p.algorithms, r.algo)
		}
	}
	return nil
}

// forget gives back what describes a shape.
func (h *handle) forget(p *plan) error {
	var err error
	for _, layout := range []uintptr{p.a, p.b, p.c, p.d} {
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
