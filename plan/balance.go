package plan

import (
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// The gradient of a load-balancing loss needs to know how often all experts of all blocks were chosen in the whole
// step, wherever it is computed. So each block leaves a row of numbers for each cohort, its choices, on the device that
// computes it. When the forward pass has ended, choices come to all devices by way of host memory, and to all hosts. A
// gradient adds up the rows of all cohorts and blocks in one order, so that bits do not depend on where rows were made.

// balanced is the number of blocks that share a load-balancing loss, and of their experts.
func (p *Plan) balanced() (blocks, experts int) {
	for _, d := range p.Model.Blocks {
		if d.Balanced() != 0 {
			blocks, experts = blocks+1, d.Loads()
		}
	}
	return blocks, experts
}

// BalanceRows are the rows that an operand names, of all that a device has: of a block, of all blocks (without Index),
// or of all cohorts (without Cohort).
func (p *Plan) BalanceRows(o Operand) (first, rows int) {
	blocks, _ := p.balanced()
	switch {
	case o.Cohort == none:
		return 0, p.Whole.CohortCount() * blocks
	case o.Index == none:
		return o.Cohort * blocks, blocks
	}
	return o.Cohort*blocks + o.Index, 1
}

// balanceRowBytes is the length of a row.
func (p *Plan) balanceRowBytes() int64 {
	_, experts := p.balanced()
	return int64(experts) * tensor.F32.Bytes()
}

// balanceAt and balanceBytes are the place and the length of what an operand names.
func (p *Plan) balanceAt(o *Operand) int64 {
	first, _ := p.BalanceRows(*o)
	return int64(first) * p.balanceRowBytes()
}

func (p *Plan) balanceBytes(o *Operand) int64 {
	_, rows := p.BalanceRows(*o)
	return int64(rows) * p.balanceRowBytes()
}

// balancesBytes is the length of the rows of all blocks and cohorts; 0 without such a loss.
func (p *Plan) balancesBytes() int64 {
	all := wholeBalance(Device)
	return p.balanceBytes(&all)
}

// passingBalanceBytes gives these rows room in host memory, if there is another place that they come to.
func (p *Plan) passingBalanceBytes(int, int) int64 { return when(p.balancePasses(), p.balancesBytes()) }

// wholeBalance has the rows of all blocks and cohorts.
func wholeBalance(at Place) Operand {
	return Operand{What: Balance, Index: none, Micro: none, At: at, Slot: none, Cohort: none}
}

// balancePasses reports whether rows come to other devices or hosts.
func (p *Plan) balancePasses() bool { return p.Ranks() > 1 || p.Cluster.Several() }

// balance is the row of a block, by its number among those with such a loss, and of the cohort that is visited.
func (b *builder) balance(rank, row int) Operand {
	o := wholeBalance(Device)
	o.Rank, o.Index, o.Cohort = rank, row, b.firstCohort()+b.cohort
	return o
}

// balanceRow is the number of a layer among the blocks with such a loss.
func (p *Plan) balanceRow(layer int) (row int) {
	for _, d := range p.Model.Blocks[:layer-1] {
		if d.Balanced() != 0 {
			row++
		}
	}
	return row
}

// gatherBalance brings choices to host memory when the forward pass has ended, and those of each host to all others.
func (b *builder) gatherBalance() {
	blocks, _ := b.balanced()
	if blocks == 0 || !b.balancePasses() {
		return
	}
	for b.cohort = range b.Numerics.CohortCount() {
		for block, d := range b.Model.Blocks {
			if d.Balanced() == 0 {
				continue
			}
			from := b.balance(b.RankOf(block+1, nn.Forward), b.balanceRow(block+1))
			to := from
			to.At, to.Rank = Host, 0
			o := op(LaneDrain, from.Rank, DoMove)
			o.Layer = block + 1
			b.add(o, []Operand{from}, []Operand{to})
		}
	}
	b.cohort = 0
	if !b.Cluster.Several() {
		return
	}
	for cohort := range b.Whole.CohortCount() {
		of := wholeBalance(Host)
		of.Cohort = cohort
		if from := b.hostOf(cohort); from != b.Cluster.Host {
			b.message(DoReceive, none, from, of)
			continue
		}
		for host := range b.Cluster.Hosts {
			if host != b.Cluster.Host {
				b.message(DoSend, none, host, of)
			}
		}
	}
}

// loadBalance has all choices on a device.
func (b *builder) loadBalance(rank int) Operand {
	all := wholeBalance(Device)
	all.Rank = rank
	if !b.balancePasses() {
		return all
	}
	lane := LaneFetch
	if b.ranks > 1 {
		lane = LaneExchange
	}
	return b.need(lane, wholeBalance(Host), all)
}
