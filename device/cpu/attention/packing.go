package attention

// Packing holds blocks of keys and values, packed once for all tasks of an operation: those of all query heads
// of a group, and of all blocks of queries of a document. A block for which there is no room is packed by each task
// that takes it, to the same bits.
type Packing struct {
	memory   []float32
	at       []int // of each packed block of keys, the first of its floats in a key head's memory
	each     int   // floats of a key head
	operands int   // 1: keys; 2: keys and values
}

// NewPacking gives as many blocks of keys room as the memory has; it begins a cache line. Values are packed for
// Backward only: Forward reads them as they are.
func NewPacking(mul Multiplier, s *Spec, backward bool, memory []float32) *Packing {
	p := &Packing{memory: memory, operands: 1}
	if backward {
		p.operands = 2
	}
	for _, k := range s.keys {
		floats := p.operands * p.floats(mul, s, k)
		if floats == 0 || (p.each+floats)*s.KVHeads > len(memory) { // no product takes heads of that width packed; or no room
			break
		}
		p.at = append(p.at, p.each)
		p.each += floats
	}
	return p
}

// floats is the memory of a block of keys, or of its values.
func (p *Packing) floats(mul Multiplier, s *Spec, k keys) int {
	const line = 16
	return (mul.PackedFloats(s.Q.DType, s.HeadDim, k.end-k.first) + line - 1) / line * line
}

// Tasks is the tasks of Run: one for each key head and block of keys.
func (p *Packing) Tasks(s *Spec) int { return len(p.at) * s.KVHeads }

// Run packs a block of keys, and of values.
func (p *Packing) Run(mul Multiplier, worker int, s *Spec, task int) {
	kv, block, d := task/len(p.at), task%len(p.at), s.HeadDim
	k := s.keys[block]
	key, value := p.find(kv, block)
	mul.PackB(worker, key, part(s.K, k.first, k.end, kv*d, (kv+1)*d), true)
	if p.operands == 2 {
		mul.PackB(worker, value, part(s.V, k.first, k.end, kv*d, (kv+1)*d), true)
	}
}

// find is the packed keys and values of a block of keys; nil where there was no room.
func (p *Packing) find(kv, block int) (key, value []float32) {
	if p == nil || block >= len(p.at) {
		return nil, nil
	}
	end := p.each
	if block+1 < len(p.at) {
		end = p.at[block+1]
	}
	both := p.memory[p.each*kv:][p.at[block]:end]
	if p.operands == 1 {
		return both, nil
	}
	return both[:len(both)/2], both[len(both)/2:]
}
