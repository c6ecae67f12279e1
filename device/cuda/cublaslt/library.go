package cublaslt

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
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

// Open makes a BLAS for the context that is current for the calling thread. note gets a line for the user when the
// library refuses what it offered; any thread that multiplies calls it.
func (l *Library) Open(note func(line string)) (BLAS, error) {
	h := &handle{Library: l, note: note, plans: map[shape]*plan{}, recorded: map[shape]algorithm{},
		chosen: map[shape]algorithm{}}
	if err := l.api.Create(&h.handle).err("Create"); err != nil {
		return nil, fmt.Errorf("%s: %w", l.name, err)
	}
	return h, nil
}

// handle is an open library, with what it knows of each shape so far.
type handle struct {
	*Library
	handle uintptr
	note   func(line string)

	mu       sync.Mutex
	plans    map[shape]*plan
	recorded map[shape]algorithm // by UseAlgorithms; the library was not asked about them yet
	chosen   map[shape]algorithm // by Tune, or recorded and offered by the library
}

// plan is the library's description of one shape of product, and its algorithms for it, in the order to try them; none
// where it has none, or has refused all.
type plan struct {
	desc, a, b, c, d uintptr
	algorithms       []*algorithm // handle.mu guards the list
}

// MatMul implements BLAS.
func (h *handle) MatMul(p *Product, w Workspace, s driver.Stream) (bool, error) {
	if !p.Suits() {
		return false, nil
	}
	form := transposed(p)
	t, err := h.plan(form)
	if err != nil {
		return false, err
	}
	var refused error
	algo := h.first(t)
	for ; algo != nil; algo = h.first(t) {
		err := h.multiply(p, t, algo, w, s)
		if err == nil {
			break
		}
		// Nothing was written: the kernel that writes the result is the last one, and it did not start.
		h.drop(form, t, algo)
		refused = cmp.Or(refused, err)
	}
	if refused != nil {
		h.sayRefused(form, algo != nil, refused)
	}
	return algo != nil, nil
}

// first is the algorithm to use, nil without one.
func (h *handle) first(t *plan) *algorithm {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(t.algorithms) == 0 {
		return nil
	}
	return t.algorithms[0]
}

// drop has an algorithm that the library refused not tried again. If it was chosen, the next one is.
func (h *handle) drop(form shape, t *plan, refused *algorithm) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t.algorithms = slices.DeleteFunc(t.algorithms, func(a *algorithm) bool { return a == refused })
	if _, ok := h.chosen[form]; !ok {
		return
	}
	delete(h.chosen, form)
	if len(t.algorithms) > 0 {
		h.chosen[form] = *t.algorithms[0]
	}
}

// sayRefused tells the user which product is computed otherwise than was chosen.
func (h *handle) sayRefused(form shape, another bool, refused error) {
	now := "another one of its algorithms is used, and the last bits of results may differ"
	if !another {
		now = "this program's own kernel is used, which is slower, and the last bits of results may differ"
	}
	h.note(fmt.Sprintf("%s refuses a matrix product of %d x %d x %d that it offered (%v): %s", h.name, form.n, form.k,
		form.m, refused, now))
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

// factors hold alpha and beta. The library reads them before Matmul returns.
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

// choose takes the heuristic's algorithms, its best one first, or the recorded one if it is among them. The blob of an
// algorithm that the library does not offer now is never handed to it: NVIDIA promises nothing for such.
func (h *handle) choose(p *plan, s shape) error {
	if err := h.ask(p, s); err != nil {
		return err
	}
	recorded, ok := h.recorded[s]
	i := slices.IndexFunc(p.algorithms, func(a *algorithm) bool { return *a == recorded })
	if ok && i >= 0 {
		p.prefer(i)
		h.chosen[s] = recorded
	}
	return nil
}

// prefer puts an algorithm before the others, which keep their order.
func (p *plan) prefer(i int) {
	best := p.algorithms[i]
	p.algorithms = slices.Insert(slices.Delete(p.algorithms, i, i+1), 0, best)
}

// candidates counts the algorithms that the heuristic is asked for.
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
			p.algorithms = append(p.algorithms, &r.algo)
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
