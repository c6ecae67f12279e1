package hf

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/tensor"
)

// MXFP4 is the format of gpt-oss' experts: blocks of 32 numbers of four bits that share a power of two. Files have two
// tensors of U8 for each tensor [experts, inputs, outputs] of the model:
//
//	NAME_blocks [experts, outputs, inputs/32, 16]
//	NAME_scales [experts, outputs, inputs/32]
//
// Byte j of a block has input 2j in its low four bits and input 2j+1 in its high ones. Such a code is a sign, two bits
// of exponent and one of fraction; its value is that times 2^(scale-127), which bf16 has exactly, subnormals and -0
// included, or it overflows. Sources: OCP, "Microscaling Formats (MX) Specification", version 1.0 (2023);
// transformers, integrations/mxfp4.py.
//
// A pair of them is a tensor of the type MXFP4 (TensorInfo.Type).
const (
	MXFP4 = "MXFP4"

	mxBlock      = 32 // elements
	mxBlockBytes = mxBlock / 2
	mxBlocks     = "_blocks"
	mxScales     = "_scales"
	mxBias       = 127
	mxNaN        = 255 // a scale that is no number
	mxEmax       = 2   // exponent of the largest code
	// mxLarge is the first scale with which the largest code overflows.
	mxLarge = 255 - mxEmax
)

// e2m1 are the values of the codes without sign; 8 more are -0 to -6.
var e2m1 = [8]float64{0, 0.5, 1, 1.5, 2, 3, 4, 6}

// mxBF16 and mxF32 are the values of the codes with each scale. Those that overflow are infinite, and with the scale
// 255 all are NaN.
var (
	mxBF16 = func() (all [256][16]uint16) {
		for scale := range all {
			for code := range all[scale] {
				x := math.Ldexp(e2m1[code&7], scale-mxBias)
				if scale == mxNaN {
					x = math.NaN()
				}
				all[scale][code] = tensor.BF16FromF32(float32(x)) | uint16(code>>3)<<15
			}
		}
		return all
	}()
	mxF32 = func() (all [256][16]float32) {
		for scale := range all {
			for code := range all[scale] {
				all[scale][code] = tensor.F32FromBF16(mxBF16[scale][code])
			}
		}
		return all
	}()
)

// MXFP4Values are the values of the codes with a scale. Those that overflow are infinite, and with the scale 255 all
// are NaN.
func MXFP4Values(scale byte) [16]float32 { return mxF32[scale] }

// unpackMXFP4 writes elements of neighbouring blocks, from element skip of the first block on, by a table of values. It
// reports whether a scale is so large that values may not be finite.
func unpackMXFP4[T float32 | uint16](dst []T, blocks, scales []byte, skip int, table *[256][16]T) (large bool) {
	for b := 0; len(dst) > 0; b++ {
		values, codes := &table[scales[b]], blocks[mxBlockBytes*b:][:mxBlockBytes]
		large = large || scales[b] >= mxLarge
		if skip == 0 && len(dst) >= mxBlock {
			whole := dst[:mxBlock]
			for j, code := range codes {
				whole[2*j], whole[2*j+1] = values[code&15], values[code>>4]
			}
			dst = dst[mxBlock:]
			continue
		}
		n := min(mxBlock-skip, len(dst))
		for i := range dst[:n] {
			dst[i] = values[codes[(skip+i)/2]>>(4*((skip+i)%2))&15]
		}
		dst, skip = dst[n:], 0
	}
	return large
}

// PackMXFP4 rounds numbers to MXFP4: 16 bytes of blocks and a byte of scales for each 32 of them. The scale is that of
// the OCP specification, the power of two below the largest magnitude divided by 4; codes are rounded to nearest, ties
// to even, and magnitudes above 6 become 6. A block of zeros has the scale 1. A number that is not finite is an error.
//
// Numbers that were read from MXFP4 come back exactly, signs of zeros included, though their scale may be a smaller
// one: twice a code is a code while it is at most 6, so a block whose largest code is below 4 has the same values with
// a smaller scale.
func PackMXFP4(blocks, scales []byte, src []float32) error {
	if len(src)%mxBlock != 0 || len(scales) != len(src)/mxBlock || len(blocks) != len(src)/2 {
		panic(fmt.Sprintf("hf: %d numbers in %d bytes of blocks and %d of scales", len(src), len(blocks), len(scales)))
	}
	for b := range scales {
		block := src[mxBlock*b:][:mxBlock]
		var largest uint32 // bits of magnitudes are in the order of the magnitudes
		for _, x := range block {
			largest = max(largest, math.Float32bits(x)&^(1<<31))
		}
		exponent := int(largest >> 23) // biased by 127, as scales are
		if exponent == 255 {
			return errors.New("a number is not finite")
		}
		scale := max(0, exponent-mxEmax)
		if largest == 0 {
			scale = mxBias
		}
		scales[b] = byte(scale)
		unit := math.Ldexp(1, mxBias-scale)
		for j := range mxBlockBytes {
			blocks[mxBlockBytes*b+j] = packE2M1(block[2*j], unit) | packE2M1(block[2*j+1], unit)<<4
		}
	}
	return nil
}

// packE2M1 is the code nearest to x*unit.
func packE2M1(x float32, unit float64) (code byte) {
	v := math.Abs(float64(x)) * unit // unit is a power of two, so this is exact
	// A code counts the midpoints that v has passed. At a midpoint itself the even code is taken.
	switch {
	case v > 5:
		code = 7
	case v >= 3.5:
		code = 6
	case v > 2.5:
		code = 5
	case v >= 1.75:
		code = 4
	case v > 1.25:
		code = 3
	case v >= 0.75:
		code = 2
	case v > 0.25:
		code = 1
	}
	return code | byte(math.Float32bits(x)>>31<<3)
}

// MXFP4Specs declares the two tensors that a tensor [experts, inputs, outputs] is in MXFP4: blocks, and scales.
func MXFP4Specs(name string, shape tensor.Shape) (specs [2]TensorSpec, err error) {
	if len(shape) != 3 || shape[1]%mxBlock != 0 {
		return specs, fmt.Errorf("tensor %s of shape %v has no place in MXFP4: it needs experts, a multiple of %d inputs, "+
			"and outputs",
			terminal.Quote(name), shape, mxBlock)
	}
	of := tensor.Shape{shape[0], shape[2], shape[1] / mxBlock}
	return [2]TensorSpec{{Name: name + mxBlocks, Type: "U8", Shape: append(slices.Clone(of), mxBlockBytes)},
		{Name: name + mxScales, Type: "U8", Shape: of}}, nil
}

// pairUp makes a tensor of each pair of blocks and scales. Other tensors may have such names, so a pair that does not
// fit is two tensors; an attempt to read what it should be fails with the reason.
func (w *Weights) pairUp() {
	w.faults = map[string]error{}
	all := w.names
	for _, blocks := range all {
		name, ok := strings.CutSuffix(blocks, mxBlocks)
		t := w.tensors[blocks]
		scales, both := w.tensors[name+mxScales]
		if !ok || !both || t.dtype != "U8" {
			continue
		}
		if w.faults[name] = w.fault(name, t, scales); w.faults[name] != nil {
			continue
		}
		experts, outputs, groups := t.shape[0], t.shape[1], t.shape[2]
		pair := t
		pair.dtype, pair.elems, pair.scales = MXFP4, 2*t.elems, &scales
		pair.shape = tensor.Shape{experts, groups * mxBlock, outputs}
		w.tensors[name] = pair
	}
	if len(w.tensors) == len(all) {
		return
	}
	isPaired := func(name string) bool {
		stem, isBlocks := strings.CutSuffix(name, mxBlocks)
		if !isBlocks {
			if stem, isBlocks = strings.CutSuffix(name, mxScales); !isBlocks {
				return false
			}
		}
		return w.tensors[stem].scales != nil
	}
	for name, t := range w.tensors {
		if t.scales != nil {
			all = append(all, name)
		}
	}
	w.names = slices.DeleteFunc(all, isPaired)
	slices.Sort(w.names)
}

// fault says why blocks and scales are not a tensor in MXFP4.
func (w *Weights) fault(name string, blocks, scales location) error {
	why := ""
	b, s := blocks.shape, scales.shape
	_, plain := w.tensors[name]
	switch {
	case plain:
		why = "it is there itself, too"
	case scales.dtype != "U8":
		why = fmt.Sprintf("the scales are %s, not U8", scales.dtype)
	case len(b) != 4 || b[3] != mxBlockBytes:
		why = fmt.Sprintf("the blocks have the shape %v, not [experts, outputs, inputs/%d, %d]", b, mxBlock,
			mxBlockBytes)
	case !s.Equal(b[:3]):
		why = fmt.Sprintf("the blocks have the shape %v and the scales %v", b, s)
	case slices.Max(b) > maxSize/mxBlock || slices.Min(b) == 0:
		why = fmt.Sprintf("blocks of the shape %v are not supported", b)
	default:
		return nil
	}
	return fmt.Errorf("%s: tensor %s has %s and %s, and %s: download the model again", blocks.file.path,
		terminal.Quote(name),
		mxBlocks, mxScales, why)
}

// missing says what is wrong where there is no tensor of that name.
func (w *Weights) missing(name string) error {
	for _, half := range [][2]string{{mxBlocks, mxScales}, {mxScales, mxBlocks}} {
		if t, ok := w.tensors[name+half[0]]; ok {
			return fmt.Errorf("%s: tensor %s has %s of type %s and no %s that fit: download the model again",
				t.file.path,
				terminal.Quote(name), half[0], t.dtype, half[1])
		}
	}
	return fmt.Errorf("%s: the weights have no tensor %s: download the model again, or check config.json", w.dir,
		terminal.Quote(name))
}

// Stored are the names that a tensor has in the files: its own, with that of its scales in FP8, those of blocks and
// scales in MXFP4, or those of the tensors that it is joined of. Info and ReadAt know them.
func (w *Weights) Stored(name string) []string {
	switch t := w.tensors[name]; {
	case t.joined != nil:
		var all []string
		for _, part := range t.joined {
			all = append(all, w.Stored(part)...)
		}
		return all
	case t.isFP8():
		return []string{name, name + fp8Scales}
	case t.scales != nil:
		return []string{name + mxBlocks, name + mxScales}
	}
	return []string{name}
}

// IsTransposed reports whether the files have a tensor with its last two dimensions exchanged, as MXFP4 has.
// ReadTransposedF32 reads it in that order, which takes less time.
func (w *Weights) IsTransposed(name string) bool { return w.tensors[name].dtype == MXFP4 }

// ReadTransposedF32 is ReadF32 of a tensor that IsTransposed, in the order of the files: of a tensor
// [experts, inputs, outputs] an element's number is (expert*outputs + output)*inputs + input.
func (w *Weights) ReadTransposedF32(name string, dst []float32, first int64) error {
	t, err := w.weight(name)
	if err != nil {
		return err
	}
	if t.dtype != MXFP4 {
		return fmt.Errorf("%s: tensor %s is not transposed in its file", t.file.path, terminal.Quote(name))
	}
	if err := t.checkRange(name, first, int64(len(dst))); err != nil {
		return err
	}
	n := min(len(dst), convertElems)/mxBlock + 2
	blocks, scales := make([]byte, n*mxBlockBytes), make([]byte, n)
	for len(dst) > 0 {
		part := dst[:min(len(dst), convertElems)]
		b := first / mxBlock
		n := (first+int64(len(part))-1)/mxBlock + 1 - b
		if err := t.readBlocks(name, blocks[:n*mxBlockBytes], scales[:n], b); err != nil {
			return err
		}
		if unpackMXFP4(part, blocks, scales, int(first%mxBlock), &mxF32) {
			for i, x := range part {
				if !isFinite(x) {
					return t.notFinite(name, t.untransposed(first+int64(i)))
				}
			}
		}
		dst, first = dst[len(part):], first+int64(len(part))
	}
	return nil
}

// untransposed is the number of an element by its number in the order of the files.
func (t location) untransposed(elem int64) int64 {
	inputs, outputs := int64(t.shape[1]), int64(t.shape[2])
	row := elem / inputs
	return (row/outputs*inputs+elem%inputs)*outputs + row%outputs
}

// readBlocks reads blocks from number b on, and their scales.
func (t location) readBlocks(name string, blocks, scales []byte, b int64) error {
	if err := t.pread(name+mxBlocks, blocks, b*mxBlockBytes); err != nil {
		return err
	}
	return t.scales.pread(name+mxScales, scales, b)
}

// Bounds of what is unpacked at a time before it is transposed.
const (
	mxRows = 64       // outputs, which are the runs that are written
	mxCols = 4 << 10  // inputs
	mxSpan = 64 << 10 // blocks that are read at once, 1 MiB; rows that are longer are read one by one
)

// readMXFP4 reads elements of a pair, from element first on, by a table of values. The files have the columns of the
// tensor as their rows. Some rows at a time are unpacked, and then the runs that they make up in the rows of the tensor
// are written. It reports whether values may not be finite.
func readMXFP4[T float32 | uint16](t location, name string, dst []T, first int64, table *[256][16]T) (large bool,
	err error) {
	if err := t.checkRange(name, first, int64(len(dst))); err != nil {
		return false, err
	}
	inputs, outputs := int64(t.shape[1]), int64(t.shape[2])
	sheet := inputs * outputs
	u := unpacker[T]{t: t, name: name, table: table}
	for len(dst) > 0 {
		at := first % sheet
		n := min(int64(len(dst)), sheet-at)
		if err := u.read(dst[:n], first/sheet*outputs, at); err != nil {
			return false, err
		}
		dst, first = dst[n:], first+n
	}
	return u.large, nil
}

// unpacker reads ranges of one expert's matrix.
type unpacker[T float32 | uint16] struct {
	t              location
	name           string
	table          *[256][16]T
	blocks, scales []byte
	values         []T
	large          bool
}

// read fills dst with the elements of the matrix [inputs, outputs] from element at on. row is the first one of the
// matrix in the files.
func (u *unpacker[T]) read(dst []T, row, at int64) error {
	inputs, outputs := int64(u.t.shape[1]), int64(u.t.shape[2])
	first, last := at/outputs, (at+int64(len(dst))-1)/outputs // inputs
	from, to := int64(0), outputs                             // outputs
	if first == last {
		from, to = at%outputs, at%outputs+int64(len(dst))
	}
	for c := first; c <= last; {
		b := c / mxBlock
		end := min((b+mxCols/mxBlock)*mxBlock, last+1, inputs)
		n := (end-1)/mxBlock + 1 - b // blocks of each row
		rows := max(1, min(mxRows, mxSpan/(inputs/mxBlock)))
		for r := from; r < to; r += rows {
			rows := min(rows, to-r)
			if err := u.unpack(row+r, rows, b, n); err != nil {
				return err
			}
			for i := c; i < end; i++ {
				// Where the run of these outputs is in dst; of the first and of the last input dst has some outputs
				// only.
				to := i*outputs + r - at
				skip, stop := max(0, -to), min(rows, int64(len(dst))-to)
				if skip >= stop {
					continue
				}
				step, values := int(n*mxBlock), u.values[skip*n*mxBlock+i-b*mxBlock:]
				for k := range dst[to+skip : to+stop] {
					dst[int(to+skip)+k] = values[k*step]
				}
			}
		}
		c = end
	}
	return nil
}

// unpack unpacks n blocks, from block b on, of each of some rows of the file.
func (u *unpacker[T]) unpack(row, rows, b, n int64) error {
	each := int64(u.t.shape[1]) / mxBlock
	span := (rows-1)*each + n
	if need := span; int64(len(u.scales)) < need {
		u.blocks, u.scales = make([]byte, need*mxBlockBytes), make([]byte, need)
	}
	if need := rows * n * mxBlock; int64(len(u.values)) < need {
		u.values = make([]T, need)
	}
	if err := u.t.readBlocks(u.name, u.blocks[:span*mxBlockBytes], u.scales[:span], row*each+b); err != nil {
		return err
	}
	for r := range rows {
		large := unpackMXFP4(u.values[r*n*mxBlock:][:n*mxBlock], u.blocks[r*each*mxBlockBytes:], u.scales[r*each:], 0,
			u.table)
		u.large = u.large || large
	}
	return nil
}
