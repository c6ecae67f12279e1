package probe

import (
	"runtime"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/tensor"
)

// noisePiece counts the random numbers that one source draws.
const noisePiece = 1 << 16

// makeNoise draws the random numbers that fill operands, in fp32 and after them in bf16. A chip that multiplies zeros
// takes less power, and so runs faster than any training: an H200 was seen to multiply matrices of zeros 13% faster
// than random ones.
func (p *prober) makeNoise() error {
	n := p.noiseElems
	r, err := p.reserve(int64(n) * (4 + 2))
	if err != nil {
		return err
	}
	p.closers = append(p.closers, r.Close)
	floats, halves := hostmem.F32(r.Bytes()[:4*n]), hostmem.U16(r.Bytes()[4*n:])
	if err := fault.Share(p.ctx, (n+noisePiece-1)/noisePiece, runtime.GOMAXPROCS(0), func(piece int) error {
		random := rng.New(0, "probe", 0, uint64(piece))
		for i := piece * noisePiece; i < min((piece+1)*noisePiece, n); i++ {
			floats[i] = random.NormFloat32()
			halves[i] = tensor.BF16FromF32(floats[i])
		}
		return nil
	}); err != nil {
		return err
	}
	p.noise = map[device.Stream]device.Mem{}
	for s, on := range map[device.Stream]device.Device{p.compute: p.device, p.host: p.hostDevice} {
		b, err := on.Register(r)
		if err != nil {
			return err
		}
		p.closers = append(p.closers, b.Close)
		p.noise[s] = device.Whole(b)
	}
	return nil
}

// fill has a stream fill matrices with random numbers, over and over the same ones.
func (p *prober) fill(s device.Stream, mats ...device.Mat) error {
	floats := int64(p.noiseElems) * 4
	for _, m := range mats {
		block := p.noise[s].Slice(0, floats)
		if m.DType != tensor.F32 {
			block = p.noise[s].Slice(floats, floats/2)
		}
		for off := int64(0); off < m.Len; off += block.Len {
			n := min(block.Len, m.Len-off)
			s.Copy(m.Mem.Slice(off, n), block.Slice(0, n))
		}
	}
	return s.Sync()
}
