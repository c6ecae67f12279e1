package main

// square is a square matrix in registers that is transposed in place, with one register to spare.
type square struct {
	w        *writer
	register string // Z or Y
	rows     []int  // numbers of registers; after the transposition those of the columns, in order
	spare    int
}

// newSquare has its rows in the registers from 0 on, and the next one to spare.
func newSquare(w *writer, register string, rows int) *square {
	s := &square{w: w, register: register, spare: rows}
	for i := range rows {
		s.rows = append(s.rows, i)
	}
	return s
}

// pair makes two rows of two others by two instructions, of which the first writes the spare register; after the second
// one that of row j is free.
func (s *square) pair(low, high string, i, j int) {
	z := s.register
	s.w.op("%s %s%d, %s%d, %s%d", low, z, s.rows[j], z, s.rows[i], z, s.spare)
	s.w.op("%s %s%d, %s%d, %s%d", high, z, s.rows[j], z, s.rows[i], z, s.rows[i])
	s.rows[i], s.rows[j], s.spare = s.spare, s.rows[i], s.rows[j]
}

// fours transposes 4 x 4 elements inside each 128-bit lane.
func (s *square) fours() {
	for i := 0; i < len(s.rows); i += 2 {
		s.pair("VUNPCKLPS", "VUNPCKHPS", i, i+1)
	}
	for i := 0; i < len(s.rows); i += 4 {
		s.pair("VUNPCKLPD", "VUNPCKHPD", i, i+2)   // columns 0 and 1 of each lane
		s.pair("VUNPCKLPD", "VUNPCKHPD", i+1, i+3) // columns 2 and 3
		s.rows[i+1], s.rows[i+2] = s.rows[i+2], s.rows[i+1]
	}
}

// transposed512 transposes 16 rows of 16 units in Z0..Z15, and returns the registers of the columns. Of others it
// changes Z16 alone.
func transposed512(w *writer) []int {
	s := newSquare(w, "Z", 16)
	s.fours()
	shuffle := func(i, j int) { s.pair("VSHUFF32X4 $0x88,", "VSHUFF32X4 $0xdd,", i, j) }
	for c := range 4 {
		shuffle(c, c+4)    // columns c and c+8, and c+4 and c+12, of rows 0..7
		shuffle(c+8, c+12) // the same of rows 8..15
	}
	for c := range 8 {
		shuffle(c, c+8)
	}
	return s.rows
}

// transposed256 transposes 8 rows of 8 fp32 in Y0..Y7, and returns the registers of the columns. Of others it changes
// Y8 alone.
func transposed256(w *writer) []int {
	s := newSquare(w, "Y", 8)
	s.fours()
	for c := range 4 {
		s.pair("VPERM2F128 $0x20,", "VPERM2F128 $0x31,", c, c+4)
	}
	return s.rows
}
