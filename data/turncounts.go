package data

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/internal/spelling"
)

// TurnCounts counts the assistant's turns in rows that have become tokens. Rows of type text have none.
type TurnCounts struct {
	// Trained turns count in the loss. Last counts them by the special token that they end with, or the token at which a
	// generation ends; turns that end with any other token are under [tokenizer.None]. Final and FinalLast are the same
	// for the last turns of rows.
	Trained   int64           `json:"trained"`
	Last      map[int32]int64 `json:"last,omitempty"`
	Final     int64           `json:"final,omitempty"`
	FinalLast map[int32]int64 `json:"final_last,omitempty"`
	// Open is the end of the text of the first turn that is under None.
	Open string `json:"open,omitempty"`
	// OtherPrompt turns are trained after another prompt than a generation gets; FinalOther are those of Final.
	OtherPrompt int64   `json:"other_prompt,omitempty"`
	FinalOther  int64   `json:"final_other,omitempty"`
	LeftOut     LeftOut `json:"left_out"`
}

// LeftOut counts texts of turns that others follow which the template leaves out, and writes where such a turn is the
// last one: templates for models that think drop thoughts of the past this way.
type LeftOut struct {
	Thoughts int64 `json:"thoughts,omitempty"` // turns that lose theirs
	Calls    int64 `json:"calls,omitempty"`    // calls of tools
	Contents int64 `json:"contents,omitempty"` // turns that lose what they say next to a call
}

// maxLastTokens bounds TurnCounts.Last. A model has a few tokens that end turns; each further one counts as none.
const maxLastTokens = 64

// add adds the turns of more rows.
func (c *TurnCounts) add(more TurnCounts) {
	c.Trained += more.Trained
	c.Final += more.Final
	c.OtherPrompt += more.OtherPrompt
	c.FinalOther += more.FinalOther
	c.LeftOut.Thoughts += more.LeftOut.Thoughts
	c.LeftOut.Calls += more.LeftOut.Calls
	c.LeftOut.Contents += more.LeftOut.Contents
	if c.Open == "" {
		c.Open = more.Open
	}
	addTokens(&c.Last, more.Last)
	addTokens(&c.FinalLast, more.FinalLast)
}

// addTokens adds counts by token.
func addTokens(to *map[int32]int64, more map[int32]int64) {
	for _, id := range slices.Sorted(maps.Keys(more)) {
		addToken(to, id, more[id])
	}
}

func addToken(to *map[int32]int64, id int32, n int64) {
	if *to == nil {
		*to = map[int32]int64{}
	}
	if _, known := (*to)[id]; !known && len(*to) >= maxLastTokens {
		id = tokenizer.None
	}
	(*to)[id] += n
}

// countTurns counts the turns of a row that has become an example. ends are the places after their last tokens.
func countTurns(tok tokenizer.Tokenizer, stops []int32, r Rendered, e Example, ends []int) (c TurnCounts) {
	c.LeftOut = r.left
	first := 0
	for i, end := range ends {
		start := end
		for start > first && e.Labels[start-1] != Ignore {
			start--
		}
		turn := e.InputIDs[start:end]
		last, isFinal := lastToken(tok, turn, stops), i+1 == len(ends) && r.endsInTurn
		c.Trained++
		addToken(&c.Last, last, 1)
		if last == tokenizer.None && c.Open == "" {
			c.Open = tok.Decode(turn[max(len(turn)-openTokens, 0):], false)
		}
		isOther := i < len(r.otherPrompt) && r.otherPrompt[i]
		if isOther {
			c.OtherPrompt++
		}
		if isFinal {
			c.Final++
			addToken(&c.FinalLast, last, 1)
			if isOther {
				c.FinalOther++
			}
		}
		first = end
	}
	return c
}

// openTokens are the tokens that TurnCounts.Open has.
const openTokens = 12

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
func (d *Dataset) EndedTurns() int64 { return d.endedIn(d.turns.Last) }

func (d *Dataset) endedIn(last map[int32]int64) (n int64) {
	for _, id := range d.Ends() {
		n += last[id]
	}
	return n
}

// CheckEnds refuses data whose turns teach a model to never stop: none ends with a token at which a generation ends. With
// a tokenizer that finds no such token in any text, as [tokenizer.Bytes], no template could end a turn, and that is no
// error.
func (d *Dataset) CheckEnds() error {
	if !d.spellsStops {
		return nil
	}
	return d.neverEnds()
}

func (d *Dataset) neverEnds() error {
	if d.turns.Trained == 0 || d.EndedTurns() > 0 {
		return nil
	}
	return fmt.Errorf("no turn of the assistant ends with a token at which a generation ends: the model would not learn to "+
		"stop (the first turn ends with %q); if the tokenizer lacks the token that ends turns, add it with millrace import "+
		"--add-tokens; if the chat template's {%% generation %%} blocks leave it out, put it inside; or set chat_template to another",
		d.turns.Open)
}

// spells reports whether a tokenizer finds one of these tokens in a text.
func spells(tok tokenizer.Tokenizer, stops []int32) bool {
	return slices.ContainsFunc(stops, func(id int32) bool {
		return slices.Equal(tok.Encode(tok.Token(id), false), []int32{id})
	})
}

// TurnLines says in lines for people how many turns count, how many of them end, and what the chat template makes of
// those that others follow; none for data without turns. lastOnly says that the last turn of each row alone is trained.
func (d *Dataset) TurnLines(lastOnly bool) (lines []string) {
	c, ended := d.turns, d.EndedTurns()
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	advice := func(helps bool) string {
		if lastOnly || !helps {
			return ""
		}
		return "; train_on_last_turn: true trains the last turn of each row alone"
	}
	turns := spelling.Count(int(c.Trained), "turn")
	switch {
	case c.Trained == 0:
		return nil
	case ended == 0:
		add("%v", d.neverEnds())
	case ended < c.Trained:
		add("%d of %s of the assistant end with a token at which a generation ends (the first that does not ends with %q): the model "+
			"does not learn to stop after the others%s", ended, turns, c.Open, advice(d.endedIn(c.FinalLast) == c.Final && c.Final > 0))
	default:
		add("%s of the assistant: each ends with a token at which a generation ends", turns)
	}
	if l := c.LeftOut; l != (LeftOut{}) {
		var what []string
		for _, of := range []struct {
			n    int64
			noun string
		}{{l.Thoughts, "thought"}, {l.Calls, "call"}, {l.Contents, "text next to a call"}} {
			switch {
			case of.n == 1:
				what = append(what, "1 "+of.noun)
			case of.n > 1:
				what = append(what, fmt.Sprintf("%d %s", of.n, strings.Replace(of.noun+"s", "text next to a calls", "texts next to calls", 1)))
			}
		}
		add("the chat template leaves %s out of turns that others follow%s", strings.Join(what, ", "), advice(true))
	}
	if c.OtherPrompt > 0 {
		fix := advice(c.FinalOther == 0)
		if c.FinalOther > 0 {
			fix = "; chat_template_kwargs (such as enable_thinking: false) may choose the prompt that the rows have"
		}
		add("%d of %s follow another prompt than a generation gets, such as one that begins thoughts%s", c.OtherPrompt, turns, fix)
	}
	return lines
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
