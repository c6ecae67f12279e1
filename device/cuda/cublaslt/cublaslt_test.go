package cublaslt

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/device/cuda/driver"
)

// The structures that the library reads and writes are as long as in cublasLt.h of CUDA 12, and have their fields where it has them.
func TestLayouts(t *testing.T) {
	var r heuristicResult
	for what, pair := range map[string][2]uintptr{
		"cublasLtMatmulAlgo_t":            {unsafe.Sizeof(algorithm{}), 64},
		"cublasLtMatmulHeuristicResult_t": {unsafe.Sizeof(r), 96},
		"workspaceSize":                   {unsafe.Offsetof(r.workspaceBytes), 64},
		"state":                           {unsafe.Offsetof(r.state), 72},
		"wavesCount":                      {unsafe.Offsetof(r.waves), 76},
		"cublasStatus_t":                  {unsafe.Sizeof(r.state), 4},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %d bytes, want %d", what, pair[0], pair[1])
		}
	}
}

// fake is a library that thinks in columns, as cuBLASLt does, with memory that is a slice: address 16*i is its element i.
type fake struct {
	t       fataler
	memory  []float32
	next    uintptr
	descs   map[uintptr]map[int32]int32
	layouts map[uintptr]fakeLayout
	prefer  map[uintptr]map[int32]uint64
	asked   int // for algorithms
	ran     []uint64
	refuse  bool            // to name algorithms
	broken  map[uint64]bool // algorithms that are named, and do not start
	said    []string        // to the user
	wanted  string          // preferences; empty: those of operands that are aligned to 16 bytes
}

type fataler interface {
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

type fakeLayout struct {
	elements   Type
	rows, cols uint64
	ld         int64
}

func (f *fake) handle() uintptr {
	f.next++
	return f.next
}

func (f *fake) api() api {
	release := func(known bool, what string) status {
		if !known {
			f.t.Errorf("a %s is destroyed that does not exist", what)
			return 7
		}
		return statusSuccess
	}
	return api{
		GetVersion: func() uint64 { return 120804 },
		Create:     func(h *uintptr) status { *h = f.handle(); return statusSuccess },
		Destroy:    func(uintptr) status { return statusSuccess },
		MatmulDescCreate: func(d *uintptr, compute, scale int32) status {
			if compute != 68 || scale != 0 {
				f.t.Errorf("computes in %d, scales in %d", compute, scale)
			}
			*d = f.handle()
			f.descs[*d] = map[int32]int32{}
			return statusSuccess
		},
		MatmulDescSetAttribute: func(d uintptr, attribute int32, value unsafe.Pointer, bytes uint64) status {
			if bytes != 4 {
				return 7
			}
			f.descs[d][attribute] = *(*int32)(value)
			return statusSuccess
		},
		MatmulDescDestroy: func(d uintptr) status {
			_, ok := f.descs[d]
			delete(f.descs, d)
			return release(ok, "description")
		},
		MatrixLayoutCreate: func(l *uintptr, elements Type, rows, cols uint64, ld int64) status {
			if ld < int64(rows) {
				return 7
			}
			*l = f.handle()
			f.layouts[*l] = fakeLayout{elements, rows, cols, ld}
			return statusSuccess
		},
		MatrixLayoutDestroy: func(l uintptr) status {
			_, ok := f.layouts[l]
			delete(f.layouts, l)
			return release(ok, "layout")
		},
		MatmulPreferenceCreate: func(p *uintptr) status {
			*p = f.handle()
			f.prefer[*p] = map[int32]uint64{}
			return statusSuccess
		},
		MatmulPreferenceSetAttribute: func(p uintptr, attribute int32, value unsafe.Pointer, bytes uint64) status {
			if attribute == 1 && bytes == 8 {
				f.prefer[p][attribute] = *(*uint64)(value)
			} else if attribute != 1 && bytes == 4 {
				f.prefer[p][attribute] = uint64(*(*uint32)(value))
			} else {
				return 7
			}
			return statusSuccess
		},
		MatmulPreferenceDestroy: func(p uintptr) status {
			_, ok := f.prefer[p]
			delete(f.prefer, p)
			return release(ok, "preference")
		},
		MatmulAlgoGetHeuristic: func(_, d, a, b, c, e, p uintptr, want int32, results *heuristicResult, got *int32) status {
			f.asked++
			if got, want := fmt.Sprint(f.prefer[p]), cmp.Or(f.wanted, "map[1:33554432 3:2 5:16 6:16 7:16 8:16]"); got != want {
				f.t.Errorf("the preferences are %s, want %s", got, want)
			}
			if want != 8 || f.layouts[c].rows != f.layouts[e].rows || f.layouts[c].cols != f.layouts[e].cols {
				f.t.Errorf("%d algorithms for C of %v and D of %v", want, f.layouts[c], f.layouts[e])
			}
			if f.refuse {
				return statusNotSupported
			}
			for i, r := range unsafe.Slice(results, 4) { // the third one cannot do it
				r.algo[7] = uint64(42 + i)
				if i == 2 {
					r.state = statusNotSupported
				}
				unsafe.Slice(results, 4)[i] = r
			}
			*got = 4
			return statusSuccess
		},
		Matmul: f.matmul,
	}
}

// matmul is D = alpha*op(A)*op(B) + beta*C by columns.
func (f *fake) matmul(_, desc uintptr, alpha *float32, a driver.DevicePtr, aLayout uintptr, b driver.DevicePtr, bLayout uintptr,
	beta *float32, c driver.DevicePtr, cLayout uintptr, d driver.DevicePtr, dLayout uintptr,
	algo *algorithm, workspace driver.DevicePtr, workspaceBytes uint64, s driver.Stream) status {
	if algo[7] < 42 || algo[7] == 44 || workspace != 4096 || workspaceBytes != 32<<20 || s != 9 {
		return 7
	}
	f.ran = append(f.ran, algo[7])
	if f.broken[algo[7]] {
		return statusExecutionFailed
	}
	at := func(base driver.DevicePtr, l fakeLayout, row, col uint64) *float32 {
		if row >= l.rows || col >= l.cols {
			f.t.Fatalf("element (%d, %d) of [%d, %d]", row, col, l.rows, l.cols)
		}
		return &f.memory[uint64(base)/16+col*uint64(l.ld)+row]
	}
	la, lb, lc, ld := f.layouts[aLayout], f.layouts[bLayout], f.layouts[cLayout], f.layouts[dLayout]
	inner := la.cols
	if f.descs[desc][3] == 1 {
		inner = la.rows
	}
	for i := range lc.rows {
		for j := range lc.cols {
			sum := float32(0)
			for k := range inner {
				ai, ak, bk, bj := i, k, k, j
				if f.descs[desc][3] == 1 {
					ai, ak = k, i
				}
				if f.descs[desc][4] == 1 {
					bk, bj = j, k
				}
				sum += *at(a, la, ai, ak) * *at(b, lb, bk, bj)
			}
			*at(d, ld, i, j) = *alpha*sum + *beta**at(c, lc, i, j)
		}
	}
	return statusSuccess
}

func (f *fake) note(line string) { f.said = append(f.said, line) }

func newFake(t fataler) (*fake, BLAS) {
	f := &fake{t: t, descs: map[uintptr]map[int32]int32{}, layouts: map[uintptr]fakeLayout{}, prefer: map[uintptr]map[int32]uint64{}}
	b, err := newLibrary(f.api()).Open(f.note)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return f, b
}

// Row-major products come out right from a library that thinks in columns.
func TestProducts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, b := newFake(t)
		size := func(name string) int { return rapid.IntRange(1, 5).Draw(t, name) }
		m, n, k := size("m"), size("n"), size("k")
		p := &Product{TransA: rapid.Bool().Draw(t, "transA"), TransB: rapid.Bool().Draw(t, "transB"), Accumulate: rapid.Bool().Draw(t, "accumulate")}
		rng := rand.New(rand.NewPCG(1, 2))
		place := func(name string, rows, cols int, transposed bool) Matrix {
			if transposed {
				rows, cols = cols, rows
			}
			x := Matrix{At: driver.DevicePtr(16 * len(f.memory)), Rows: rows, Cols: cols, Stride: cols + rapid.IntRange(0, 3).Draw(t, name+" gap")}
			for range rows * x.Stride {
				f.memory = append(f.memory, float32(rng.IntN(9)-4))
			}
			return x
		}
		p.A, p.B, p.C = place("a", m, k, p.TransA), place("b", k, n, p.TransB), place("c", m, n, false)
		if p.Base = p.C; p.Accumulate && rapid.Bool().Draw(t, "apart") {
			p.Base = place("base", m, n, false)
		}
		get := func(x Matrix, row, col int, transposed bool) float32 {
			if transposed {
				row, col = col, row
			}
			return f.memory[int(x.At)/16+row*x.Stride+col]
		}
		f.wanted = fmt.Sprintf("map[1:33554432 3:2 5:%d 6:%d 7:%d 8:%d]", alignment(p.B), alignment(p.A),
			alignment(p.Base), alignment(p.C))
		want := slices.Clone(f.memory)
		for i := range m {
			for j := range n {
				to := &want[int(p.C.At)/16+i*p.C.Stride+j]
				sum := float32(0)
				for l := range k {
					sum += get(p.A, i, l, p.TransA) * get(p.B, l, j, p.TransB)
				}
				if p.Accumulate {
					sum += get(p.Base, i, j, false)
				}
				*to = sum
			}
		}
		for range 2 { // the second one finds the algorithm
			before := slices.Clone(f.memory)
			if done, err := b.MatMul(p, 4096, 9); !done || err != nil {
				t.Fatalf("%v, %v", done, err)
			}
			if !slices.Equal(f.memory, want) {
				t.Fatalf("%+v:\ngot  %v\nwant %v", p, f.memory, want)
			}
			copy(f.memory, before)
		}
		if f.asked != 1 {
			t.Fatalf("asked %d times for an algorithm", f.asked)
		}
		if err := b.Close(); err != nil || len(f.descs)+len(f.layouts)+len(f.prefer) != 0 {
			t.Fatalf("left: %v %v %v (%v)", f.descs, f.layouts, f.prefer, err)
		}
	})
}

// The library is told how far operands are aligned, each of them, and asked again where that is another.
func TestAlignment(t *testing.T) {
	f, b := newFake(t)
	at := func(address driver.DevicePtr) Matrix { return Matrix{At: address, Rows: 4, Cols: 4, Stride: 64} }
	f.memory = make([]float32, 1<<10)
	for _, c := range []struct {
		c, a, b driver.DevicePtr
		wanted  string // A and B are exchanged, see the package comment
		asked   int
	}{
		{256, 512, 1024, "map[1:33554432 3:2 5:256 6:256 7:256 8:256]", 1},
		{512, 2560, 256, "map[1:33554432 3:2 5:256 6:256 7:256 8:256]", 1},
		{512, 512 + 64, 1024, "map[1:33554432 3:2 5:256 6:16 7:256 8:256]", 2},
		{512, 512 + 128, 1024, "", 2},
		{512 + 16, 512, 1024, "map[1:33554432 3:2 5:256 6:256 7:16 8:16]", 3},
		{512, 512, 1024 + 32, "map[1:33554432 3:2 5:16 6:256 7:256 8:256]", 4},
	} {
		f.wanted = c.wanted
		if done, err := b.MatMul(&Product{C: at(c.c), A: at(c.a), B: at(c.b), Base: at(c.c)}, 4096, 9); !done || err != nil {
			t.Fatalf("%v, %v", done, err)
		}
		if f.asked != c.asked {
			t.Errorf("%+v: asked %d times", c, f.asked)
		}
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func TestNoAlgorithm(t *testing.T) {
	f, b := newFake(t)
	f.refuse = true
	m := Matrix{At: 32, Rows: 4, Cols: 4, Stride: 4}
	for range 2 {
		if done, err := b.MatMul(&Product{C: m, A: m, B: m, Base: m}, 4096, 9); done || err != nil {
			t.Errorf("%v, %v", done, err)
		}
	}
	if f.asked != 1 {
		t.Errorf("asked %d times", f.asked)
	}
	f.refuse = false
	odd := m
	odd.At += 8
	for name, p := range map[string]*Product{
		"an address that is not aligned": {C: m, A: odd, B: m, Base: m},
		"two types":                      {C: m, A: Matrix{At: 16, Type: BF16, Rows: 4, Cols: 4, Stride: 4}, B: m, Base: m},
		"a base that is not aligned":     {C: m, A: m, B: m, Base: odd},
		"fp32 to bf16":                   {C: Matrix{At: 16, Type: BF16, Rows: 4, Cols: 4, Stride: 4}, A: m, B: m, Base: m},
	} {
		if done, err := b.MatMul(p, 4096, 9); done || err != nil {
			t.Errorf("%s: %v, %v", name, done, err)
		}
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// A call that fails is named, and what was made before it is given back.
func TestFailures(t *testing.T) {
	for _, call := range []string{"MatmulDescCreate", "MatrixLayoutCreate", "MatmulPreferenceCreate",
		"MatmulAlgoGetHeuristic"} {
		f := &fake{t: t, descs: map[uintptr]map[int32]int32{}, layouts: map[uintptr]fakeLayout{}, prefer: map[uintptr]map[int32]uint64{}}
		a := f.api()
		switch call {
		case "MatmulDescCreate":
			a.MatmulDescCreate = func(*uintptr, int32, int32) status { return 3 }
		case "MatrixLayoutCreate":
			a.MatrixLayoutCreate = func(*uintptr, Type, uint64, uint64, int64) status { return 3 }
		case "MatmulPreferenceCreate":
			a.MatmulPreferenceCreate = func(*uintptr) status { return 3 }
		case "MatmulAlgoGetHeuristic":
			a.MatmulAlgoGetHeuristic = func(_, _, _, _, _, _, _ uintptr, _ int32, _ *heuristicResult, _ *int32) status { return 3 }
		}
		b, err := newLibrary(a).Open(f.note)
		if err != nil {
			t.Fatal(err)
		}
		m := Matrix{At: 32, Rows: 4, Cols: 4, Stride: 4}
		_, err = b.MatMul(&Product{C: m, A: m, B: m, Base: m}, 4096, 9)
		if want := "cublasLt" + call + ": out of memory (CUBLAS_STATUS_ALLOC_FAILED, 3)"; err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", call, err, want)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if len(f.descs)+len(f.layouts)+len(f.prefer) != 0 {
			t.Errorf("%s: left: %v %v %v", call, f.descs, f.layouts, f.prefer)
		}
	}
}

func TestPlaces(t *testing.T) {
	env := map[string]string{"CUDA_HOME": "/opt/cuda", "VIRTUAL_ENV": "/venv", "HOME": "/home/u", "PATH": ":bin:/none/bin:/opt/torch/.venv/bin:/usr/bin"}
	there := map[string][]string{
		"/opt/cuda/lib64":         {"/opt/cuda/lib64"},
		"/usr/local/cuda-*/lib64": {"/usr/local/cuda-12.4/lib64", "/usr/local/cuda-12.10/lib64", "/usr/local/cuda-12.9/lib64"},
		"/venv/lib/python3*/site-packages/nvidia/cublas/lib":        {"/venv/lib/python3.12/site-packages/nvidia/cublas/lib"},
		"/home/u/.local/lib/python3*/site-packages/nvidia/cu1?/lib": {"/home/u/.local/lib/python3.13/site-packages/nvidia/cu13/lib"},
		"/usr/local/lib/python3*/dist-packages/nvidia/cublas/lib":   {"/usr/local/lib/python3.10/dist-packages/nvidia/cublas/lib"},
		// The first Python on PATH is that of a virtual environment which is not activated, and a link to another Python.
		"bin/python3":                  {"bin/python3"},
		"/opt/torch/.venv/bin/python3": {"/opt/torch/.venv/bin/python3"},
		"/usr/bin/python3":             {"/usr/bin/python3"},
		"/opt/torch/.venv/lib/python3*/site-packages/nvidia/cu1?/lib": {"/opt/torch/.venv/lib/python3.12/site-packages/nvidia/cu13/lib"},
		"/opt/torch/.venv/lib": {"/opt/torch/.venv/lib"},
	}
	links := map[string]string{"/opt/torch/.venv/bin/python3": "/opt/python/bin/python3",
		"/opt/python/bin/python3": "python3.12"}
	there["/opt/python/lib/python3*/site-packages/nvidia/cu1?/lib"] = []string{
		"/opt/python/lib/python3.12/site-packages/nvidia/cu13/lib"}
	find := func(version int32) []string {
		return places(version, func(k string) string { return env[k] },
			func(pattern string) ([]string, error) { return slices.Clone(there[pattern]), nil }, readlink(links))
	}
	want := []string{"libcublasLt.so.12", "/venv/lib/python3.12/site-packages/nvidia/cublas/lib/libcublasLt.so.12",
		"/opt/torch/.venv/lib/libcublasLt.so.12", "/opt/torch/.venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.12",
		"/opt/python/lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.12",
		"/opt/cuda/lib64/libcublasLt.so.12", "/usr/local/cuda-12.10/lib64/libcublasLt.so.12", "/usr/local/cuda-12.9/lib64/libcublasLt.so.12",
		"/usr/local/cuda-12.4/lib64/libcublasLt.so.12",
		"/home/u/.local/lib/python3.13/site-packages/nvidia/cu13/lib/libcublasLt.so.12",
		"/usr/local/lib/python3.10/dist-packages/nvidia/cublas/lib/libcublasLt.so.12"}
	if got := find(12080); !slices.Equal(got, want) {
		t.Errorf("for a driver of CUDA 12.8:\n%s", strings.Join(got, "\n"))
	}
	if got := find(13000); len(got) != 2*len(want) || got[0] != "libcublasLt.so.13" || filepath.Base(got[2]) != "libcublasLt.so.13" {
		t.Errorf("for a driver of CUDA 13:\n%s", strings.Join(got, "\n"))
	}
	for _, name := range []string{"VIRTUAL_ENV", "CUDA_HOME", "CONDA_PREFIX", "CUDA_PATH", "PYENV_ROOT", "HOME"} {
		env[name] = "." + cmp.Or(env[name], "/somewhere")
	}
	for pattern := range maps.Clone(there) {
		there["."+pattern] = []string{"." + pattern}
		there[strings.TrimPrefix("."+pattern, "./")] = []string{strings.TrimPrefix("."+pattern, "./")}
	}
	for _, path := range find(12080) {
		if strings.Contains(path, "/") && !filepath.IsAbs(path) {
			t.Errorf("%s depends on where the program was started", path)
		}
	}
}

func readlink(links map[string]string) func(string) (string, error) {
	return func(path string) (string, error) {
		if to, ok := links[path]; ok {
			return to, nil
		}
		return "", fs.ErrInvalid
	}
}

// The Python on PATH leads to its environment: by itself, by links, and by pyenv's scripts.
func TestEnvironments(t *testing.T) {
	exist := func(pattern string) ([]string, error) {
		if slices.Contains([]string{"/usr/local/bin/python", "/venv/bin/python3", "/root/.pyenv/shims/python3",
			"/loop/python3"}, pattern) {
			return []string{pattern}, nil
		}
		return nil, nil
	}
	links := readlink(map[string]string{"/usr/local/bin/python": "../../../venv/bin/python3",
		"/venv/bin/python3": "python", "/loop/python3": "python3"})
	for _, c := range []struct {
		path    string
		roots   []string
		managed string
	}{
		{"/none:/usr/local/bin", []string{"/usr/local", "/venv"}, ""},
		{"/usr/local/bin:/venv/bin", []string{"/venv"}, ""}, // a python3 comes before a python
		{"/root/.pyenv/shims:/venv/bin", []string{"/root/.pyenv"}, "/root/.pyenv"},
		{"/loop", []string{"/"}, ""},
		{"bin:", nil, ""},
	} {
		roots, managed := environments(c.path, exist, links)
		if !slices.Equal(roots, c.roots) || managed != c.managed {
			t.Errorf("%s: %q, pyenv in %q", c.path, roots, managed)
		}
	}
	wheel := "/root/.pyenv/versions/3.11.7/lib/python3.11/site-packages/nvidia/cublas/lib"
	for _, env := range []map[string]string{{"PATH": "/root/.pyenv/shims"}, {"PYENV_ROOT": "/root/.pyenv"},
		{"HOME": "/root"}} {
		found := places(12080, func(k string) string { return env[k] }, func(pattern string) ([]string, error) {
			if pattern == "/root/.pyenv/versions/*/lib/python3*/site-packages/nvidia/cublas/lib" {
				return []string{wheel}, nil
			}
			return exist(pattern)
		}, links)
		if !slices.Contains(found, wheel+"/libcublasLt.so.12") {
			t.Errorf("%v: it is looked for in %q", env, found)
		}
	}
}

func TestNatural(t *testing.T) {
	sorted := []string{"", "cuda", "cuda-9", "cuda-12.4", "cuda-12.9", "cuda-12.10", "cuda-13"}
	for i, a := range sorted {
		for j, b := range sorted {
			if got := natural(a, b); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("%q and %q: %d", a, b, got)
			}
		}
	}
}

// The library is told the same of any rows of a matrix, so their bits do not depend on which rows they are.
func TestRowsOfAMatrixHaveOneForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dtype := rapid.SampledFrom([]Type{BF16, F32}).Draw(t, "type")
		stride := 8 * rapid.IntRange(1, 64).Draw(t, "eighths of a row")
		column := 8 * rapid.IntRange(0, stride/8-1).Draw(t, "first column, in eighths")
		rows := func(first int) Matrix {
			at := 1<<20 + int64(first*stride+column)*dtype.Bytes() // of an arena, which aligns what it hands out
			return Matrix{At: driver.DevicePtr(at), Type: dtype, Rows: 4, Cols: 8, Stride: stride}
		}
		whole := Matrix{At: 1 << 30, Type: dtype, Rows: 8, Cols: 8, Stride: 256}
		form := func(first int) shape {
			x := rows(first)
			return transposed(&Product{C: whole, A: x, B: whole, Base: x})
		}
		if one, other := form(0), form(rapid.IntRange(1, 100).Draw(t, "first row")); one != other {
			t.Errorf("%+v and %+v", one, other)
		}
	})
}

// A matrix of which each row begins where the library likes best is not told of as less.
func TestWholeAlignment(t *testing.T) {
	for _, c := range []struct {
		at     driver.DevicePtr
		stride int
		want   uint32
	}{{512, 128, 256}, {256, 3584, 256}, {512, 2880, AlignBytes}, {512 + 128, 128, AlignBytes}} {
		if got := alignment(Matrix{At: c.at, Type: BF16, Rows: 4, Cols: 64, Stride: c.stride}); got != c.want {
			t.Errorf("address %d, rows of %d: %d, want %d", c.at, c.stride, got, c.want)
		}
	}
}

// The library gets no product whose bits depend on where its result goes.
func TestSuits(t *testing.T) {
	product := func(operands, result Type, accumulate bool) *Product {
		at := func(address driver.DevicePtr, is Type) Matrix {
			return Matrix{At: address, Type: is, Rows: 4, Cols: 4, Stride: 64}
		}
		return &Product{A: at(512, operands), B: at(1024, operands), C: at(2048, result), Base: at(2048, result),
			Accumulate: accumulate}
	}
	misplaced := product(BF16, BF16, false)
	misplaced.C.At += 2
	for _, c := range []struct {
		name string
		p    *Product
		want bool
	}{
		{"bf16", product(BF16, BF16, false), true}, {"bf16 to fp32", product(BF16, F32, false), true},
		{"bf16, added in fp32", product(BF16, F32, true), true}, {"fp32, added", product(F32, F32, true), true},
		{"bf16, added in bf16", product(BF16, BF16, true), false}, {"fp32 to bf16", product(F32, BF16, false), false},
		{"an address that is not aligned", misplaced, false},
	} {
		if got := c.p.Suits(); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
}
