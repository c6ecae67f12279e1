package cuda_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda/kernels"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
)

// variantRow tells of a kernel, or a candidate for its place, in one operation.
type variantRow struct {
	Operation    string  `json:"operation"`
	Kernel       string  `json:"kernel"`
	Label        string  `json:"label"` // empty: the program's own
	Milliseconds float64 `json:"ms"`
	Times        float64 `json:"times_as_fast"`
	Error        float64 `json:"error"` // of what it writes, relative to the own kernel's norm
	Bits         bool    `json:"bits_equal"`
	Failed       string  `json:"failed,omitempty"`
}

// TestGPUVariants times the candidates for places of kernels, in each operation of the row speeds that launches such a
// kernel, and compares what they compute. Its lines are for people who have another card to paste.
func TestGPUVariants(t *testing.T) {
	needGPU(t)
	r := openSpeeds(t, ownProducts, gpuShape)
	target, code := "sm80", false
	if strings.Contains(r.Info().Numerics, "compute capability 9.0") {
		target, code = "sm90a", machineCode
	}
	candidates, err := kernels.LoadCandidates(os.DirFS(candidatesFolder(t)), target)
	if err != nil {
		t.Fatal(err)
	}
	var rows []variantRow
	seen, failed := map[string]bool{}, 0
	for _, taskIn := range r.tasks {
		r.fill()
		arena := device.NewArena(r.mem)
		task := taskIn(arena)
		var chosen []kernels.Candidate
		for _, launched := range r.launchedBy(task) {
			for _, c := range candidates {
				if strings.ReplaceAll(c.Name, ".", "_") == launched.Name && !slices.ContainsFunc(chosen,
					func(o kernels.Candidate) bool { return o.Name == c.Name && o.Label == c.Label }) {
					chosen = append(chosen, c)
				}
			}
		}
		if len(chosen) == 0 {
			continue
		}
		want, own := r.result(taskIn), 0.0
		own = r.milliseconds(func() { task.run(r.stream) })
		for i, c := range chosen {
			seen[c.Name+c.Label] = true
			if i == 0 || c.Name != chosen[i-1].Name {
				rows = append(rows, variantRow{Operation: task.name, Kernel: c.Name, Milliseconds: own, Times: 1, Bits: true})
			}
			row := variantRow{Operation: task.name, Kernel: c.Name, Label: c.Label}
			image := append([]byte(c.PTX), 0)
			if code {
				image = c.Code
			}
			undo, err := r.Replace(c.Kernel, image)
			if err != nil {
				row.Failed = err.Error()
				rows = append(rows, row)
				continue
			}
			got := r.result(taskIn)
			row.Error, row.Bits = difference(got, want)
			row.Milliseconds = r.milliseconds(func() { task.run(r.stream) })
			row.Times = own / row.Milliseconds
			if !(row.Error <= mostVariantError) {
				row.Failed = "it computes something else"
				failed++
			}
			rows = append(rows, row)
			if err := undo(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range candidates {
		if !seen[c.Name+c.Label] {
			t.Errorf("%s, %s: no operation launches the kernel", c.Name, c.Label)
		}
	}
	showVariants(t, r.Info().Name, rows)
	if failed > 0 {
		t.Errorf("%d candidates compute something else", failed)
	}
}

// mostVariantError bounds the difference that another order of sums makes in bf16 results, relative to their norm.
const mostVariantError = 5e-3

// showVariants prints the table, by operation and kernel, the fastest first.
func showVariants(t *testing.T, card string, rows []variantRow) {
	fmt.Printf(speedsHeader+"%-42s %9s %7s %9s  %s\n", card, "ms", "", "error", "bits")
	group, tried, better := "", 0, 0
	slices.SortStableFunc(rows, func(a, b variantRow) int {
		if a.Operation != b.Operation || a.Kernel != b.Kernel || a.Failed != "" || b.Failed != "" {
			return 0
		}
		return int(math.Copysign(1, a.Milliseconds-b.Milliseconds))
	})
	for _, v := range rows {
		if name := v.Operation + ": " + v.Kernel; name != group {
			group = name
			fmt.Printf("%s\n", name)
		}
		switch {
		case v.Failed != "":
			fmt.Printf("  %-40s %s\n", v.Label, v.Failed)
		case v.Label == "":
			fmt.Printf("  %-40s %9.4f\n", "own", v.Milliseconds)
		default:
			bits := "other"
			if v.Bits {
				bits = "equal"
			}
			fmt.Printf("  %-40s %9.4f %6.2fx %9.1e  %s\n", v.Label, v.Milliseconds, v.Times, v.Error, bits)
			tried++
			if v.Times > 1.02 {
				better++
			}
		}
	}
	text, err := json.Marshal(map[string]any{"device": card, "rows": rows})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("VARIANTS %s\nSUMMARY %d candidates in their operations, %d of them more than 2%% faster than the "+
		"program's own\n", text, tried, better)
}

// candidatesFolder finds the folder below the module's root.
func candidatesFolder(t *testing.T) string {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "device/cuda/kernels/candidates")
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("there is no module root above the test's directory")
		}
		dir = filepath.Dir(dir)
	}
}

// shownBytes bounds what is compared of each end of a result.
const shownBytes = 4 << 20

// written is a part of a result.
type written struct {
	dtype tensor.DType
	bytes []byte
}

// result runs a task on fresh operands, and returns both ends of each result.
func (r *speedRig) result(taskIn func(a *device.Arena) speedTask) (all []written) {
	r.t.Helper()
	r.fill()
	task := taskIn(device.NewArena(r.mem))
	task.run(r.stream)
	var o device.Operands
	task.run(&o)
	region, err := hostmem.New().Reserve("results", shownBytes)
	if err != nil {
		r.t.Fatal(err)
	}
	defer mustClose(r.t, region)
	host, err := r.Register(region)
	if err != nil {
		r.t.Fatal(err)
	}
	defer mustClose(r.t, host)
	for _, m := range o.List {
		if !m.Write || m.Stride != m.Cols && m.Rows > 1 {
			continue
		}
		n := int64(m.Rows) * int64(m.Cols) * m.DType.Bytes()
		take := min(n, shownBytes)
		for _, off := range []int64{0, n - take} {
			r.stream.Copy(device.Whole(host).Slice(0, take), m.Mem.Slice(0, n).Slice(off, take))
			r.sync()
			all = append(all, written{m.DType, slices.Clone(region.Bytes()[:take])})
		}
	}
	return all
}

// difference is the largest one of all parts, relative to the norm of the second, and whether all bits are equal.
func difference(got, want []written) (most float64, bits bool) {
	bits = true
	for i, w := range want {
		if slices.Equal(got[i].bytes, w.bytes) {
			continue
		}
		bits = false
		var sum, norm float64
		values := func(p written, k int) float64 {
			switch p.dtype {
			case tensor.BF16:
				return float64(tensor.F32FromBF16(hostmem.U16(p.bytes)[k]))
			case tensor.F32:
				return float64(hostmem.F32(p.bytes)[k])
			case tensor.F64:
				return math.Float64frombits(binary.NativeEndian.Uint64(p.bytes[8*k:]))
			}
			return math.NaN() // of which bits alone can be compared
		}
		for k := range len(w.bytes) / int(w.dtype.Bytes()) {
			a, b := values(got[i], k), values(w, k)
			sum += (a - b) * (a - b)
			norm += b * b
		}
		if relative := math.Sqrt(sum / norm); !(relative <= most) {
			most = relative // NaN too
		}
	}
	return most, bits
}
