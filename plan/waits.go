package plan

import "slices"

// add appends an operation on what it reads and writes, and works out what it waits for.
func (b *builder) add(op Op, reads, writes []Operand) *Op {
	op.Reads, op.Writes = b.list(reads), b.list(writes)
	await, worker, workers := b.await, b.crew.Index(op.Worker), len(b.waited)
	clear(await)
	for i := range op.Reads {
		b.needWriter(op.Reads[i].Cell)
	}
	for i := range op.Writes {
		cell := int(op.Writes[i].Cell)
		b.needWriter(op.Writes[i].Cell)
		for l, last := range b.read[cell*workers:][:workers] {
			await[l] = max(await[l], int(last))
		}
	}
	first := len(b.waits)
	for l, n := range await {
		// Workers go in order: what a worker has waited for once, and all before it, is done.
		if waited := &b.waited[worker][l]; l != worker && n > *waited {
			*waited = n
			b.waits = append(b.waits, n-1)
		}
	}
	if n := len(b.waits); n > first {
		op.After = b.waits[first:n:n]
		slices.Sort(op.After)
	}
	i := len(b.ops)
	b.ops = append(b.ops, op)
	for k := range op.Writes {
		cell := int(op.Writes[k].Cell)
		b.written[cell] = int32(i + 1)
		clear(b.read[cell*workers:][:workers])
	}
	for k := range op.Reads {
		b.read[int(op.Reads[k].Cell)*workers+worker] = int32(i + 1)
	}
	return &b.ops[i]
}

// list is a copy with the operands' cells that lives as long as the schedule; all of a schedule's are in few
// allocations.
func (b *builder) list(all []Operand) []Operand {
	b.listed += len(all)
	if len(b.operands)+len(all) > cap(b.operands) {
		b.operands = make([]Operand, 0, max(4096, len(all)))
	}
	first := len(b.operands)
	b.operands = append(b.operands, all...)
	list := b.operands[first:len(b.operands):len(b.operands)]
	for i := range list {
		list[i].Cell = b.cells.find(b.Plan, &list[i])
	}
	return list
}

// needWriter has an operation wait for the last one that wrote a cell.
func (b *builder) needWriter(cell Cell) {
	if n := int(b.written[cell]); n > 0 {
		w := b.crew.Index(b.ops[n-1].Worker)
		b.await[w] = max(b.await[w], n)
	}
}

// forget makes room for who touched cells last, and for what they hold: no operation has touched them.
func (m *scheduleMemory) forget(cells Cell, workers int) {
	m.written = slices.Grow(m.written[:0], int(cells))[:cells]
	m.read = slices.Grow(m.read[:0], int(cells)*workers)[:int(cells)*workers]
	m.holds = slices.Grow(m.holds[:0], int(cells))[:cells]
	clear(m.written)
	clear(m.read)
	clear(m.holds)
}
