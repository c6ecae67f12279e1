package checkpoint

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/vfs"
)

const qwen3 = "../model/modeltest/testdata/qwen3"

// frozenNorm is the only tensor of its part, which so has no state, and frozenBias one of many of its.
const frozenNorm, frozenPart = "model.norm.weight", "model.layers.0.input_layernorm.weight"

// trained is a small model in which two tensors are frozen.
func trained(t *testing.T) *model.Model {
	t.Helper()
	m, err := model.Read(qwen3)
	must(t, err)
	m, err = m.Grouped(func(name string) (int, bool) { return 0, name != frozenNorm && name != frozenPart })
	must(t, err)
	return m
}

// saveWeights saves numbers in place of the model's weights: bytes that differ from one element to the next.
func saveWeights(t *testing.T, m *model.Model, dtype, low tensor.DType, doc []byte, id Model) (*Checkpoint,
	map[ID][]byte) {
	t.Helper()
	fsys := vfs.NewMem()
	r := start(t, fsys, root)
	var all []Spec
	for _, p := range m.Parts {
		all = append(all, Spec{ID{p.Name, store.Weights}, dtype, dtype.Bytes() * p.Layout.WeightElems, 1000})
		if p.Layout.StateElems > 0 {
			all = append(all, Spec{ID{p.Name, store.Low}, low, low.Bytes() * p.Layout.StateElems, 1000})
		}
	}
	w, err := r.Create(1, all)
	must(t, err)
	saved := map[ID][]byte{}
	for _, s := range all {
		data := contents(s, 1)
		saved[s.ID] = data
		for i := range s.Pieces() {
			off, n := s.piece(i)
			must(t, w.Add(s.ID, i, data[off:off+n]))
		}
	}
	if doc != nil {
		must(t, w.Attach(ConfigName, doc))
	}
	dir, err := w.Commit(Manifest{Model: id})
	must(t, err)
	c, err := Open(fsys, dir)
	must(t, err)
	return c, saved
}

// Any range of a part comes as it was saved; low halves end where the part's state does.
func TestWeights(t *testing.T) {
	doc, err := os.ReadFile(qwen3 + "/config.json")
	must(t, err)
	m := trained(t)
	for _, types := range [][2]tensor.DType{{tensor.BF16, tensor.I16}, {tensor.BF16, tensor.I8},
		{tensor.F32, tensor.I16}} {
		dtype, lows := types[0], types[1]
		c, saved := saveWeights(t, m, dtype, lows, doc, Identify(m, doc, ""))
		again, err := c.Model()
		must(t, err)
		if got := again.Untrained(); !slices.Equal(got, []string{frozenPart, frozenNorm}) {
			t.Fatalf("%q are frozen", got)
		}
		w := c.Weights(again)
		rapid.Check(t, func(t *rapid.T) {
			part := rapid.IntRange(0, len(m.Parts)-1).Draw(t, "part")
			p := &m.Parts[part]
			first := rapid.Int64Range(0, p.Layout.WeightElems-1).Draw(t, "first")
			n := rapid.Int64Range(1, p.Layout.WeightElems-first).Draw(t, "elements")
			low := rapid.Bool().Draw(t, "low halves")
			v, err := w.Range(part, first, n, low)
			if err != nil || v.First != first {
				t.Fatalf("from %d, error %v", v.First, err)
			}
			main := saved[ID{p.Name, store.Weights}]
			if dtype == tensor.F32 {
				same := func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }
				if !slices.EqualFunc(v.F32, hostmem.F32(main)[first:first+n], same) || v.High != nil || v.Low != nil ||
					v.Low8 != nil {
					t.Fatalf("[%d, +%d) of %s differs", first, n, p.Name)
				}
				return
			}
			if !slices.Equal(v.High, hostmem.U16(main)[first:first+n]) || v.F32 != nil {
				t.Fatalf("[%d, +%d) of %s differs", first, n, p.Name)
			}
			var want []int16
			var want8 []int8
			if end, of := min(first+n, p.Layout.StateElems), saved[ID{p.Name, store.Low}]; low && first < end {
				if lows == tensor.I8 {
					want8 = hostmem.I8(of)[first:end]
				} else {
					want = hostmem.I16(of)[first:end]
				}
			}
			if !slices.Equal(v.Low, want) || !slices.Equal(v.Low8, want8) {
				t.Fatalf("the low halves of [%d, +%d) of %s differ", first, n, p.Name)
			}
		})
	}
}

// A model in which one tensor is frozen is another one than that in which all are trained.
func TestOneFrozen(t *testing.T) {
	m, err := model.Read(qwen3)
	must(t, err)
	for _, frozen := range [][]string{nil, {frozenNorm}, {frozenPart, frozenNorm}} {
		got, err := Model{Frozen: frozen}.With(m)
		must(t, err)
		if names := got.Untrained(); !slices.Equal(names, frozen) {
			t.Errorf("%q are frozen, want %q", names, frozen)
		}
	}
}

// A checkpoint that is not of the model, or of no model, says so.
func TestWeightsOfAnotherModel(t *testing.T) {
	doc, err := os.ReadFile(qwen3 + "/config.json")
	must(t, err)
	m := trained(t)
	id := Identify(m, doc, "")
	for want, c := range map[string]struct {
		doc    []byte
		change func(*Model)
	}{
		"has no config.json; it was not saved by this program": {nil, func(*Model) {}},
		"lays out qwen3 in another way":                        {doc, func(m *Model) { m.LayoutSHA256 = "5a" }},
		// One frozen tensor less is another layout, too.
		"lays out qwen3 in another way; use the version": {doc, func(m *Model) { m.Frozen = m.Frozen[1:] }},
		"config.json": {[]byte("{"), func(*Model) {}},
	} {
		other := id
		other.Frozen = slices.Clone(id.Frozen)
		c.change(&other)
		saved, _ := saveWeights(t, m, tensor.BF16, tensor.I16, c.doc, other)
		if _, err := saved.Model(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	saved, _ := saveWeights(t, m, tensor.I8, tensor.I16, doc, id)
	if _, err := saved.Weights(m).Part(0, false); err == nil || !strings.Contains(err.Error(), "in a type that is known") {
		t.Errorf("codes: error %v", err)
	}
	larger, err := model.Read("../model/modeltest/testdata/qwen3-bias-untied")
	must(t, err)
	saved, _ = saveWeights(t, m, tensor.BF16, tensor.I16, doc, id)
	if _, err := saved.Weights(larger).Part(1, true); err == nil || !strings.Contains(err.Error(), "it is of another model") {
		t.Errorf("another model: error %v", err)
	}
}
