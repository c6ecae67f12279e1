package plan

import (
	"slices"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// All memory on a device is one allocation, and host memory has a region for each purpose. Where is each cell in them,
// and how large are they?
//
// The obvious answer is a function for the sizes and another one for the places. The two drift apart with the first
// change that is made to one of them, and the run then dies of memory, or of a cell on top of another, hours later. So
// there is one loop over the table (rows). The planner gives it something that only counts; the engine gives it the
// allocation. So the engine uses what the planner has counted, to the byte.

// Memory has the memory of a plan's cells, as one device sees it, by their number. A cell that the store keeps, that
// shares another's or that is of other devices has none.
type Memory struct {
	*Cells
	at []device.Mem
}

// Memory has room for all cells.
func (c *Cells) Memory() Memory { return Memory{c, make([]device.Mem, c.count)} }

// At is the memory of an operand; zero where it has none.
func (m Memory) At(o *Operand) device.Mem {
	mem := m.at[o.Cell]
	if mem.IsZero() || values[o.What].bytes == nil {
		return mem
	}
	off, bytes := m.plan.Range(o)
	return mem.Slice(off, bytes)
}

// Slot is all of the memory of an operand's cell.
func (m Memory) Slot(o *Operand) device.Mem { return m.at[o.Cell] }

// Rows is the memory of an operand that has rows of a micro-batch: [T, columns] in the type of activations.
func (m Memory) Rows(o *Operand) device.Mat {
	n, cols := &m.plan.Numerics, 0
	if o.What == Side || o.What == SideGrad {
		cols = m.plan.Model.Sides[o.Index].Cols
	} else {
		cols = m.plan.Model.Width(o.Index)
	}
	return device.NewMat(m.At(o), n.Compute, n.Positions(), cols)
}

// SideRows are a side of a micro-batch, or its gradient, on a rank's device.
func (m Memory) SideRows(what What, rank, side, micro int) device.Mat {
	o := Operand{What: what, Index: side, Micro: micro, At: Device, Rank: rank, Slot: none}
	o.Cell = m.find(m.plan, &o)
	return m.Rows(&o)
}

// Balances are the rows that a Balance names: F32 [rows, experts].
func (m Memory) Balances(o *Operand) device.Mat {
	_, rows := m.plan.BalanceRows(*o)
	_, experts := m.plan.balanced()
	return device.NewMat(m.At(o), tensor.F32, rows, experts)
}

// Logits are the wanted logits of a micro-batch in host memory: F32 [LogitRows, Vocab].
func (m Memory) Logits(micro int) device.Mat {
	return device.NewMat(m.Home(WantedLogits, micro), tensor.F32, m.plan.Outputs.LogitRows, m.plan.Model.Vocab)
}

// Home is the memory outside of devices of a value, by the number of its cell.
func (m Memory) Home(what What, i int) device.Mem { return m.cell(what, home, 0, i) }

// Here is the memory of a value on a rank's device.
func (m Memory) Here(what What, rank, i int) device.Mem { return m.cell(what, own, rank, i) }

func (m Memory) cell(what What, in memory, rank, i int) device.Mem {
	n := &m.of[what][in]
	return m.at[n.first+Cell(rank)*n.byRank+Cell(i)]
}

// PlaceDevice lays out a rank's cells in mem, which has RankBytes; in the zero Mem it only counts.
func (m Memory) PlaceDevice(mem device.Mem, rank int) {
	a := device.NewArena(mem)
	m.plan.layOut(true, rank, func(r *row, outer, inner int, bytes int64) {
		for i := range inner {
			m.at[m.number(r, rank, outer, inner, i)] = a.Take(bytes)
		}
	})
	m.share(own, rank, m.Here(Results, rank, 0))
}

// WithHost is a copy with the cells in host memory, each in the region of its purpose; the zero Mem stands for a region
// that is not there.
func (m Memory) WithHost(region func(purpose string) device.Mem) Memory {
	m.at = slices.Clone(m.at)
	used := map[string]int64{}
	m.plan.layOut(false, 0, func(r *row, outer, inner int, bytes int64) {
		for i := range inner {
			if of := region(r.purpose); !of.IsZero() {
				m.at[m.number(r, 0, outer, inner, i)] = of.Slice(used[r.purpose], bytes)
			}
			used[r.purpose] += bytes
		}
	})
	for rank := range m.plan.Ranks() {
		m.share(bound, rank, m.Home(HostResults, 0))
	}
	return m
}

// number is the cell of a row that is the i-th of some inner ones with memory.
func (m Memory) number(r *row, rank, outer, placed, i int) Cell {
	n := &m.of[r.what][r.in]
	if Cell(placed) < n.inner {
		i = m.plan.placedMicro(i)
	}
	return n.first + Cell(rank)*n.byRank + Cell(outer)*n.inner + Cell(i)
}

// share has the cells of a rank's scalars, or of those that are bound, in the memory of the step's results.
func (m Memory) share(in memory, rank int, results device.Mem) {
	for _, what := range []What{LossSum, Loads, Squares, Tally} {
		n := &m.of[what][in]
		for i := range n.byRank {
			m.at[n.first+Cell(rank)*n.byRank+i] = results
		}
	}
}

// deviceBytes counts what a rank's cells take, also by purpose.
func (p *Plan) deviceBytes(rank int) (groups []Bytes, bytes int64) {
	a := device.NewArena(device.Mem{})
	p.layOut(true, rank, func(r *row, _, inner int, bytes int64) {
		mark := a.Mark()
		a.Take(bytes)
		a.Again(inner-1, mark)
		if last := len(groups) - 1; last >= 0 && groups[last].Purpose == r.purpose {
			groups[last].Bytes += a.Mark() - mark
		} else {
			groups = append(groups, Bytes{r.purpose, a.Mark() - mark})
		}
	})
	return groups, a.Peak()
}

// hostBytes lists what host memory takes by purpose, with the rows that a loader hands out.
func (p *Plan) hostBytes() []Bytes {
	all := []Bytes{{RowsPurpose, batch.Bytes(p.Whole.StepPositions())}}
	p.layOut(false, 0, func(r *row, _, inner int, bytes int64) {
		if all[len(all)-1].Purpose != r.purpose {
			all = append(all, Bytes{Purpose: r.purpose})
		}
		all[len(all)-1].Bytes += int64(inner) * bytes
	})
	return all
}

// layOut calls take for the cells of a rank's device, or of host memory, in their order: of each row for outer ones
// that have memory, with how many inner ones of each have.
func (p *Plan) layOut(ofDevice bool, rank int, take func(r *row, outer, inner int, bytes int64)) {
	for i := range rows {
		r := &rows[i]
		if r.bytes == nil || (r.in == own || r.in == ring) != ofDevice {
			continue
		}
		n, inner := r.count(p)
		if inner == 0 {
			continue
		}
		first := 0
		if r.per == perLayer || r.per == perLayerMicro { // neither the embedding nor the head has any
			first, n = 1, n-1
		}
		for outer := first; outer < n; outer++ {
			if bytes := r.bytes(p, rank, outer-first); bytes > 0 {
				take(r, outer, p.placed(r, outer, inner), bytes)
			}
		}
	}
}

// StateIn cuts the memory of a part's state by kind: of state that passes with the gradient in its stored type.
func (p *Plan) StateIn(mem device.Mem, part int) (state [store.Kinds]device.Mem) {
	kinds := p.stateKinds()
	if p.StatePasses(part) {
		kinds = append(kinds, store.Grad)
	}
	off := int64(0)
	for _, kind := range kinds {
		n := p.kindBytes(part, kind)
		state[kind] = mem.Slice(off, n)
		off += arenaBytes(n)
	}
	return state
}

// arenaBytes returns the bytes that something takes of an arena that is followed by something else.
func arenaBytes(n int64) int64 {
	return (n + device.ArenaAlign - 1) / device.ArenaAlign * device.ArenaAlign
}

// KeptIn views the memory of a cell as the values that a block, from 0, keeps of a micro-batch.
func (p *Plan) KeptIn(mem device.Mem, block int) *nn.Kept {
	return p.Model.Blocks[block].NewKept(device.NewArena(mem), p.Numerics.Compute, p.Numerics.Positions(), p.Keep(block))
}

// CacheIn views the memory of a cell as the cache that a block, from 0, keeps from pass to pass.
func (p *Plan) CacheIn(mem device.Mem, block int) *nn.Cache {
	return p.Model.Blocks[block].NewCache(device.NewArena(mem), p.Numerics.Compute, p.Outputs.Caches)
}

// Bytes is an entry of a memory table.
type Bytes struct {
	Purpose string `json:"purpose"`
	Bytes   int64  `json:"bytes"`
}

// byPurpose lists the entries of all tables, with one for each purpose.
func byPurpose(tables ...[]Bytes) (all []Bytes) {
	for _, e := range slices.Concat(tables...) {
		if i := slices.IndexFunc(all, func(b Bytes) bool { return b.Purpose == e.Purpose }); i >= 0 {
			all[i].Bytes += e.Bytes
		} else {
			all = append(all, e)
		}
	}
	return all
}

// tablesPurpose names the memory that a device has for all blocks together.
const tablesPurpose = "tables, tokens and results"

// picksPurpose names that of what an objective reads of a teacher's tokens.
const picksPurpose = "logits of a teacher's tokens"

// Names of host memory in the accounts.
const (
	RowsPurpose         = "packed rows" // of a step, as the loader hands them out
	TokensPurpose       = "tokens"      // of a step, as the device takes them, and the order of those that occur
	ResultsPurpose      = "results"
	InputsPurpose       = "saved layer inputs"
	SidesPurpose        = "values that cross layers"
	HeldPurpose         = "rows between visits of groups" // Placement.HeldAway
	KeptPurpose         = "kept activations"
	OutcomesPurpose     = "sums of experts"
	CachesPurpose       = "caches"
	LogitsPurpose       = "logits"
	EmbeddingSumPurpose = "embedding gradient sum"
	SumsPurpose         = "gradients of micro-batch groups" // that pass between hosts
	// EmbeddingAheadPurpose is state of rows of the embedding that are looked up before the table is updated.
	EmbeddingAheadPurpose = "embedding rows ahead"
)
