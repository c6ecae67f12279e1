package hf

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/tensor"
)

// fp8File writes a matrix of codes and scales for its blocks, and opens it.
func fp8File(t testing.TB, rows, cols int, codes []byte, scales []float32, scaleShape tensor.Shape) *Weights {
	t.Helper()
	b := make([]byte, 4*len(scales))
	for i, x := range scales {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(x))
	}
	return mxFile(t, map[string][]byte{"x": codes, "x_scale_inv": b},
		TensorSpec{Name: "x", Type: fp8Type, Shape: tensor.Shape{rows, cols}},
		TensorSpec{Name: "x_scale_inv", Type: "F32", Shape: scaleShape})
}

// Each code gives the number of transformers, to the bit, also where that is a subnormal one of bf16.
func TestFP8Golden(t *testing.T) {
	golden, err := openSafetensors("../model/modeltest/testdata-latent/fp8", "fp8.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer golden.f.Close()
	read := func(name string) []byte {
		at := location{fileTensor: golden.tensors[name], file: golden}
		b := make([]byte, at.end-at.begin)
		if err := at.pread(name, b, 0); err != nil {
			t.Fatal(err)
		}
		return b
	}
	codes, want, seen := read("x"), read("expected"), map[byte]bool{}
	var scales []float32
	for b := read("x_scale_inv"); len(b) > 0; b = b[4:] {
		scales = append(scales, math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	w := fp8File(t, 256, 128, codes, scales, tensor.Shape{2, 1})
	if info, ok := w.Info("x"); !ok || info.DType != tensor.BF16 || info.Type != fp8Type || info.Bytes != 256*128 {
		t.Errorf("the tensor is %+v", info)
	}
	names, stored := w.Names(), w.Stored("x")
	if !slices.Equal(names, []string{"x"}) || !slices.Equal(stored, []string{"x", "x_scale_inv"}) {
		t.Errorf("names are %q, stored as %q", names, stored)
	}
	got, f32 := make([]uint16, len(codes)), make([]float32, len(codes))
	if err := w.ReadBF16("x", got, 0); err != nil {
		t.Fatal(err)
	}
	if err := w.ReadF32("x", f32, 0); err != nil {
		t.Fatal(err)
	}
	for i := range got {
		seen[codes[i]] = true
		if want := binary.LittleEndian.Uint16(want[2*i:]); got[i] != want || tensor.BF16FromF32(f32[i]) != want {
			t.Fatalf("element %d, code %#02x, is %#04x and %g; transformers has %#04x", i, codes[i], got[i], f32[i],
				want)
		}
	}
	if len(seen) != 254 {
		t.Errorf("%d codes", len(seen))
	}
	raw := make([]byte, 3)
	if err := w.ReadAt("x", raw, 5); err != nil || !slices.Equal(raw, codes[5:8]) {
		t.Errorf("bytes are %v (%v), want %v", raw, err, codes[5:8])
	}
}

// A range of a matrix whose last blocks are smaller has the products of codes and of the scales of their blocks.
func TestFP8Ranges(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rows, cols := rapid.IntRange(1, 300).Draw(rt, "rows"), rapid.IntRange(1, 300).Draw(rt, "columns")
		shape := tensor.Shape{(rows + 127) / 128, (cols + 127) / 128}
		codes, scales := make([]byte, rows*cols), make([]float32, shape.Elems())
		for i := range codes {
			codes[i] = byte(i*37+i/cols*11) &^ 1 // no NaN, which is odd
		}
		for i := range scales {
			scales[i] = 0.003 * float32(i+1)
		}
		w := fp8File(t, rows, cols, codes, scales, shape)
		first := rapid.IntRange(0, rows*cols-1).Draw(rt, "first")
		got := make([]float32, rapid.IntRange(0, rows*cols-first).Draw(rt, "elements"))
		if err := w.ReadF32("x", got, int64(first)); err != nil {
			rt.Fatal(err)
		}
		for i, x := range got {
			row, col := (first+i)/cols, (first+i)%cols
			product := e4m3[codes[first+i]] * scales[row/128*shape[1]+col/128]
			if want := tensor.F32FromBF16(tensor.BF16FromF32(product)); x != want {
				rt.Fatalf("element (%d, %d) is %g, want %g", row, col, x, want)
			}
		}
	})
}

// Codes that are no numbers, scales of another form, and matrices without scales are refused in one line.
func TestFP8Faults(t *testing.T) {
	one := make([]float32, 1)
	w := fp8File(t, 1, 2, []byte{0, 0x7f}, one, tensor.Shape{1, 1})
	wantOneLine(t, w.ReadF32("x", make([]float32, 2), 0), `"x"`, "element 1 is not a finite number")
	wantOneLine(t, w.ReadBF16("x", make([]uint16, 2), 0), `"x"`, "element 1 is not a finite number")
	wantOneLine(t, w.ReadF32("x", make([]float32, 2), 1), "elements 1 to 3 are outside of its 2")
	w = fp8File(t, 1, 2, make([]byte, 2), make([]float32, 2), tensor.Shape{1, 2})
	wantOneLine(t, w.Expect("x", tensor.Shape{1, 2}), `"x" has the shape [1 2] and scales F32 [1 2]`, "in BF16")
	w = mxFile(t, map[string][]byte{"x": {1, 2}}, TensorSpec{Name: "x", Type: fp8Type, Shape: tensor.Shape{1, 2}})
	wantOneLine(t, w.Expect("x", tensor.Shape{1, 2}), "is F8_E4M3, which cannot be trained")
}

// A description of FP8 in blocks of 128 is read, and others are refused.
func TestFP8Config(t *testing.T) {
	for _, c := range []struct{ doc, says string }{
		{`{"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}`, ""},
		{`{"quant_method": "fp8", "weight_block_size": [64, 128]}`, "supported are blocks of 128"},
		{`{"quant_method": "fp8"}`, "supported are blocks of 128"},
		{`{"quant_method": "fp8", "fmt": "e5m2", "weight_block_size": [128, 128]}`, "supported is e4m3"},
		{`{"quant_method": "fp8", "weight_block_size": [128, 128], "act_order": true}`,
			`"quantization_config.act_order"`},
		{`{"quant_method": "gptq"}`, "the weights are quantized"},
	} {
		r := parse(t, `{"quantization_config": `+c.doc+`}`).Reader()
		r.FP8()
		err := r.Finish()
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", c.doc, err)
		}
	}
}
