package data

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/internal/spelling"
)

// LongDocuments says what becomes of a document that does not fit in a row.
type LongDocuments string

const (
	// SplitLong cuts it into consecutive pieces. Attention does not reach across a cut, but the last position of a
	// piece still learns the first token of the next, so no target is lost.
	SplitLong LongDocuments = "split"
	// DropLong leaves it out; Packing.Dropped counts these.
	DropLong LongDocuments = "drop"
	// TruncateLong leaves out the tokens after the first row, as most trainers do; Packing.CutTokens counts them.
	TruncateLong LongDocuments = "truncate"
	// AutoLong splits documents of type text, and truncates those of all other types: the second piece of a conversation
	// would be an answer without its question.
	AutoLong LongDocuments = "auto"
)

// LongTreatments are the known ones.
var LongTreatments = []LongDocuments{AutoLong, SplitLong, DropLong, TruncateLong}

// of returns the treatment for documents of a type.
func (l LongDocuments) of(kind Type) LongDocuments {
	switch {
	case l != AutoLong:
		return l
	case kind.format().isText:
		return SplitLong
	}
	return TruncateLong
}

// Packing counts documents, rows and padding of one pass over the dataset. A document that comes several times by its
// weight counts as often in what is packed, and once in what was cut.
type Packing struct {
	Documents    int   `json:"documents"`     // packed, each in one piece or several
	Split        int   `json:"split"`         // cut into several pieces
	Truncated    int   `json:"truncated"`     // cut off
	Dropped      int   `json:"dropped"`       // left out
	CutTokens    int64 `json:"cut_tokens"`    // left out
	Rows         int   `json:"rows"`          // of pairs: of an epoch's steps, up to the last row with a document
	Positions    int64 `json:"positions"`     // Rows times the sequence length
	RealTokens   int64 `json:"real_tokens"`   // positions that are not padding
	TargetTokens int64 `json:"target_tokens"` // positions that count in the loss

	// Pairs are packed, or groups of rollouts. The others are left out: DroppedPairs have a side longer than a row where
	// such are dropped, EmptyPairs a side without a target in the first row of it, and WidePairs do not fit in the rows of
	// a step, or of a cohort's share of it. All tokens of these are CutTokens.
	Pairs        int `json:"pairs,omitempty"`
	DroppedPairs int `json:"dropped_pairs,omitempty"`
	EmptyPairs   int `json:"empty_pairs,omitempty"`
	WidePairs    int `json:"wide_pairs,omitempty"`

	isOfGroups bool // of rollouts, in place of pairs
}

// setTargets counts targets where they are not those of the data: with those of prompts all tokens of a document,
// except its first one, and with scores one of a document.
func (p *Packing) setTargets(prompts bool, scores ScoreAt) {
	switch {
	case scores != nil:
		p.TargetTokens = int64(p.Documents)
	case prompts:
		p.TargetTokens = p.RealTokens - int64(p.Documents)
	}
}

// Efficiency is the share of positions that are not padding.
func (p Packing) Efficiency() float64 {
	if p.Positions == 0 {
		return 0
	}
	return float64(p.RealTokens) / float64(p.Positions)
}

// Cut says in a line how many documents of a dataset were longer than a row, and what became of them; it is empty if
// none was.
func (p Packing) Cut(documents, sequenceLen int) string {
	long := p.Split + p.Truncated + p.Dropped
	if long == 0 {
		return ""
	}
	var how []string
	for _, one := range []struct {
		n    int
		what string
	}{{p.Split, "split"}, {p.Truncated, "truncated"}, {p.Dropped, "dropped"}} {
		switch one.n {
		case 0:
		case long:
			how = append(how, one.what)
		default:
			how = append(how, fmt.Sprintf("%d %s", one.n, one.what))
		}
	}
	lost := ""
	if p.CutTokens > 0 {
		lost = fmt.Sprintf(", %s left out", spelling.Count(int(p.CutTokens), "token"))
	}
	return fmt.Sprintf("%d of %s longer than sequence_len (%d): %s%s", long, spelling.Count(documents, "document"),
		sequenceLen, strings.Join(how, ", "), lost)
}

// order says which pieces are in which row of a pass over a dataset. Its memory, the scratch of packing included, is
// taken once, for the fullest pass that may come, and each pass uses it again.
type order struct {
	pieces *pieces
	rooms
	starts  []int32 // row i holds members[starts[i]:starts[i+1]], in that order
	members []int32

	kept, scratch *hostmem.Region
	at            []int32 // the pieces in the order in which they are packed
	rowOf         []int32 // by place in that order, as a piece may come twice
	filled        []int32 // pieces by row; then where the next one of a row goes
	shuffled      []int32 // rows
}

// newOrder reserves the memory of passes over at most n pieces and that number of tokens.
func newOrder(ps *pieces, n, tokens int64, accounts *hostmem.Accounts) (o *order, err error) {
	if n > math.MaxInt32 {
		return nil, fmt.Errorf("the weights make %d documents of an epoch, more than %d: lower weight", n, math.MaxInt32)
	}
	// No two rows are both at most half full: what the later one began with would have gone into the earlier one.
	rows := min(n, 2*tokens/ps.row+2)
	o = &order{pieces: ps}
	if o.kept, err = reserve(accounts, 4*(n+rows+1)); err != nil {
		return nil, err
	}
	if o.scratch, err = reserve(accounts, 4*(2*n+3*rows+ps.row+1)); err != nil {
		return nil, firstOf(err, o.kept.Close())
	}
	take := func(mem *[]int32, n int64) (a []int32) {
		a, *mem = (*mem)[:n:n], (*mem)[n:]
		return a
	}
	kept, scratch := hostmem.I32(o.kept.Bytes()), hostmem.I32(o.scratch.Bytes())
	o.members, o.starts = take(&kept, n), kept
	o.at, o.rowOf = take(&scratch, n), take(&scratch, n)
	o.filled, o.shuffled = take(&scratch, rows), take(&scratch, rows)
	link := take(&scratch, rows)
	o.rooms = newRooms(int(ps.row), link, scratch)
	return o, nil
}

// row is the pieces of a row.
func (o *order) row(i int) []int32 { return o.members[o.starts[i]:o.starts[i+1]] }

// done gives back what only packing needs.
func (o *order) done() error {
	err := o.scratch.Close()
	o.at, o.rowOf, o.filled, o.shuffled, o.rooms = nil, nil, nil, nil, rooms{rows: o.rows}
	return err
}

func (o *order) close() error { return firstOf(o.done(), o.kept.Close()) }

// packWindow is the number of pieces that are sorted together; see pack.
const packWindow = 256

// pack puts the first n pieces of at into rows, taking them in that order by windows, and the longest of a window
// first. Each goes to the row with the least room that it fits in, the last one so filled among equals, or opens a
// new row.
//
// This is best-fit-decreasing bin packing (Ding et al., "Fewer truncations improve language modeling", ICML 2024) by
// windows instead of over all documents: that keeps chance in which documents share a row. On 7473 documents of 182
// tokens on average and rows of 512, the rows are 97.6% full, without sorting 94.7%, sorted as a whole 97.8%.
func (o *order) pack(n int) {
	o.rooms.clear()
	clear(o.filled)
	type sized struct{ piece, length int32 }
	var window [packWindow]sized
	for first := 0; first < n; first += packWindow {
		at := o.at[first:min(first+packWindow, n)]
		w := window[:len(at)]
		for i, piece := range at {
			w[i] = sized{piece, o.pieces.length(piece)}
		}
		slices.SortStableFunc(w, func(a, b sized) int { return cmp.Compare(b.length, a.length) })
		for i, s := range w {
			at[i] = s.piece
			row := o.place(int(s.length))
			o.rowOf[first+i] = row
			o.filled[row]++
		}
	}
}

// listMembers lists the members of each row, the rows in the order given.
func (o *order) listMembers(n int, rows []int32) {
	at := int32(0)
	for i, row := range rows {
		o.starts[i] = at
		o.filled[row], at = at, at+o.filled[row]
	}
	o.starts[len(rows)] = at
	for i, piece := range o.at[:n] {
		row := o.rowOf[i]
		o.members[o.filled[row]] = piece
		o.filled[row]++
	}
}

// inOrder packs the pieces as they come.
func (o *order) inOrder() {
	n := o.pieces.n
	for i := range o.at[:n] {
		o.at[i] = int32(i)
	}
	o.pack(n)
	rows := o.shuffled[:o.rows]
	for i := range rows {
		rows[i] = int32(i)
	}
	o.listMembers(n, rows)
}

// epoch packs in an order drawn for the epoch, and then puts the rows in an order drawn for it too, since the
// emptiest rows are the last ones that packing opens.
func (o *order) epoch(seed uint64, epoch int) {
	ps := o.pieces
	n := len(ps.d.shuffled(o.at, o.members, o.rowOf, ps.n, seed, epoch, ps.of))
	o.pack(n)
	rows := o.shuffled[:o.rows]
	rng.New(seed, "shuffle rows", uint64(epoch), 0).Perm(rows)
	o.listMembers(n, rows)
}

// checkPacking returns what is wrong with a row length and a treatment of long documents.
func checkPacking(sequenceLen int, long LongDocuments) error {
	if sequenceLen < 2 || sequenceLen > 1<<24 {
		return fmt.Errorf("sequence_len is %d: it must be between 2 and %d", sequenceLen, 1<<24)
	}
	if !slices.Contains(LongTreatments, long) {
		return fmt.Errorf("overlong is %q: use auto, split, drop or truncate", long)
	}
	return nil
}
