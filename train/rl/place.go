package rl

import "github.com/millrace/millrace/data"

// Place tells how far a run is in its rounds, after a step.
type Place struct {
	Round int         `json:"round"` // that the next step is of, from 0
	Begin data.Cursor `json:"begin"` // of the prompts of that round
	// Taken counts the steps that are taken of the round, and Rows is where the next one begins in its file.
	Taken int         `json:"taken,omitempty"`
	Rows  data.Cursor `json:"rows"`
}

// After is the place after a step of a round of some steps, whose prompts end at a cursor. rows is where the file of
// the round continues.
func (p Place) After(rows data.Cursor, steps int, end data.Cursor) Place {
	if p.Taken+1 >= steps {
		return Place{Round: p.Round + 1, Begin: end}
	}
	p.Taken, p.Rows = p.Taken+1, rows
	return p
}

// Again is the place of a run whose prompts or steps are others now: the next round, from the first prompt on.
func (p Place) Again() Place {
	if p.Taken > 0 {
		p.Round++
	}
	return Place{Round: p.Round}
}
