package data

import (
	"maps"
	"slices"

	"github.com/millrace/millrace/data/tokenizer"
)

// TurnCounts counts the assistant's turns in rows that have become tokens. Rows of type text have none.
type TurnCounts struct {
	// Trained turns count in the loss. Last counts them by the special token that they end with, or the token at which a
	// generation ends; turns that end with any other token are under [tokenizer.None].
	Trained int64           `json:"trained"`
	Last    map[int32]int64 `json:"last,omitempty"`
}

// maxLastTokens bounds TurnCounts.Last. A model has a few tokens that end turns; each further one counts as none.
const maxLastTokens = 64

// add adds the turns of more rows.
func (c *TurnCounts) add(more TurnCounts) {
	c.Trained += more.Trained
	for _, id := range slices.Sorted(maps.Keys(more.Last)) {
		c.addLast(id, more.Last[id])
	}
}

func (c *TurnCounts) addLast(id int32, n int64) {
	if c.Last == nil {
		c.Last = map[int32]int64{}
	}
	if _, known := c.Last[id]; !known && len(c.Last) >= maxLastTokens {
		id = tokenizer.None
	}
	c.Last[id] += n
}

// Turns counts the assistant's turns in the rows of all sources. A part of a dataset that was split off has the counts
// of the whole.
func (d *Dataset) Turns() TurnCounts { return d.turns }

// Ends are the ids, in order, of the tokens with which trained turns end and at which a generation of the trained model
// has to end. Where turns end with the tokenizer's EOS or an id of [Chat.Stops], these ids are all: any other token
// after a turn can have another meaning to the model (<|end|> of gpt-oss). Where no turn does, as when a base model is
// trained with a chat template, they are the special tokens with which its turns end.
func (d *Dataset) Ends() []int32 {
	var known, others []int32
	for id := range d.turns.Last {
		switch {
		case slices.Contains(d.stops, id):
			known = append(known, id)
		case id != tokenizer.None:
			others = append(others, id)
		}
	}
	if len(known) == 0 {
		known = others
	}
	slices.Sort(known)
	return known
}

// EndedTurns is the number of trained turns that end with one of the tokens of Ends.
func (d *Dataset) EndedTurns() (n int64) {
	for _, id := range d.Ends() {
		n += d.turns.Last[id]
	}
	return n
}

// stopsOf are the ids at which a generation ends: EOS and those that the renderer knows.
func stopsOf(o Options) []int32 {
	var stops []int32
	if chat, ok := o.Renderer.(*Chat); ok {
		stops = slices.Clone(chat.Stops)
	}
	if eos := o.Tokenizer.EOS(); eos != tokenizer.None {
		stops = append(stops, eos)
	}
	return stops
}

// lastToken is the token that ends a turn, by the ids of the turn: the last one that is not white space, if it is
// special or one of stops; else None.
func lastToken(tok tokenizer.Tokenizer, turn, stops []int32) int32 {
	for t := len(turn) - 1; t >= 0; t-- {
		switch id := turn[t : t+1]; {
		case slices.Contains(stops, id[0]):
			return id[0]
		case blank(tok.Decode(id, false)):
		case tok.Decode(id, true) == "":
			return id[0]
		default:
			return tokenizer.None
		}
	}
	return tokenizer.None
}
