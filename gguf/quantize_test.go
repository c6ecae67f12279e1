package gguf

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"testing"
)

// TestQuantizeGolden compares blocks with those that llama.cpp makes of the same numbers, to the byte:
// testdata/quants.py.
func TestQuantizeGolden(t *testing.T) {
	doc, err := os.ReadFile("testdata/quants.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Numbers string
		Types   map[string]struct{ Blocks, Values string }
	}
	if err := json.Unmarshal(doc, &golden); err != nil {
		t.Fatal(err)
	}
	decode := func(text string) []byte {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	numbers := decode(golden.Numbers)
	src := make([]float32, len(numbers)/4)
	for i := range src {
		src[i] = math.Float32frombits(binary.BigEndian.Uint32(numbers[4*i:]))
	}
	for _, typ := range []ggmlType{ggmlQ5_0, ggmlQ5_1, ggmlQ8_0, ggmlQ4_K, ggmlQ5_K, ggmlQ6_K, ggmlMXFP4} {
		q, _ := typ.quant()
		want := decode(golden.Types[q.name].Blocks)
		got := make([]byte, int64(len(src))/q.elems*q.bytes)
		q.quantize(got, src)
		if len(got) != len(want) || len(got) == 0 {
			t.Fatalf("%s: %d bytes, want %d", q.name, len(got), len(want))
		}
		for i := 0; i < len(got); i += int(q.bytes) {
			if a, b := got[i:i+int(q.bytes)], want[i:i+int(q.bytes)]; !bytes.Equal(a, b) {
				t.Errorf("%s: block %d is\n%x, want\n%x", q.name, i/int(q.bytes), a, b)
			}
		}
		if values := decode(golden.Types[q.name].Values); len(values) > 0 {
			dst := make([]float32, len(src))
			q.dequantize(dst, want)
			for i, x := range dst {
				if math.Float32bits(x) != binary.BigEndian.Uint32(values[4*i:]) {
					t.Fatalf("%s: element %d is %v", q.name, i, x)
				}
			}
		}
	}
}

// TestQuantizeBounds: no element is far from what it was.
func TestQuantizeBounds(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 5))
	src := make([]float32, 4*blockK)
	// The largest error of an element, as a share of the largest magnitude of its block of 256.
	bounds := map[ggmlType]float64{ggmlQ5_0: 1.0 / 16, ggmlQ5_1: 1.0 / 15, ggmlQ8_0: 1.0 / 127, ggmlQ4_K: 1.0 / 7,
		ggmlQ5_K: 1.0 / 15,
		ggmlQ6_K: 1.0 / 16, ggmlMXFP4: 1.0 / 4}
	for round := range 50 {
		for i := range src {
			src[i] = float32(random.NormFloat64() * math.Exp(random.Float64()*8-4))
		}
		if round == 0 {
			clear(src)
		}
		for typ, share := range bounds {
			q, _ := typ.quant()
			blocks := make([]byte, int64(len(src))/q.elems*q.bytes)
			q.quantize(blocks, src)
			if at := q.finite(blocks); at >= 0 {
				t.Fatalf("%s: block %d is not finite", q.name, at)
			}
			dst := make([]float32, len(src))
			q.dequantize(dst, blocks)
			for b := 0; b < len(src); b += blockK {
				var largest, worst float64
				for i := b; i < b+blockK; i++ {
					largest = max(largest, math.Abs(float64(src[i])))
					worst = max(worst, math.Abs(float64(dst[i]-src[i])))
				}
				if worst > share*largest {
					t.Fatalf("%s: an element is wrong by %g of the largest %g", q.name, worst, largest)
				}
			}
		}
	}
}
