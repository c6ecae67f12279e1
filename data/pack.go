package data

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/millrace/millrace/internal/rng"
)

// LongDocuments says what becomes of a document that does not fit in a row.
type LongDocuments string

const (
	// SplitLong cuts it into consecutive pieces. Attention does not reach across a cut, but the last position of a
	// piece still learns the first token of the next, so no target is lost.
	SplitLong LongDocuments = "split"
	// DropLong leaves it out; Packing.Dropped counts these.
	DropLong LongDocuments = "drop"
	// TruncateLong leaves out what is behind the first row, as most trainers do; Packing.CutTokens counts that.
	TruncateLong LongDocuments = "truncate"
)

// LongTreatments are the known ones.
var LongTreatments = []LongDocuments{SplitLong, DropLong, TruncateLong}

// Packing is how well documents fill the rows of one pass over the dataset. A document that comes several times by its
// weight counts as often in what is packed, and once in what was cut.
type Packing struct {
	Documents    int   `json:"documents"`  // packed, each in one piece or several
	Split        int   `json:"split"`      // cut into several pieces
	Truncated    int   `json:"truncated"`  // cut off
	Dropped      int   `json:"dropped"`    // left out
	CutTokens    int64 `json:"cut_tokens"` // of documents that were dropped or truncated, left out
	Rows         int   `json:"rows"`
	Positions    int64 `json:"positions"`     // Rows times the sequence length
	RealTokens   int64 `json:"real_tokens"`   // positions that are not padding
	TargetTokens int64 `json:"target_tokens"` // positions that count in the loss
}

// Efficiency is the share of positions that are not padding.
func (p Packing) Efficiency() float64 {
	if p.Positions == 0 {
		return 0
	}
	return float64(p.RealTokens) / float64(p.Positions)
}

// piece is a document, or a part of one, that lies in one row.
type piece struct {
	start  int64 // of its first token in the dataset
	length int32
	more   bool // the document goes on after it
}

// pieceList is the pieces of all documents, in order: those of document i are all[ends[i-1]:ends[i]].
type pieceList struct {
	all     []piece
	ends    []int32 // nil where every document is one piece
	sources []sourceDocuments
}

// pieces cuts the documents of a dataset to the length of a row, in order. What it reports is of documents once each.
func pieces(d *Dataset, sequenceLen int, long LongDocuments) (pieceList, Packing) {
	var p Packing
	row := int64(sequenceLen)
	list := pieceList{all: make([]piece, 0, d.Len()), sources: d.sources}
	for i := range d.Len() {
		start, end := d.bounds(i)
		if end-start > row {
			switch long {
			case DropLong:
				p.Dropped++
				p.CutTokens += end - start
				end = start
			case TruncateLong:
				p.Truncated++
				p.CutTokens += end - start - row
				end = start + row
			default:
				p.Split++
			}
			if list.ends == nil {
				list.ends = make([]int32, i, d.Len())
				for j := range list.ends {
					list.ends[j] = int32(j + 1)
				}
			}
		}
		if end > start {
			p.Documents++
			p.RealTokens += end - start
			run := d.run(start)
			p.TargetTokens += onesBetween(run.counted, start-run.base+1, end-run.base)
		}
		for ; start < end; start += row {
			n := min(end-start, row)
			list.all = append(list.all, piece{start: start, length: int32(n), more: start+n < end})
		}
		if list.ends != nil {
			list.ends = append(list.ends, int32(len(list.all)))
		}
	}
	return list, p
}

// of appends the pieces of document i.
func (l pieceList) of(dst []int, i int) []int {
	from, to := i, i+1
	if l.ends != nil {
		from, to = 0, int(l.ends[i])
		if i > 0 {
			from = int(l.ends[i-1])
		}
	}
	for ; from < to; from++ {
		dst = append(dst, from)
	}
	return dst
}

// weighted reports whether documents come another number of times than once.
func (l pieceList) weighted() bool {
	return slices.ContainsFunc(l.sources, func(s sourceDocuments) bool { return s.weight != 1 })
}

// epoch is the pieces of an epoch, in order, as often as the weights of their sources say. Of a share, the documents
// are those that come next in an order drawn from the seed, so that all come equally often in the long run.
func (l pieceList) epoch(seed uint64, epoch int) []int {
	if !l.weighted() {
		order := make([]int, len(l.all))
		for i := range order {
			order[i] = i
		}
		return order
	}
	var order []int
	first := 0
	for n, s := range l.sources {
		times, share := wholeWeight(s.weight)
		for range times {
			for i := range s.documents {
				order = l.of(order, first+i)
			}
		}
		if some := int(math.Round(share * float64(s.documents))); some > 0 {
			drawn := rng.New(seed, "share of documents", uint64(n), 0).Perm(s.documents)
			for i := range some {
				order = l.of(order, first+drawn[(epoch%s.documents*some+i)%s.documents])
			}
		}
		first += s.documents
	}
	return order
}

// rowPlan says which pieces lie in which row: row i holds pieces members[starts[i]:starts[i+1]] in that order.
type rowPlan struct {
	members []int32
	starts  []int32
}

func (p rowPlan) rows() int { return len(p.starts) - 1 }

func (p rowPlan) row(i int) []int32 { return p.members[p.starts[i]:p.starts[i+1]] }

// packWindow is how many pieces are sorted together; see pack.
const packWindow = 256

// pack puts pieces into rows of sequenceLen positions, taking them in the given order (nil: as they are) by windows, and
// the longest of a window first. Each goes to the row with the least room that it fits in, the last one so filled among
// equals, or opens a new row.
//
// This is best-fit-decreasing bin packing (Ding et al., "Fewer truncations improve language modeling", ICML 2024) by
// windows instead of over all documents: that keeps chance in which documents share a row. On 7473 documents of 182
// tokens on average and rows of 512, the rows are 97.6% full, without sorting 94.7%, sorted as a whole 97.8%.
func pack(ps []piece, order []int, sequenceLen int) rowPlan {
	if order == nil {
		order = make([]int, len(ps))
		for i := range order {
			order[i] = i
		}
	}
	for window := range slices.Chunk(order, packWindow) {
		slices.SortStableFunc(window, func(a, b int) int { return cmp.Compare(ps[b].length, ps[a].length) })
	}
	byRoom := make([][]int32, sequenceLen+1)          // rows that have so many free positions
	occupied := make([]uint64, (sequenceLen+1+63)/64) // bit r: byRoom[r] is not empty
	rowOf := make([]int32, len(order))                // by place in the order, as a piece may come twice
	var sizes []int32                                 // pieces by row
	for at, i := range order {
		n := int(ps[i].length)
		row, room := int32(len(sizes)), sequenceLen
		if r := nextBit(occupied, n); r >= 0 {
			room = r
			last := len(byRoom[r]) - 1
			row = byRoom[r][last]
			byRoom[r] = byRoom[r][:last]
			if last == 0 {
				occupied[r/64] &^= 1 << (r % 64)
			}
		} else {
			sizes = append(sizes, 0)
		}
		rowOf[at] = row
		sizes[row]++
		if room -= n; room > 0 {
			byRoom[room] = append(byRoom[room], row)
			occupied[room/64] |= 1 << (room % 64)
		}
	}
	p := rowPlan{members: make([]int32, len(order)), starts: make([]int32, len(sizes)+1)}
	for i, n := range sizes {
		p.starts[i+1] = p.starts[i] + n
	}
	next := append([]int32(nil), p.starts[:len(sizes)]...)
	for at, i := range order {
		p.members[next[rowOf[at]]] = int32(i)
		next[rowOf[at]]++
	}
	return p
}

// nextBit returns the lowest bit set at or above from, or -1.
func nextBit(set []uint64, from int) int {
	for w := from / 64; w < len(set); w++ {
		v := set[w]
		if w == from/64 {
			v &= ^uint64(0) << (from % 64)
		}
		if v != 0 {
			return w*64 + bits.TrailingZeros64(v)
		}
	}
	return -1
}

// packEpoch packs in an order drawn for the epoch, and then puts the rows in an order drawn for it too, since the
// emptiest rows are the last ones that packing opens.
func packEpoch(l pieceList, sequenceLen int, seed uint64, epoch int) rowPlan {
	order := l.epoch(seed, epoch)
	shuffled := rng.New(seed, "shuffle documents", uint64(epoch), 0).Perm(len(order))
	for at, i := range shuffled {
		shuffled[at] = order[i]
	}
	p := pack(l.all, shuffled, sequenceLen)
	rows := rng.New(seed, "shuffle rows", uint64(epoch), 0).Perm(p.rows())
	out := rowPlan{members: make([]int32, 0, len(p.members)), starts: make([]int32, 1, len(p.starts))}
	for _, i := range rows {
		out.members = append(out.members, p.row(i)...)
		out.starts = append(out.starts, int32(len(out.members)))
	}
	return out
}

// checkPacking returns what is wrong with a row length and a treatment of long documents.
func checkPacking(sequenceLen int, long LongDocuments) error {
	if sequenceLen < 2 || sequenceLen > 1<<24 {
		return fmt.Errorf("sequence_len is %d: it must be between 2 and %d", sequenceLen, 1<<24)
	}
	if !slices.Contains(LongTreatments, long) {
		return fmt.Errorf("overlong is %q: use one of %q", long, LongTreatments)
	}
	return nil
}
