package ptx

import "slices"

// compact lets registers share rows. PTX gives each value a register of its own, thousands in a kernel, and a warp's
// rows should fit a cache. A register that is written before it is read, always within one stretch of code without
// jumps in or out, gets a row that is free there. All lanes that run such a stretch run all of it, and lanes of a row
// do not meet, so divergence does not matter.
func (b *builder) compact() {
	type key struct {
		file file
		row  int32
	}
	uses := map[key][]ref{}
	for _, r := range b.refs {
		k := key{r.file, *r.field}
		uses[k] = append(uses[k], r)
	}
	stretch := make([]int32, len(b.kernel.code))
	n := int32(0)
	for i, in := range b.kernel.code {
		if b.starts[int32(i)] {
			n++
		}
		stretch[i] = n
		if in.flow == flowBranch || in.flow == flowRet {
			n++
		}
	}
	constants := map[key]bool{}
	for _, c := range b.kernel.constants {
		constants[key{c.file, c.row}] = true
	}
	// Where a row that may be shared is taken, and where it is given back.
	taken := make([][]key, len(b.kernel.code))
	given := make([][]key, len(b.kernel.code))
	isLocal := map[key]bool{}
	for k, refs := range uses {
		slices.SortStableFunc(refs, func(x, y ref) int {
			if x.at != y.at {
				return int(x.at - y.at)
			}
			if x.writes != y.writes && !x.writes { // an instruction reads before it writes
				return -1
			}
			if x.writes != y.writes {
				return 1
			}
			return 0
		})
		first, last := refs[0], refs[len(refs)-1]
		if constants[k] || !first.writes || b.kernel.code[first.at].guard >= 0 || stretch[first.at] != stretch[last.at] {
			continue
		}
		isLocal[k] = true
		taken[first.at] = append(taken[first.at], k)
		given[last.at] = append(given[last.at], k)
	}
	rows := map[key]int32{}
	var count [2]int32
	take := func(k key) {
		rows[k] = count[k.file] * lanes
		count[k.file]++
	}
	move := func(k key, row int32) {
		for _, r := range uses[k] {
			*r.field = row
		}
	}
	byRow := func(x, y key) int { return int(x.file)<<24 + int(x.row) - int(y.file)<<24 - int(y.row) }
	var fixed []key
	for k := range uses {
		if !isLocal[k] && !constants[k] {
			fixed = append(fixed, k)
		}
	}
	slices.SortFunc(fixed, byRow)
	for _, k := range fixed {
		take(k)
	}
	var free [2][]int32
	for i := range b.kernel.code {
		slices.SortFunc(taken[i], byRow)
		for _, k := range taken[i] {
			if f := free[k.file]; len(f) > 0 {
				rows[k], free[k.file] = f[len(f)-1], f[:len(f)-1]
			} else {
				take(k)
			}
		}
		slices.SortFunc(given[i], byRow)
		for _, k := range given[i] { // after this instruction, whose operands all have rows of their own
			free[k.file] = append(free[k.file], rows[k])
		}
	}
	b.kernel.registers = [2]int{int(count[narrow]), int(count[wide])}
	for i := range b.kernel.constants { // after the registers, which each block starts again
		if c := &b.kernel.constants[i]; c.file != predicates {
			k := key{c.file, c.row}
			take(k)
			c.row = rows[k]
		}
	}
	for k := range uses {
		move(k, rows[k])
	}
	b.kernel.rows = [2]int{int(count[narrow]), int(count[wide])}
}

// A product is a mul without a rounding modifier, or an add or sub without one, for [Kernel.MayFuse].
type product struct {
	in    *instr
	isMul bool
	d     string // registers by name
	from  []string
}

// noteProduct remembers what ptxas may fuse.
func (a *assembly) noteProduct(op string, t typ) {
	if t.kind != float || len(a.ops) != 3 {
		return
	}
	a.products = append(a.products, product{a.in, op == "mul", a.ops[0].name, []string{a.ops[1].name, a.ops[2].name}})
}

// fusible finds the products that are summands.
func (b *builder) fusible() {
	muls := map[string][]int{}
	for _, p := range b.products {
		if p.isMul {
			muls[p.d] = append(muls[p.d], p.in.line)
		}
	}
	for _, p := range b.products {
		if !p.isMul {
			b.kernel.fusible = append(b.kernel.fusible, muls[p.from[0]]...)
			b.kernel.fusible = append(b.kernel.fusible, muls[p.from[1]]...)
		}
	}
	slices.Sort(b.kernel.fusible)
	b.kernel.fusible = slices.Compact(b.kernel.fusible)
	b.refs, b.products = nil, nil
}
