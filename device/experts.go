package device

// The problem. In a mixture of experts each row of a step chooses K of E feed-forwards, its experts. An expert should
// see its rows as one matrix, since a product of a few rows costs as much time as its weights take to be read. How
// many rows chose an expert is known on the device alone, and may be any number from none to all of them.
//
// The obvious answer sorts the rows by expert, reads their numbers back, and asks for one product for each expert. Then
// the host waits for the device in each layer, and the plan does not know what a step takes. Room for the worst case
// would be K times the rows of the step, in each of the buffers that a feed-forward has.
//
// The answer here: the numbers stay on the device, and memory has a fixed size. The rows of an expert are cut into
// blocks. Blocks are numbered by expert, then by row, and one call of an operation takes a range of that many numbers:
// [Blocks]. Buffers between an expert's products have the rows of one call. The host asks for as many calls as the
// worst case has; those that find no blocks end at once. The result of an expert for a row goes to the place of that
// choice in a matrix with a row for each choice of the step, since all experts together have as many rows, whatever is
// chosen. When all experts are done, one operation adds up the rows of each token.
//
// A call computes a block alike whatever other blocks it has, and sums over rows or experts are taken in the order of
// blocks. So neither the number of experts whose weights are there nor the number of blocks in a call changes a bit.
//
// The sum of a token was first kept in fp32, and each call added its rows to it. That read and wrote 10 bytes for each
// choice and column. The sum of all choices at the end takes 2 and 4/TopK: with eight choices in a token, a quarter.

// Routing says which experts the rows of a step chose. A choice is a number t*TopK+j: the j-th of row t.
type Routing struct {
	Rows, TopK, Experts int

	Choices Mem // I32 [Rows, TopK]: the experts of each row, ascending
	Order   Mem // I32 [Rows*TopK]: the choices, by expert and then by row
	Rank    Mem // I32 [Rows, TopK]: the place of each choice in Order
	Starts  Mem // I32 [Experts+1]: where an expert's choices begin in Order; the last is the number of choices
}

// Blocks are the rows that one call of an operation of [ExpertOps] computes with. The rows that chose one of the
// experts [First, First+Experts) are cut into blocks: each expert's by themselves, Rows at a time, the last one
// shorter. They are numbered by expert, and in an expert by row. A call takes those with the numbers [From,
// From+Count).
//
// A matrix of blocks has Count*Rows rows. The block with the number From+i begins at row i*Rows. Rows that a block does
// not fill are neither read nor written; no more are those of numbers that no block has.
type Blocks struct {
	Routing        Routing
	First, Experts int // of those whose weights, or gradients, are there: stacked, each with as many rows
	Rows           int
	From, Count    int
}

// Most is the number of blocks in the worst case, whatever rows choose.
func (b Blocks) Most() int {
	rows := b.Routing.Rows * min(b.Routing.TopK, b.Experts) // a row chooses an expert once
	chosen := min(b.Experts, rows)
	return min((rows-chosen)/b.Rows+chosen, b.Experts*((b.Routing.Rows+b.Rows-1)/b.Rows))
}

// Balanced is the number of rows that the call computes if each expert is chosen equally often. The calls for all
// blocks of all experts have Rows*TopK rows together.
func (b Blocks) Balanced() int64 {
	choices, rows := b.Routing.Rows*b.Routing.TopK, 0
	for number, e := -b.From, b.First; e < b.First+b.Experts && number < b.Count; e++ {
		of := (e+1)*choices/b.Routing.Experts - e*choices/b.Routing.Experts
		after := number + (of+b.Rows-1)/b.Rows
		if first, end := max(number, 0), min(after, b.Count); first < end {
			rows += (end - first) * b.Rows
			if end == after {
				rows -= (after-number)*b.Rows - of // the last block has fewer
			}
		}
		number = after
	}
	return int64(rows)
}

// RouteSpec says how rows choose their experts from the router's logits [T, Experts].
//
// The score of an expert is its softmax over all of the row's logits, or with Sigmoid its sigmoid. A row chooses the
// TopK experts of the highest score plus bias; of equal ones that with the lower number. With Groups > 1, the experts
// are cut into equal groups; a row chooses from the TopGroups groups for which the sum of the two highest is highest,
// or with ByBest the highest alone.
//
// The weight of a chosen expert is its score, with Renormalize divided by the sum of the scores of all chosen experts,
// times Scale.
//
// Sources: Fedus et al., "Switch Transformers" (2021); Jiang et al., "Mixtral of Experts" (2024); DeepSeek-AI,
// "DeepSeek-V2" (2024) and "DeepSeek-V3 Technical Report" (2024), in the forms of transformers.
type RouteSpec struct {
	TopK              int
	Sigmoid           bool
	Renormalize       bool
	Scale             float32
	Groups, TopGroups int // 0 or 1 groups: a row chooses from all experts
	ByBest            bool
}

// LeastInGroup is the number of experts that a group has at least, since it is chosen by as many.
func (s RouteSpec) LeastInGroup() int {
	if s.ByBest {
		return 1
	}
	return 2
}

// RoutingOps choose experts. T is the number of rows, K is TopK, E the number of experts.
type RoutingOps interface {
	// Route writes choices (I32 [T, K]) and their weights (F32 [T, K]), from logits (F32 [T, E]) and, if that is given,
	// the bias (F32 [1, E]), which has a part in choosing only.
	Route(choices Mem, weights, logits, bias Mat, spec RouteSpec)
	// RouteGrad is dlogits (A, [T, E]), from dweights (F32 [T, K]) and from what Route read and wrote. Choices and the
	// groups are taken as they are.
	RouteGrad(dlogits, dweights, logits Mat, choices Mem, spec RouteSpec)
	// SortChoices writes the Order, Rank and Starts of a routing from its Choices.
	SortChoices(r Routing)
	// CountChoices writes how many choices are of each expert, times scale: counts (F32 [1, E]), from Starts.
	CountChoices(counts Mat, r Routing, scale float32)
	// ScaleChoices is y = factor_e * x for the expert e of each choice: x and y are F32 [T, K], factors is A [1, E],
	// choices is I32 [T, K]. y may be x.
	ScaleChoices(y, x, factors Mat, choices Mem)
	// ScaleChoicesGrad adds to dfactors (F32 [1, E]) the sum of dy*x over the choices of each expert, given x as
	// ScaleChoices read it and the gradient of its result. All choices are of experts 0 to E-1.
	ScaleChoicesGrad(dfactors, dy, x Mat, choices Mem)
}

// ExpertProduct says how [ExpertOps] multiplies.
type ExpertProduct struct {
	Transposed bool // by the transposed weight
	Placed     bool // the result has a row for each choice of the step, at its place in the order, and not for blocks
}

// ExpertOps compute with the rows of blocks. T is the number of rows of the step, n that of the matrices of blocks,
// Count*Rows; X is the number of experts whose weights are there. A weight of experts has those of each expert in
// rows one after the other. weights and dweights (F32 [T, K]) have a number for each choice.
type ExpertOps interface {
	// GatherRows copies the row of x [T, m] of each row of the blocks: y [n, m].
	GatherRows(y, x Mat, b Blocks)
	// ExpertMatMul is c = a·w_e + bias_e for the expert e of each row, summed in fp32 and rounded once: a is [n, k], w
	// is [X*k, m] or transposed [X*m, k], bias is [X, m] or none, c is [n, m] or placed [T*K, m].
	ExpertMatMul(c, a, w, bias Mat, of ExpertProduct, b Blocks)
	// ExpertWeightGrad is dw_e += dy^T·x for each block, in their order: dy is [n, m], x is [n, k], dw (F32) is [X*m,
	// k]. The product of a block is summed in fp32 before it is added.
	ExpertWeightGrad(dw, dy, x Mat, b Blocks)
	// ExpertBiasGrad adds weighted sums of rows, block by block: db_e (F32 [X, m]) += sum of weight*dy[r], unless db is
	// none. If weights are given, it also adds to each choice's dweights dy[r]·bias_e. Without them each weight is 1,
	// and there are no dweights and no bias.
	ExpertBiasGrad(db, dweights, dy, bias, weights Mat, b Blocks)
	// ExpertGLU is y = act(gate, up); gateUp is [n, 2*m], gate first; y is [n, m].
	ExpertGLU(y, gateUp Mat, spec GLUSpec, b Blocks)
	// ExpertGLUGrad is the gradient of weight*act(gate, up), given that of the product [n, m]: it writes weight times
	// that of gateUp to dGateUp [n, 2*m], weight*act(gate, up) to act [n, m], and the gradient of the weight, the sum
	// over the row of dy*act(gate, up), to dweights. dGateUp may be gateUp, act may be dy.
	ExpertGLUGrad(dGateUp, act, dweights, dy, gateUp, weights Mat, spec GLUSpec, b Blocks)
	// CombineRows adds up what experts made of rows of the step: y[t] = from[t] + the sum over j of
	// weights[t,j]*x[places[t,j]]. The sum is taken in the order of j, then from is added, in fp32, and rounded once.
	// y is A [r, m], from is A or F32 [r, m] and may be y, places is I32 [r, K], weights is F32 [r, K], or none where
	// each weight is 1; x [p, m] has all rows that places name.
	CombineRows(y, x, from, weights Mat, places Mem, topK int)
}
