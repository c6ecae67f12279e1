package serve

import (
	"bytes"
	"cmp"
	"errors"
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/internal/budget"
)

// rowsName has the rows of the run's data with their losses, as `millrace preview --losses --json` prints them.
const rowsName = "rows.jsonl"

const maxRowsBytes, excerptTokens = 64 << 20, 30

// rowLine is a document: a row, or a side of a pair.
type rowLine struct {
	IDs    []int32    `json:"input_ids"`
	Labels []int32    `json:"labels"` // below 0 where the token does not count in the loss
	Pair   int        `json:"pair"`
	Side   string     `json:"side"`
	Losses []*float64 `json:"losses"`
	Loss   *float64   `json:"loss"`
	Tokens []string   `json:"tokens"`
}

// rows reads rows.jsonl, with both sides of a pair together; nil: there is no such file.
func (r *run) rows() (all [][]rowLine) {
	doc, err := below.Read(r.base, r.file(rowsName), maxRowsBytes)
	for line := range bytes.Lines(doc) {
		var d rowLine
		if err != nil || budget.Unmarshal(line, &d) != nil || len(d.IDs) == 0 || len(d.Labels) != len(d.IDs) {
			continue // the summary, for one
		}
		if n := len(all); d.Pair > 0 && n > 0 && all[n-1][0].Pair == d.Pair {
			all[n-1] = append(all[n-1], d)
		} else {
			all = append(all, []rowLine{d})
		}
	}
	return all
}

// rowsDocument lists the rows, in their order in the file, with numbers from 1.
func (r *run) rowsDocument() map[string]any {
	var list []map[string]any
	for i, sides := range r.rows() {
		d := sides[0]
		text := strings.Join(d.Tokens[:min(len(d.Tokens), excerptTokens)], "")
		list = append(list, map[string]any{"index": i + 1, "source": text, "loss": d.Loss, "tokens": len(d.IDs)})
	}
	return map[string]any{"rows": list}
}

// rowDocument has the tokens of a row.
func (r *run) rowDocument(number string) (map[string]any, error) {
	for i, sides := range r.rows() {
		if strconv.Itoa(i+1) != number {
			continue
		}
		var all []map[string]any
		for _, d := range sides {
			tokens := make([]map[string]any, len(d.IDs))
			for at, id := range d.IDs {
				tokens[at] = map[string]any{"id": id, "text": "", "learned": at > 0 && d.Labels[at] >= 0, "loss": nil}
				if at < len(d.Tokens) {
					tokens[at]["text"] = d.Tokens[at]
				}
				if at < len(d.Losses) {
					tokens[at]["loss"] = d.Losses[at]
				}
			}
			all = append(all, map[string]any{"name": cmp.Or(d.Side, "text"), "tokens": tokens})
		}
		return map[string]any{"sides": all}, nil
	}
	return nil, errors.New("there is no such row in " + rowsName + ": write more with millrace preview --losses --json")
}
