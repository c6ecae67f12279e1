package hf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/tensor"
)

// mxPair writes a pair and opens it.
func mxPair(t testing.TB, experts, inputs, outputs int, blocks, scales []byte) *Weights {
	t.Helper()
	specs, err := MXFP4Specs("x", tensor.Shape{experts, inputs, outputs})
	if err != nil {
		t.Fatal(err)
	}
	return mxFile(t, map[string][]byte{"x_blocks": blocks, "x_scales": scales}, specs[:]...)
}

func mxFile(t testing.TB, data map[string][]byte, specs ...TensorSpec) *Weights {
	t.Helper()
	dir := t.TempDir()
	f, err := CreateFile(filepath.Join(dir, weightsName), specs)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		if s.Bytes() == 0 {
			continue
		}
		if err := f.Write(s.Name, data[s.Name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Commit(); err != nil {
		t.Fatal(err)
	}
	w, err := OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

// Each code with each scale gives the number of transformers, to the bit: in the golden file, and as the reader hands
// it out. Scales that make infinities are refused with the name of the tensor.
func TestMXFP4Golden(t *testing.T) {
	golden, err := openSafetensors("../model/modeltest/testdata-experts/mxfp4", "mxfp4.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer golden.f.Close()
	read := func(name string) ([]byte, tensor.Shape) {
		at := location{fileTensor: golden.tensors[name], file: golden}
		b := make([]byte, at.end-at.begin)
		if err := at.pread(name, b, 0); err != nil {
			t.Fatal(err)
		}
		return b, at.shape
	}
	seen := map[[2]byte]bool{}
	for _, proj := range []string{"gate_up_proj", "down_proj"} {
		name := "model.layers.0.mlp.experts." + proj
		blocks, _ := read(name + "_blocks")
		scales, _ := read(name + "_scales")
		raw, shape := read(name)
		want := make([]uint16, len(raw)/2)
		for i := range want {
			want[i] = binary.LittleEndian.Uint16(raw[2*i:])
		}
		n := len(want)
		inFileOrder := func(i int) int { // of an element of the file, its place in the tensor
			inputs, outputs := shape[1], shape[2]
			row := i / inputs
			return (row/outputs*inputs+i%inputs)*outputs + row%outputs
		}
		got := make([]uint16, n)
		if !unpackMXFP4(got, blocks, scales, 0, &mxBF16) {
			t.Error("no scale is large")
		}
		for i, bits := range got {
			if w := want[inFileOrder(i)]; bits != w {
				t.Fatalf("%s: element %d is %#04x, transformers has %#04x", name, i, bits, w)
			}
			code := blocks[i/2] >> (i % 2 * 4) & 15
			seen[[2]byte{scales[i/32], code}] = true
		}

		w := mxPair(t, shape[0], shape[1], shape[2], blocks, scales)
		wantOneLine(t, w.ReadBF16("x", got, 0), `"x"`, "element", "not a finite number")
		wantOneLine(t, w.ReadF32("x", make([]float32, n), 0), `"x"`, "element", "not a finite number")
		wantOneLine(t, w.ReadTransposedF32("x", make([]float32, n), 0), `"x"`, "element", "not a finite number")
		for i := range n { // one by one: those that are not finite are refused, and no other
			one, f := make([]uint16, 1), make([]float32, 1)
			err := w.ReadBF16("x", one, int64(i))
			if infinite := want[i]&0x7f80 == 0x7f80; (err != nil) != infinite {
				t.Fatalf("%s: element %d, %#04x: %v", name, i, want[i], err)
			} else if !infinite && one[0] != want[i] {
				t.Fatalf("%s: element %d is %#04x, transformers has %#04x", name, i, one[0], want[i])
			} else if err := w.ReadF32("x", f, int64(i)); (err != nil) != infinite || !infinite &&
				math.Float32bits(f[0]) != uint32(want[i])<<16 {
				t.Fatalf("%s: element %d is %g in fp32, %v", name, i, f[0], err)
			}
		}
		// Without those the whole tensor is as it is there.
		for i, s := range scales {
			if s >= mxLarge {
				scales[i] = 120
			}
		}
		w = mxPair(t, shape[0], shape[1], shape[2], blocks, scales)
		if err := w.ReadBF16("x", got, 0); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			at := inFileOrder(i)
			if want := mxBF16[scales[i/32]][blocks[i/2]>>(i%2*4)&15]; got[at] != want {
				t.Fatalf("%s: element %d is %#04x, want %#04x", name, at, got[at], want)
			}
		}
	}
	for scale := range 255 {
		for code := range 16 {
			if !seen[[2]byte{byte(scale), byte(code)}] {
				t.Fatalf("the golden file lacks code %d with scale %d", code, scale)
			}
		}
	}
}

// The scale 255 is no number: all its elements are refused, zeros too.
func TestMXFP4ScaleOf255(t *testing.T) {
	w := mxPair(t, 1, 32, 1, make([]byte, 16), []byte{255})
	for i := range int64(32) {
		wantOneLine(t, w.ReadF32("x", make([]float32, 1), i), `"x"`, fmt.Sprintf("element %d ", i),
			"not a finite number")
		wantOneLine(t, w.ReadBF16("x", make([]uint16, 1), i), `"x"`, fmt.Sprintf("element %d ", i),
			"not a finite number")
		wantOneLine(t, w.ReadTransposedF32("x", make([]float32, 1), i), `"x"`, "not a finite number")
	}
}

// Any range of a tensor is that of the whole one, in both orders and both types.
func TestMXFP4Ranges(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		experts, groups := rapid.IntRange(1, 3).Draw(r, "experts"), rapid.IntRange(1, 5).Draw(r, "groups")
		outputs := rapid.IntRange(1, 70).Draw(r, "outputs")
		if rapid.IntRange(0, 19).Draw(r, "wide") == 0 {
			groups = mxCols/mxBlock + rapid.IntRange(0, 3).Draw(r, "more")
			outputs = rapid.IntRange(1, 3).Draw(r, "few")
		}
		inputs := 32 * groups
		blocks := make([]byte, experts*outputs*groups*16)
		scales := make([]byte, experts*outputs*groups)
		seed := rapid.Uint64().Draw(r, "seed")
		random := func() byte { seed = seed*6364136223846793005 + 1442695040888963407; return byte(seed >> 56) }
		for i := range blocks {
			blocks[i] = random()
		}
		for i := range scales {
			scales[i] = random() % mxLarge
		}
		w := mxPair(t, experts, inputs, outputs, blocks, scales)
		info, ok := w.Info("x")
		if !ok || info.Type != MXFP4 || info.DType != tensor.BF16 || !info.Shape.Equal(tensor.Shape{experts, inputs,
			outputs}) ||
			info.Bytes != int64(len(blocks)+len(scales)) || len(w.Names()) != 1 || w.Names()[0] != "x" {
			t.Fatalf("%+v, %v", info, w.Names())
		}
		n := experts * inputs * outputs
		stored, want := make([]float32, n), make([]float32, n)
		for i := range stored {
			stored[i] = mxF32[scales[i/32]][blocks[i/2]>>(i%2*4)&15]
			row := i / inputs
			want[(row/outputs*inputs+i%inputs)*outputs+row%outputs] = stored[i]
		}
		same := func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }
		for range 8 {
			first := rapid.IntRange(0, n).Draw(r, "first")
			length := rapid.IntRange(0, n-first).Draw(r, "length")
			f, bf, st := make([]float32, length), make([]uint16, length), make([]float32, length)
			for _, err := range []error{w.ReadF32("x", f, int64(first)), w.ReadBF16("x", bf, int64(first)),
				w.ReadTransposedF32("x", st, int64(first))} {
				if err != nil {
					t.Fatal(err)
				}
			}
			if !slices.EqualFunc(f, want[first:first+length], same) || !slices.EqualFunc(st,
				stored[first:first+length], same) {
				t.Fatalf("[%d %d %d]: elements %d to %d differ", experts, inputs, outputs, first, first+length)
			}
			for i, x := range bf {
				if !same(tensor.F32FromBF16(x), want[first+i]) {
					t.Fatalf("[%d %d %d]: element %d is %#04x in bf16", experts, inputs, outputs, first+i, x)
				}
			}
		}
		one := make([]float32, 1)
		for _, first := range []int64{-1, int64(n), math.MaxInt64} {
			for _, err := range []error{w.ReadF32("x", one, first), w.ReadTransposedF32("x", one, first),
				w.ReadBF16("x", make([]uint16, 1), first)} {
				wantOneLine(t, err, `"x"`, "outside")
			}
		}
	})
}

// Numbers that were read from MXFP4 come back to the bit, whatever their scale and their largest code.
func TestMXFP4RoundTrip(t *testing.T) {
	back := func(t testing.TB, scale byte, codes [32]byte) {
		t.Helper()
		vals, again := make([]float32, 32), make([]float32, 32)
		for i, code := range codes {
			vals[i] = mxF32[scale][code]
		}
		blocks, scales := make([]byte, 16), make([]byte, 1)
		if err := PackMXFP4(blocks, scales, vals); err != nil {
			t.Fatal(err)
		}
		unpackMXFP4(again, blocks, scales, 0, &mxF32)
		for i := range vals {
			if math.Float32bits(vals[i]) != math.Float32bits(again[i]) {
				t.Fatalf("scale %d, code %d of %v: %g came back as %g with scale %d", scale, codes[i], codes, vals[i],
					again[i], scales[0])
			}
		}
	}
	// With each scale, each set of codes up to each largest one: all that are below it are in the block.
	for scale := range mxLarge {
		for largest := range 8 {
			var codes [32]byte
			for i := range codes {
				codes[i] = byte(i%(largest+1)) | byte(i/(largest+1)%2)<<3
			}
			codes[31] = byte(largest) | 8
			back(t, byte(scale), codes)
		}
	}
	rapid.Check(t, func(r *rapid.T) {
		most := rapid.ByteRange(0, 7).Draw(r, "most")
		var codes [32]byte
		for i := range codes {
			codes[i] = rapid.ByteRange(0, most).Draw(r, "code") | rapid.ByteRange(0, 1).Draw(r, "sign")<<3
		}
		back(t, rapid.ByteRange(0, mxLarge-1).Draw(r, "scale"), codes)
	})
}

// The quantizer is the specification's: the scale is 2^(floor(log2(max))-2), and of the codes with that scale each
// number gets the nearest, of two that are as near the even one, and at most 6.
func TestPackMXFP4IsNearest(t *testing.T) {
	check := func(t testing.TB, vals []float32) {
		t.Helper()
		blocks, scales := make([]byte, 16), make([]byte, 1)
		if err := PackMXFP4(blocks, scales, vals); err != nil {
			t.Fatal(err)
		}
		largest := 0.0
		for _, x := range vals {
			largest = max(largest, math.Abs(float64(x)))
		}
		want := 127
		if largest > 0 {
			want = max(0, math.Ilogb(largest)-2+127)
		}
		if int(scales[0]) != want {
			t.Fatalf("scale %d for %g, want %d", scales[0], largest, want)
		}
		for i, x := range vals {
			got := blocks[i/2] >> (i % 2 * 4) & 15
			v := math.Abs(float64(x)) * math.Ldexp(1, 127-want)
			best := 0
			for code := range e2m1 {
				d, least := math.Abs(v-e2m1[code]), math.Abs(v-e2m1[best])
				if d < least || d == least && code%2 == 0 {
					best = code
				}
			}
			if int(got&7) != best || got>>3 == 1 != math.Signbit(float64(x)) {
				t.Fatalf("%g with scale %d is code %d, want %d", x, want, got, best)
			}
		}
	}
	ties := make([]float32, 32)
	for i, x := range []float32{0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, 7.9, 0.249, 0.251, 4, -5, -0.25,
		float32(math.Copysign(0, -1)), 0} {
		ties[i] = x
	}
	check(t, ties)
	rapid.Check(t, func(r *rapid.T) {
		vals := make([]float32, 32)
		exponent := rapid.IntRange(-149, 127).Draw(r, "exponent")
		for i := range vals {
			x := math.Ldexp(rapid.Float64Range(-2, 2).Draw(r, "x"), exponent)
			if vals[i] = float32(x); math.IsInf(float64(vals[i]), 0) {
				vals[i] = math.MaxFloat32
			}
		}
		check(t, vals)
	})
	for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		vals := make([]float32, 32)
		vals[7] = float32(x)
		if err := PackMXFP4(make([]byte, 16), make([]byte, 1), vals); err == nil {
			t.Errorf("%g was packed", x)
		}
	}
}

// Blocks and scales that do not fit are two tensors, and reading what they should be says in a line why they are not.
func TestMXFP4Faults(t *testing.T) {
	u8 := func(name string, shape ...int) TensorSpec { return TensorSpec{Name: name, Type: "U8", Shape: shape} }
	for name, c := range map[string]struct {
		specs []TensorSpec
		words []string
	}{
		"no scales": {[]TensorSpec{u8("x_blocks", 1, 2, 1, 16)}, []string{"_blocks", "no _scales"}},
		"no blocks": {[]TensorSpec{u8("x_scales", 1, 2, 1)}, []string{"_scales", "no _blocks"}},
		"other scales": {[]TensorSpec{u8("x_blocks", 1, 2, 1, 16), u8("y_scales", 1, 2, 1)},
			[]string{"no _scales"}},
		"blocks of 8": {[]TensorSpec{u8("x_blocks", 1, 2, 1, 8), u8("x_scales", 1, 2, 1)}, []string{"[1 2 1 8]",
			"inputs/32"}},
		"flat blocks": {[]TensorSpec{u8("x_blocks", 1, 2, 16), u8("x_scales", 1, 2)}, []string{"[1 2 16]",
			"inputs/32"}},
		"fewer scales": {[]TensorSpec{u8("x_blocks", 1, 2, 2, 16), u8("x_scales", 1, 2, 1)},
			[]string{"[1 2 2 16]", "[1 2 1]"}},
		"more scales": {[]TensorSpec{u8("x_blocks", 1, 2, 2, 16), u8("x_scales", 1, 2, 2, 1)},
			[]string{"[1 2 2 16]", "[1 2 2 1]"}},
		"transposed": {[]TensorSpec{u8("x_blocks", 1, 2, 3, 16), u8("x_scales", 1, 3, 2)}, []string{"[1 3 2]"}},
		"scales of a type": {[]TensorSpec{u8("x_blocks", 1, 2, 1, 16), {Name: "x_scales", Type: "F8_E8M0",
			Shape: tensor.Shape{1, 2, 1}}}, []string{"F8_E8M0", "not U8"}},
		"blocks of a type": {[]TensorSpec{{Name: "x_blocks", Type: "I8", Shape: tensor.Shape{1, 2, 1, 16}},
			u8("x_scales", 1, 2, 1)}, []string{"I8"}},
		"empty": {[]TensorSpec{u8("x_blocks", 0, 1<<40, 1<<20, 16), u8("x_scales", 0, 1<<40, 1<<20)},
			[]string{"not supported"}},
		"both forms": {[]TensorSpec{{Name: "x", DType: tensor.BF16, Shape: tensor.Shape{1, 32, 2}}, u8("x_blocks", 1,
			2, 1, 16), u8("x_scales", 1, 2, 1)},
			[]string{"is there itself"}},
	} {
		t.Run(name, func(t *testing.T) {
			data := map[string][]byte{}
			for _, s := range c.specs {
				data[s.Name] = make([]byte, s.Bytes())
			}
			w := mxFile(t, data, c.specs...)
			words := append(c.words, `"x"`, weightsName)
			for _, err := range []error{w.Expect("x", tensor.Shape{1, 32, 2}), w.ReadF32("x", make([]float32, 1), 0),
				w.ReadBF16("x", make([]uint16, 1), 0), w.ReadTransposedF32("x", make([]float32, 1), 0)} {
				wantOneLine(t, err, words...)
			}
			if len(w.Names()) != len(c.specs) {
				t.Errorf("names %v", w.Names())
			}
			for _, s := range c.specs {
				if info, ok := w.Info(s.Name); !ok || info.Type != s.typeName() {
					t.Errorf("%s is %+v", s.Name, info)
				}
			}
		})
	}
	w := mxPair(t, 1, 32, 2, make([]byte, 32), make([]byte, 2))
	wantOneLine(t, w.Expect("x", tensor.Shape{1, 2, 32}), `"x"`, "[1 32 2]", "[1 2 32]")
	wantOneLine(t, w.ReadAt("x", nil, 0), "stored as _blocks and _scales")
	if err := os.Truncate(filepath.Join(w.dir, weightsName), 100); err != nil {
		t.Fatal(err)
	}
	wantOneLine(t, w.ReadF32("x", make([]float32, 64), 0), `"x_`, "shorter")
	wantOneLine(t, w.ReadTransposedF32("x", make([]float32, 64), 0), `"x_`, "shorter")
	if _, err := MXFP4Specs("x", tensor.Shape{2, 34, 8}); err == nil || !strings.Contains(err.Error(),
		"multiple of 32") {
		t.Error(err)
	}
}

// A pair may be in two shards, and next to tensors of other types.
func TestMXFP4Shards(t *testing.T) {
	dir := t.TempDir()
	specs, err := MXFP4Specs("x", tensor.Shape{1, 64, 2})
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range specs {
		f, err := CreateFile(filepath.Join(dir, fmt.Sprintf("model-0000%d-of-00002.safetensors", i+1)), []TensorSpec{s})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Write(s.Name, bytes.Repeat([]byte{byte(127 - 125*(1-i))}, int(s.Bytes()))); err != nil {
			t.Fatal(err)
		}
		if err := f.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	index := `{"weight_map":{"x_blocks":"model-00001-of-00002.safetensors","x_scales":"model-00002-of-00002.safetensors"}}`
	if err := os.WriteFile(filepath.Join(dir, indexName), []byte(index), 0o644); err != nil {
		t.Fatal(err)
	}
	w, err := OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	got := make([]float32, 128)
	if err := w.ReadF32("x", got, 0); err != nil {
		t.Fatal(err)
	}
	for i, x := range got { // code 2 in low bits, 0 in high ones
		if want := []float32{1, 0}[i/2%2]; x != want {
			t.Fatalf("element %d is %g, want %g", i, x, want)
		}
	}
	before, err := w.Fingerprint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	shard := filepath.Join(dir, "model-00002-of-00002.safetensors")
	all, err := os.ReadFile(shard)
	if err != nil {
		t.Fatal(err)
	}
	all[len(all)-1]++
	if err := os.WriteFile(shard, all, 0o644); err != nil {
		t.Fatal(err)
	}
	if after, err := w.Fingerprint(t.Context()); err != nil || after == before {
		t.Errorf("other scales have the same fingerprint, %v", err)
	}
}

// FuzzMXFP4 opens any header over a file of zeros, and reads what it finds: values, or an error of one line.
func FuzzMXFP4(f *testing.F) {
	f.Add([]byte(`{"x_blocks":{"dtype":"U8","shape":[1,2,1,16],"data_offsets":[0,32]},"x_scales":{"dtype":"U8","shape":[1,2,1],"data_offsets":[32,34]}}`), uint16(34), int64(3))
	f.Add([]byte(`{"x":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]},"x_blocks":{"dtype":"U8","shape":[0,4,99999999999,16],"data_offsets":[2,2]},"x_scales":{"dtype":"U8","shape":[0,4,99999999999],"data_offsets":[2,2]}}`), uint16(2), int64(-1))
	f.Add([]byte(`{"x_blocks_blocks":{"dtype":"U8","shape":[1,1,1,16],"data_offsets":[0,16]},"x_blocks_scales":{"dtype":"U8","shape":[1,1,1],"data_offsets":[16,17]},"x_scales":{"dtype":"U8","shape":[1],"data_offsets":[17,18]}}`), uint16(18), int64(0))
	f.Fuzz(func(t *testing.T, header []byte, dataBytes uint16, first int64) {
		size := int64(len(header)) + 8 + int64(dataBytes)
		tensors, err := parseSafetensorsHeader(header, size)
		if err != nil {
			return
		}
		path := filepath.Join(t.TempDir(), weightsName)
		if err := os.WriteFile(path, stFile(string(header), int(dataBytes)), 0o644); err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		of := &safetensorsFile{path, file, tensors}
		w := &Weights{tensors: map[string]location{}, files: []*safetensorsFile{of}}
		for name, x := range tensors {
			w.tensors[name] = location{fileTensor: x, file: of}
		}
		w.sortNames()
		stored := 0
		for _, name := range w.Names() {
			stored += len(w.Stored(name))
			info, ok := w.Info(name)
			if !ok {
				t.Fatalf("%q has no description", name)
			}
			n := min(info.Shape.Elems(), 100)
			dst, half := make([]float32, n), make([]uint16, n)
			for _, at := range []int64{0, first, info.Shape.Elems() - n} {
				for _, err := range []error{w.ReadF32(name, dst, at), w.ReadBF16(name, half, at),
					w.ReadTransposedF32(name, dst, at)} {
					if err != nil && strings.ContainsAny(err.Error(), "\n\r") {
						t.Errorf("more than one line: %q", err)
					}
				}
			}
			if info.Type == MXFP4 && w.ReadF32(name, dst, 0) != nil {
				t.Errorf("%q of zeros cannot be read", name)
			}
		}
		if stored != len(tensors) {
			t.Errorf("%d tensors on file became %d", len(tensors), stored)
		}
	})
}

// BenchmarkMXFP4 reads gate_up_proj of four of gpt-oss' experts: by rows of the file, and by ranges of the tensor.
func BenchmarkMXFP4(b *testing.B) {
	const experts, inputs, outputs = 4, 2880, 5760
	blocks, scales := make([]byte, experts*inputs*outputs/2), bytes.Repeat([]byte{120}, experts*inputs*outputs/32)
	for i := range blocks {
		blocks[i] = byte(i * 37)
	}
	w := mxPair(b, experts, inputs, outputs, blocks, scales)
	for _, c := range []struct {
		name  string
		elems int
		read  func(string, []float32, int64) error
	}{
		{"transposed/64K", 64 << 10, w.ReadTransposedF32}, {"transposed/row", inputs, w.ReadTransposedF32},
		{"ranges/4M", 4 << 20, w.ReadF32}, {"ranges/256K", 256 << 10, w.ReadF32},
	} {
		b.Run(c.name, func(b *testing.B) {
			dst := make([]float32, c.elems)
			b.SetBytes(experts * inputs * outputs)
			for b.Loop() {
				for at := 0; at < experts*inputs*outputs; at += c.elems {
					if err := c.read("x", dst[:min(c.elems, experts*inputs*outputs-at)], int64(at)); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
