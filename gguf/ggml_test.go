package gguf

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"testing"

	"pgregory.net/rapid"
)

// blockValue is the definition of element i of one block, in float64, written from the formulas in the ggml project's
// description of each type and not from the code that it tests: it addresses every bit by its position.
func blockValue(name string, b []byte, i int) float64 {
	f16 := func(at int) float64 {
		h := binary.LittleEndian.Uint16(b[at:])
		exp, frac, sign := int(h>>10&31), float64(h&1023), 1-2*float64(h>>15)
		if exp == 0 {
			return sign * math.Ldexp(frac, -24)
		}
		return sign * math.Ldexp(1024+frac, exp-25)
	}
	// bit k of the field that starts at byte at, counted from the lowest bit of the first byte
	bits := func(at, k, n int) (v int) {
		for j := n - 1; j >= 0; j-- {
			v = v<<1 | int(b[at+(k+j)/8]>>((k+j)%8)&1)
		}
		return v
	}
	// element i of 32 in halves: the first 16 in the low halves of 16 bytes, the rest in the high halves
	nibble32 := func(at int) float64 { return float64(bits(at+i%16, i/16*4, 4)) }
	switch name {
	case "Q4_0":
		return f16(0) * (nibble32(2) - 8)
	case "Q4_1":
		return f16(0)*nibble32(4) + f16(2)
	case "Q5_0":
		return f16(0) * (nibble32(6) + 16*float64(bits(2, i, 1)) - 16)
	case "Q5_1":
		return f16(0)*(nibble32(8)+16*float64(bits(4, i, 1))) + f16(2)
	case "Q8_0":
		return f16(0) * float64(int8(b[2+i]))
	case "Q4_K", "Q5_K":
		sub, low, fifth := i/32, 16, 0
		if name == "Q5_K" {
			low, fifth = 48, 16*bits(16+i%32, i/32, 1)
		}
		var scale, minimum int
		if sub < 4 {
			scale, minimum = bits(4+sub, 0, 6), bits(8+sub, 0, 6)
		} else {
			scale = bits(8+sub, 0, 4) + 16*bits(4+sub-4, 6, 2)
			minimum = bits(8+sub, 4, 4) + 16*bits(8+sub-4, 6, 2)
		}
		q := bits(low+32*(sub/2)+i%32, sub%2*4, 4) + fifth
		return f16(0)*float64(scale)*float64(q) - f16(2)*float64(minimum)
	case "Q6_K":
		half, in := i/128, i%128
		q := bits(64*half+in%64, in/64*4, 4) + 16*bits(128+32*half+in%32, in/32*2, 2)
		return f16(208) * float64(int8(b[192+i/16])) * (float64(q) - 32)
	}
	panic(name)
}

var blockTypes = []ggmlType{ggmlQ4_0, ggmlQ4_1, ggmlQ5_0, ggmlQ5_1, ggmlQ8_0, ggmlQ4_K, ggmlQ5_K, ggmlQ6_K}

// scaleOffsets says where the binary16 scales of a block are.
func scaleOffsets(t ggmlType) []int {
	switch t {
	case ggmlQ4_1, ggmlQ5_1, ggmlQ4_K, ggmlQ5_K:
		return []int{0, 2}
	case ggmlQ6_K:
		return []int{208}
	}
	return []int{0}
}

func TestDequantizeAgainstDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, _ := rapid.SampledFrom(blockTypes).Draw(t, "type").quant()
		blocks := rapid.IntRange(1, 3).Draw(t, "blocks")
		src := make([]byte, blocks*int(q.bytes))
		for i := range src {
			src[i] = rapid.Byte().Draw(t, "byte")
		}
		for b := range blocks {
			for _, o := range scaleOffsets(q.typ) {
				src[b*int(q.bytes)+o+1] &^= 0x40 // exponent below 16: small, finite
			}
		}
		dst := make([]float32, blocks*int(q.elems))
		q.dequantize(dst, src)
		for i, got := range dst {
			block := src[i/int(q.elems)*int(q.bytes):]
			want := blockValue(q.name, block, i%int(q.elems))
			// Three roundings, of which two are of terms that may cancel.
			scale := math.Abs(want)
			if o := scaleOffsets(q.typ); len(o) == 2 {
				scale = math.Max(scale, 63*math.Abs(float64(f16At(block[2:]))))
			}
			if math.Abs(float64(got)-want) > 3*scale*math.Ldexp(1, -24) {
				t.Fatalf("%s element %d: %v, want %v", q.name, i, got, want)
			}
		}
	})
}

// TestDequantizeGolden compares bits with the gguf package: testdata/golden.py.
func TestDequantizeGolden(t *testing.T) {
	doc, err := os.ReadFile("testdata/blocks.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Types map[string]struct{ Blocks, Values string }
	}
	if err := json.Unmarshal(doc, &golden); err != nil {
		t.Fatal(err)
	}
	for _, typ := range blockTypes {
		q, _ := typ.quant()
		g, ok := golden.Types[q.name]
		if typ == ggmlQ5_K {
			continue // TestQuantizeGolden has it
		}
		if !ok {
			t.Fatalf("no golden blocks of %s", q.name)
		}
		src, err1 := hex.DecodeString(g.Blocks)
		want, err2 := hex.DecodeString(g.Values)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		dst := make([]float32, int64(len(src))/q.bytes*q.elems)
		if len(want) != 4*len(dst) || len(dst) == 0 {
			t.Fatalf("%s: %d values for %d bytes", q.name, len(want)/4, len(src))
		}
		q.dequantize(dst, src)
		for i, got := range dst {
			if w := binary.BigEndian.Uint32(want[4*i:]); math.Float32bits(got) != w {
				t.Errorf("%s element %d: %v, want %v", q.name, i, got, math.Float32frombits(w))
				break
			}
		}
	}
}

func BenchmarkDequantize(b *testing.B) {
	for _, q := range quants {
		b.Run(q.name, func(b *testing.B) {
			dst, src := make([]float32, importElems), make([]byte, importElems/q.elems*q.bytes)
			b.SetBytes(4 * importElems)
			for b.Loop() {
				q.dequantize(dst, src)
			}
		})
	}
}
