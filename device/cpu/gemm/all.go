package gemm

// group is several products that one run of tasks computes. A task is some columns of one of them.
type group struct {
	ops    []Op
	pieces int // of each product
	cols   int // of a piece
}

// Each worker should have this many tasks, unless they have fewer columns: every task packs its rows of A itself.
const (
	piecesPerWorker = 16
	pieceCols       = 128
)

// MulAll multiplies several products, to the bits of Mul. None may write what another one reads or writes. Those of few
// rows are computed side by side, each piece of them by one worker, since workers would wait for each other several
// times in each of them. It does not allocate.
func (e *Engine) MulAll(ops []Op) {
	count, most := 0, 0
	for i := range ops {
		m, n, _ := ops[i].Shape()
		if m > ownRows {
			e.Mul(ops[i])
			continue
		}
		count, most = count+1, max(most, n)
	}
	if count == 0 || most == 0 {
		return
	}
	g := &e.all
	g.ops = ops
	_, g.cols = split(most, max(pieceCols, most*count/(piecesPerWorker*len(e.workers))/pieceCols*pieceCols), pieceCols)
	if len(e.workers) == 1 {
		g.cols = most
	}
	g.pieces = ceilDiv(most, g.cols)
	e.run.Run(len(ops)*g.pieces, e.pieceTask)
	*g = group{}
}

// piece is one task.
func (g *group) piece(e *Engine, worker, task int) {
	op := g.ops[task/g.pieces]
	m, n, _ := op.Shape()
	first := task % g.pieces * g.cols
	if m > ownRows || first >= n {
		return
	}
	n = min(g.cols, n-first)
	op.C = op.C.columns(first, n)
	if op.TransB {
		op.B = op.B.rows(first, n)
	} else {
		op.B = op.B.columns(first, n)
	}
	e.MulSerial(worker, op)
}

// columns are n of a matrix, from the first one on.
func (x Mat) columns(first, n int) Mat {
	x.Data, x.Cols = x.address(0, first), n
	return x
}

// rows are n of a matrix, from the first one on.
func (x Mat) rows(first, n int) Mat {
	x.Data, x.Rows = x.address(first, 0), n
	return x
}
