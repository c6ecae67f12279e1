package data

import "math/bits"

// rooms keeps the room that is left in rows, and finds the row for a piece.
type rooms struct {
	width    int      // positions of a row
	rows     int      // that hold a piece
	link     []int32  // the row that was filled to the same room before, and 1
	byRoom   []int32  // the row that was last filled to so much room, and 1; an entry for each room from 0 to width
	occupied []uint64 // bit r: byRoom[r] is not 0
}

// newRooms finds rows with the given memory, which is zero: link has an entry for each row that may be needed.
func newRooms(width int, link, byRoom []int32) rooms {
	return rooms{width: width, link: link, byRoom: byRoom, occupied: make([]uint64, (width+1+63)/64)}
}

// clear takes all pieces out.
func (r *rooms) clear() {
	for w, set := range r.occupied {
		for ; set != 0; set &= set - 1 {
			r.byRoom[w*64+bits.TrailingZeros64(set)] = 0
		}
		r.occupied[w] = 0
	}
	r.rows = 0
}

// place returns a row for a piece of a length: the one with the least room that the piece fits in, the last one so
// filled among equals, or a new row.
func (r *rooms) place(length int) int32 {
	row, room := int32(r.rows), r.width
	if found := nextBit(r.occupied, length); found >= 0 {
		room = found
		row = r.byRoom[found] - 1
		if r.byRoom[found] = r.link[row]; r.byRoom[found] == 0 {
			r.occupied[found/64] &^= 1 << (found % 64)
		}
	} else {
		r.rows++
	}
	if room -= length; room > 0 {
		r.link[row], r.byRoom[room] = r.byRoom[room], row+1
		r.occupied[room/64] |= 1 << (room % 64)
	}
	return row
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
