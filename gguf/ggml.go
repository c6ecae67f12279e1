package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/millrace/millrace/tensor"
)

// ggmlType is an element type of a GGUF file. Quantized types store blocks of elements with shared scales.
type ggmlType uint32

const (
	ggmlF32  ggmlType = 0
	ggmlF16  ggmlType = 1
	ggmlQ4_0 ggmlType = 2
	ggmlQ4_1 ggmlType = 3
	ggmlQ5_0 ggmlType = 6
	ggmlQ5_1 ggmlType = 7
	ggmlQ8_0 ggmlType = 8
	ggmlQ4_K ggmlType = 12
	ggmlQ5_K ggmlType = 13
	ggmlQ6_K ggmlType = 14
	ggmlBF16 ggmlType = 30

	ggmlMXFP4 ggmlType = 39
)

// quant describes how a type is stored, turned back into fp32 and, for those that are written, made of it. Dequantize
// converts len(dst)/elems whole blocks.
type quant struct {
	typ        ggmlType
	name       string
	elems      int64 // per block
	bytes      int64 // per block
	dequantize func(dst []float32, src []byte)
	quantize   func(dst []byte, src []float32) // nil: not written
	scales     []int                           // where a block has its binary16 numbers
}

// quants are the supported types. The layouts and formulas are those of ggml (ggml-common.h: block_*; ggml-quants.c:
// dequantize_row_*). Each product is rounded to fp32 before the sum, as ggml's reference code has it: the explicit
// float32 conversions keep Go from fusing the two on machines that could.
var quants = []quant{
	{ggmlF32, "F32", 1, 4, dequantizeF32, quantizeF32, nil},
	{ggmlF16, "F16", 1, 2, dequantizeF16, quantizeF16, []int{0}},
	{ggmlBF16, "BF16", 1, 2, dequantizeBF16, quantizeBF16, nil},
	{ggmlQ4_0, "Q4_0", 32, 18, dequantizeQ4_0, nil, nil},
	{ggmlQ4_1, "Q4_1", 32, 20, dequantizeQ4_1, nil, nil},
	{ggmlQ5_0, "Q5_0", 32, 22, dequantizeQ5_0, quantizeQ5_0, []int{0}},
	{ggmlQ5_1, "Q5_1", 32, 24, dequantizeQ5_1, quantizeQ5_1, []int{0, 2}},
	{ggmlQ8_0, "Q8_0", 32, 34, dequantizeQ8_0, quantizeQ8_0, []int{0}},
	{ggmlQ4_K, "Q4_K", 256, 144, dequantizeQ4_K, quantizeQ4_K, []int{0, 2}},
	{ggmlQ5_K, "Q5_K", 256, 176, dequantizeQ5_K, quantizeQ5_K, []int{0, 2}},
	{ggmlQ6_K, "Q6_K", 256, 210, dequantizeQ6_K, quantizeQ6_K, []int{208}},
	{ggmlMXFP4, "MXFP4", 32, 17, dequantizeMXFP4, quantizeMXFP4, nil},
}

func (t ggmlType) quant() (quant, bool) {
	for _, q := range quants {
		if q.typ == t {
			return q, true
		}
	}
	return quant{}, false
}

// otherGGML names types that are known but not supported, for messages.
var otherGGML = map[ggmlType]string{
	9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
	20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
	34: "TQ1_0", 35: "TQ2_0",
}

// String is the name that llama.cpp uses.
func (t ggmlType) String() string {
	if q, ok := t.quant(); ok {
		return q.name
	}
	if s, ok := otherGGML[t]; ok {
		return s
	}
	return fmt.Sprintf("%d", uint32(t))
}

func supportedQuants() string {
	names := make([]string, len(quants))
	for i, q := range quants {
		names[i] = q.name
	}
	return strings.Join(names, ", ")
}

// f16At is the binary16 number at the start of b.
func f16At(b []byte) float32 { return tensor.F32FromF16(binary.LittleEndian.Uint16(b)) }

func dequantizeF32(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

func dequantizeF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = f16At(src[2*i:])
	}
}

func dequantizeBF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = tensor.F32FromBF16(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// Q4_0: f16 d; 16 bytes, of which byte j holds element j in its low and j+16 in its high half. x = d * (q - 8).
func dequantizeQ4_0(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[18:] {
		d := f16At(src)
		for j, q := range src[2:18] {
			dst[j] = d * float32(int(q&15)-8)
			dst[j+16] = d * float32(int(q>>4)-8)
		}
	}
}

// Q4_1: f16 d, f16 m; 16 bytes as in Q4_0. x = d * q + m.
func dequantizeQ4_1(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[20:] {
		d, m := f16At(src), f16At(src[2:])
		for j, q := range src[4:20] {
			dst[j] = float32(d*float32(q&15)) + m
			dst[j+16] = float32(d*float32(q>>4)) + m
		}
	}
}

// Q5_0: f16 d; uint32 whose bit j is the fifth bit of element j; 16 bytes as in Q4_0. x = d * (q - 16).
func dequantizeQ5_0(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[22:] {
		d, high := f16At(src), binary.LittleEndian.Uint32(src[2:])
		for j, q := range src[6:22] {
			lo := uint32(q&15) | high>>j&1<<4
			hi := uint32(q>>4) | high>>(j+16)&1<<4
			dst[j] = d * float32(int(lo)-16)
			dst[j+16] = d * float32(int(hi)-16)
		}
	}
}

// Q5_1: f16 d, f16 m; the rest as in Q5_0. x = d * q + m.
func dequantizeQ5_1(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[24:] {
		d, m, high := f16At(src), f16At(src[2:]), binary.LittleEndian.Uint32(src[4:])
		for j, q := range src[8:24] {
			lo := uint32(q&15) | high>>j&1<<4
			hi := uint32(q>>4) | high>>(j+16)&1<<4
			dst[j] = float32(d*float32(lo)) + m
			dst[j+16] = float32(d*float32(hi)) + m
		}
	}
}

// Q8_0: f16 d; 32 signed bytes. x = d * q.
func dequantizeQ8_0(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[34:] {
		d := f16At(src)
		for j, q := range src[2:34] {
			dst[j] = d * float32(int8(q))
		}
	}
}

// scaleMinK unpacks the 6-bit scale and minimum of sub-block i of 8 from the 12 bytes of Q4_K: the first four are in
// the low six bits of bytes i and i+4, the last four have their low halves in byte i+4 and their upper two bits on
// top of the first four.
func scaleMinK(s []byte, i int) (scale, minimum byte) {
	if i < 4 {
		return s[i] & 63, s[i+4] & 63
	}
	return s[i+4]&15 | s[i-4]>>6<<4, s[i+4]>>4 | s[i]>>6<<4
}

// Q4_K: f16 d, f16 dmin; 12 bytes of scales and minima (scaleMinK); 128 bytes, of which each run of 32 holds
// sub-block 2r in the low and 2r+1 in the high halves. x = (d * scale) * q - (dmin * minimum), 8 sub-blocks of 32.
func dequantizeQ4_K(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[144:] {
		d, dmin, scales := f16At(src), f16At(src[2:]), src[4:16]
		for r := range 4 {
			s1, m1 := scaleMinK(scales, 2*r)
			s2, m2 := scaleMinK(scales, 2*r+1)
			d1, d2 := d*float32(s1), d*float32(s2)
			min1, min2 := float32(dmin*float32(m1)), float32(dmin*float32(m2))
			out := dst[64*r:][:64]
			for j, q := range src[16+32*r:][:32] {
				out[j] = float32(d1*float32(q&15)) - min1
				out[j+32] = float32(d2*float32(q>>4)) - min2
			}
		}
	}
}

// Q5_K: the front part of Q4_K; 32 bytes, of which bit s of byte i is the fifth bit of element i of sub-block s; 128
// bytes as in Q4_K.
func dequantizeQ5_K(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[176:] {
		d, dmin, scales, high := f16At(src), f16At(src[2:]), src[4:16], src[16:48]
		for r := range 4 {
			s1, m1 := scaleMinK(scales, 2*r)
			s2, m2 := scaleMinK(scales, 2*r+1)
			d1, d2 := d*float32(s1), d*float32(s2)
			min1, min2 := float32(dmin*float32(m1)), float32(dmin*float32(m2))
			out := dst[64*r:][:64]
			for j, q := range src[48+32*r:][:32] {
				out[j] = float32(d1*float32(q&15|high[j]>>(2*r)&1<<4)) - min1
				out[j+32] = float32(d2*float32(q>>4|high[j]>>(2*r+1)&1<<4)) - min2
			}
		}
	}
}

// Q6_K: 128 bytes of low halves, 64 bytes with two upper bits for each of four elements, 16 signed scales, f16 d. In
// each half of the block (128 elements, 64 low and 32 upper bytes), elements l, l+32, l+64, l+96 take their low
// halves from low byte l, low byte l+32, and the high halves of the same two, and their upper bits from bits 0-1,
// 2-3, 4-5 and 6-7 of upper byte l. x = (d * scale) * (q - 32), one scale for 16 elements.
func dequantizeQ6_K(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[210:] {
		d := f16At(src[208:])
		for half := range 2 {
			low, high, scales := src[64*half:][:64], src[128+32*half:][:32], src[192+8*half:][:8]
			var ds [8]float32
			for i, s := range scales {
				ds[i] = d * float32(int8(s))
			}
			out := dst[128*half:][:128]
			for l, h := range high {
				i := l / 16
				out[l] = ds[i] * float32(int(low[l]&15|h&3<<4)-32)
				out[l+32] = ds[i+2] * float32(int(low[l+32]&15|h>>2&3<<4)-32)
				out[l+64] = ds[i+4] * float32(int(low[l]>>4|h>>4&3<<4)-32)
				out[l+96] = ds[i+6] * float32(int(low[l+32]>>4|h>>6<<4)-32)
			}
		}
	}
}
