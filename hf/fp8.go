package hf

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/tensor"
)

// Weights in FP8, as DeepSeek-V3 has them: a matrix [rows, columns] of F8_E4M3 and, under NAME_scale_inv, a number of
// F32 for each block of 128 rows and columns; blocks at the edges are smaller. A weight is the number of 8 bits times
// its block's, rounded to fp32 and then to bf16. Sources: DeepSeek-AI, DeepSeek-V3 (inference/kernel.py,
// weight_dequant); transformers, integrations/finegrained_fp8.py (Fp8Dequantize), which computes the same where the
// blocks are whole.
const (
	fp8Type   = "F8_E4M3"
	fp8Scales = "_scale_inv"
	fp8Block  = 128
)

// e4m3 are the values of the codes: a sign, four bits of exponent with the bias 7, and three of fraction. There is no
// infinity; the code with all bits but the sign is a NaN. Source: Micikevicius et al., "FP8 Formats for Deep Learning"
// (2022).
var e4m3 = func() (all [256]float32) {
	for code := range all {
		exponent, fraction := code>>3&15, float64(code&7)/8
		x := math.Ldexp(1+fraction, exponent-7)
		switch {
		case exponent == 0:
			x = math.Ldexp(fraction, -6)
		case code&0x7f == 0x7f:
			x = math.NaN()
		}
		all[code] = float32(math.Copysign(x, -float64(code>>7)+0.5))
	}
	return all
}()

// isFP8 reports whether a tensor is in FP8, with scales.
func (t location) isFP8() bool { return t.dtype == fp8Type && t.scales != nil }

// giveScales makes weights of the matrices in FP8 that have scales. A matrix whose scales do not fit has a fault.
func (w *Weights) giveScales() {
	var names []string
	for _, name := range w.names {
		of, isScale := strings.CutSuffix(name, fp8Scales)
		t, ok := w.tensors[of]
		if !isScale || !ok || t.dtype != fp8Type {
			names = append(names, name)
			continue
		}
		scales := w.tensors[name]
		if len(t.shape) != 2 || scales.dtype != "F32" ||
			!scales.shape.Equal(tensor.Shape{blocksOf(t.shape[0]), blocksOf(t.shape[1])}) {
			w.faults[of] = fmt.Errorf("%s: tensor %s has the shape %v and scales %s %v, not F32 for blocks of %d rows "+
				"and columns: use a copy of the model in BF16", t.file.path, terminal.Quote(of), t.shape, scales.dtype,
				scales.shape, fp8Block)
			names = append(names, name)
			continue
		}
		t.scales = &scales
		w.tensors[of] = t
	}
	w.names = names
}

// blocksOf is the number of blocks along a dimension.
func blocksOf(n int) int { return (n-1)/fp8Block + 1 }

// readFP8 reads elements as the numbers that bf16 has for them, as fp32.
func (t location) readFP8(name string, dst []float32, first int64) error {
	if err := t.checkRange(name, first, int64(len(dst))); err != nil {
		return err
	}
	cols := int64(t.shape[1])
	across := int64(blocksOf(t.shape[1]))
	codes := make([]byte, min(len(dst), convertElems))
	var scales []byte
	for len(dst) > 0 {
		part := dst[:min(len(dst), convertElems)]
		codes := codes[:len(part)]
		if err := t.pread(name, codes, first); err != nil {
			return err
		}
		from := first / cols / fp8Block
		down := (first+int64(len(part))-1)/cols/fp8Block + 1 - from
		if need := int(4 * down * across); len(scales) < need {
			scales = make([]byte, need)
		}
		if err := t.scales.pread(name+fp8Scales, scales[:4*down*across], 4*from*across); err != nil {
			return err
		}
		for i := 0; i < len(part); {
			row, col := (first+int64(i))/cols, (first+int64(i))%cols
			at := (row/fp8Block-from)*across + col/fp8Block
			scale := math.Float32frombits(binary.LittleEndian.Uint32(scales[4*at:]))
			n := min(int(min(fp8Block-col%fp8Block, cols-col)), len(part)-i) // to the end of the block's row
			for j, code := range codes[i : i+n] {
				part[i+j] = tensor.F32FromBF16(tensor.BF16FromF32(e4m3[code] * scale))
			}
			i += n
		}
		if err := t.checkFinite(name, part, first); err != nil {
			return err
		}
		dst, first = dst[len(part):], first+int64(len(part))
	}
	return nil
}

// readFP8AsBF16 is readFP8 as the bits of bf16.
func (t location) readFP8AsBF16(name string, dst []uint16, first int64) error {
	values := make([]float32, min(len(dst), convertElems))
	for len(dst) > 0 {
		part := dst[:min(len(dst), convertElems)]
		if err := t.readFP8(name, values[:len(part)], first); err != nil {
			return err
		}
		for i, x := range values[:len(part)] {
			part[i] = tensor.BF16FromF32(x)
		}
		dst, first = dst[len(part):], first+int64(len(part))
	}
	return nil
}
