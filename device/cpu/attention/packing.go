package attention

import "github.com/millrace/millrace/device/cpu/kernels"

// Packing holds blocks of keys and values, packed once for all tasks of an operation: those of all query heads
// of a group, and of all blocks of queries that take the same blocks of keys. A block for which there is no room is
// packed by each task that takes it, to the same bits.
type Packing struct {
	memory   []float32
	segments []segment // rising, as blocks of queries are
	of       []int32   // the segment of each block of queries
	slots    int       // blocks of keys of a key head, as many as there is room for
	operands int       // 1: keys; 2: keys and values
	floats   int       // of a packed operand
}

// segment is keys whose blocks begin keyBlock after each other, from lo on, in slots from the first one on.
type segment struct{ lo, hi, first int }

// blocks counts the segment's blocks of keys.
func (g segment) blocks() int { return (g.hi - g.lo + keyBlock - 1) / keyBlock }

// NewPacking finds the blocks that the tasks of an operation take, and gives as many of them room as the memory has;
// it begins a cache line. Values are packed for Backward only: Forward reads them as they are.
func NewPacking(mul Multiplier, s *Spec, backward bool, memory []float32) *Packing {
	p := &Packing{memory: memory, operands: 1, floats: mul.PackedFloats(s.Q.DType, s.HeadDim, keyBlock)}
	if backward {
		p.operands = 2
	}
	p.of = make([]int32, s.queryBlocks())
	for i := range p.of {
		lo, hi := s.span(i*queryBlock, min((i+1)*queryBlock, s.rows()))
		p.of[i] = int32(p.join(lo, hi))
	}
	for i := range p.segments {
		p.segments[i].first = p.slots
		p.slots += p.segments[i].blocks()
	}
	if p.floats == 0 { // no product takes heads of that width packed
		p.slots = 0
		return p
	}
	p.slots = min(p.slots, len(memory)/(p.floats*p.operands*s.KVHeads))
	return p
}

// join adds the keys [lo, hi) to one of the last segments whose blocks they share, or to a new one. With a window,
// every second block of queries shares blocks of keys.
func (p *Packing) join(lo, hi int) int {
	for i := len(p.segments) - 1; i >= max(0, len(p.segments)-2); i-- {
		g := &p.segments[i]
		if lo >= g.lo && lo <= g.lo+g.blocks()*keyBlock && (lo-g.lo)%keyBlock == 0 {
			g.hi = max(g.hi, hi)
			return i
		}
	}
	p.segments = append(p.segments, segment{lo: lo, hi: hi})
	return len(p.segments) - 1
}

// Tasks is the tasks of Run: one for each key head and block of keys.
func (p *Packing) Tasks(s *Spec) int { return p.slots * s.KVHeads }

// Run packs a block of keys, and of values.
func (p *Packing) Run(mul Multiplier, worker int, s *Spec, task int) {
	kv, slot, d := task/p.slots, task%p.slots, s.HeadDim
	i := len(p.segments) - 1
	for p.segments[i].first > slot {
		i--
	}
	g := p.segments[i]
	k0 := g.lo + (slot-g.first)*keyBlock
	k1 := min(k0+keyBlock, g.hi)
	for operand, m := range []kernels.Mat{s.K, s.V}[:p.operands] {
		mul.PackB(worker, p.at(kv, slot, operand), part(m, k0, k1, kv*d, (kv+1)*d), true)
	}
}

func (p *Packing) at(kv, slot, operand int) []float32 {
	return p.memory[((kv*p.slots+slot)*p.operands+operand)*p.floats:][:p.floats]
}

// find is the packed keys and values of the block that begins at k0, for the block of queries from q0 on; nil where
// there was no room.
func (p *Packing) find(kv, q0, k0 int) (key, value []float32) {
	if p == nil {
		return nil, nil
	}
	g := p.segments[p.of[q0/queryBlock]]
	slot := g.first + (k0-g.lo)/keyBlock
	if slot >= p.slots {
		return nil, nil
	}
	key = p.at(kv, slot, 0)
	if p.operands == 2 {
		value = p.at(kv, slot, 1)
	}
	return key, value
}
