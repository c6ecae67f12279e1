package model_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/tensor"
)

// unstacked has a tensor for each expert, under the names that transformers 5.24 saves.
func unstacked(all []filed) (out []filed) {
	for _, f := range all {
		of, kind, _ := strings.Cut(f.name, ".mlp.experts.")
		parts := map[string][]string{"gate_up_proj": {"gate_proj", "up_proj"}, "down_proj": {"down_proj"}}[kind]
		if parts == nil {
			out = append(out, f)
			continue
		}
		rows, cols := f.shape[1]/len(parts), f.shape[2]
		for expert := range f.shape[0] {
			for i, part := range parts {
				at := (expert*len(parts) + i) * rows * cols
				out = append(out, filed{name: fmt.Sprintf("%s.mlp.experts.%d.%s.weight", of, expert, part),
					shape: tensor.Shape{rows, cols}, dtype: f.dtype, values: f.values[at : at+rows*cols]})
			}
		}
	}
	return out
}

// A mixture of Qwen3.5 is read alike with its experts stacked, as published, and with a tensor for each, as transformers
// saves it: whole parts, pieces, and ranges of bytes.
func TestUnstackedExperts(t *testing.T) {
	for _, variant := range []string{"qwen3_5_moe", "qwen3_5_moe_text"} {
		m := mustBuild(t, variant, nil)
		all := of(t, variant)
		write := func(all []filed) string {
			w, err := in(t, all)
			check(t, err)
			names := w.Names()
			info, _ := w.Info(names[0])
			return filepath.Dir(info.File)
		}
		each := unstacked(all)
		if len(each) < len(all)+8 {
			t.Fatalf("%s: %d tensors of %d", variant, len(each), len(all))
		}
		for i := range each {
			each[i].shard = i % 2
		}
		stacked, err := m.OpenWeights(write(all))
		check(t, err)
		defer stacked.Close()
		apart, err := m.OpenWeights(write(each))
		check(t, err)
		defer apart.Close()
		check(t, m.Check(t.Context(), apart))
		if !slices.Equal(stacked.Names(), apart.Names()) {
			t.Errorf("%s: %v, want %v", variant, apart.Names(), stacked.Names())
		}
		for i := range m.Parts {
			for _, split := range []bool{false, true} {
				want, got := newValues(&m.Parts[i], split), newValues(&m.Parts[i], split)
				check(t, m.ReadPart(stacked, &m.Parts[i], want))
				check(t, m.ReadPart(apart, &m.Parts[i], got))
				if !slices.Equal(got.High, want.High) || modeltest.MaxDiff(got.F32, want.F32) != 0 {
					t.Errorf("%s: %s differs", variant, m.Parts[i].Name)
				}
			}
		}
		stored := 0
		for _, name := range apart.Names() {
			info, _ := apart.Info(name)
			want, got := make([]byte, info.Bytes), make([]byte, info.Bytes)
			check(t, stacked.ReadAt(name, want, 0))
			check(t, apart.ReadAt(name, got, 0))
			high, low := make([]uint16, info.Shape.Elems()), make([]uint16, info.Shape.Elems())
			check(t, stacked.ReadBF16(name, high, 0))
			check(t, apart.ReadBF16(name, low[:1], 0))
			check(t, apart.ReadBF16(name, low[1:], 1))
			if !slices.Equal(want, got) || !slices.Equal(high, low) {
				t.Errorf("%s: %s differs", variant, name)
			}
			if apart.ReadAt(name, make([]byte, 2), info.Bytes-1) == nil || apart.ReadF32(name, make([]float32, 2), int64(info.Shape.Elems())-1) == nil {
				t.Errorf("%s: %s is read beyond its end", variant, name)
			}
			stored += len(apart.Stored(name))
		}
		if stored != len(each) {
			t.Errorf("%s: %d tensors are stored, and the files have %d", variant, stored, len(each))
		}
		one := slices.IndexFunc(each, func(f filed) bool { return strings.HasSuffix(f.name, ".experts.3.up_proj.weight") })
		for what, change := range map[string]func(f *filed){
			"another name":  func(f *filed) { f.name += "s" },
			"another shape": func(f *filed) { f.shape = tensor.Shape{f.shape[1], f.shape[0]} },
			"another type":  func(f *filed) { f.dtype = tensor.F16 },
		} {
			odd := slices.Clone(each)
			change(&odd[one])
			w, err := m.OpenWeights(write(odd))
			check(t, err)
			defer w.Close()
			if err := m.Check(t.Context(), w); err == nil || !strings.Contains(err.Error(), "experts") {
				t.Errorf("%s: an expert has %s: %v", variant, what, err)
			}
		}
	}
}
