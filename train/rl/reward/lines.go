package reward

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/internal/terminal"
)

// mostLineBytes bounds a line that a judge writes: an answer of the contract has some hundred.
const mostLineBytes = 1 << 20

// Bounds of the metrics that a judge gives with a reward.
const (
	mostMetrics         = 32
	mostMetricNameBytes = 64
)

// lineOf writes an answer as the contract has it, in a line. Text that is not UTF-8 has U+FFFD instead.
func lineOf(a *Answer) []byte {
	ids := a.CompletionIDs
	if ids == nil {
		ids = []int32{}
	}
	row := a.Row
	if row == nil {
		row = json.RawMessage("{}")
	}
	var line bytes.Buffer
	e := json.NewEncoder(&line)
	e.SetEscapeHTML(false)
	err := e.Encode(struct {
		ID            int64           `json:"id"`
		Prompt        string          `json:"prompt"`
		Messages      json.RawMessage `json:"messages,omitempty"`
		Completion    string          `json:"completion"`
		CompletionIDs []int32         `json:"completion_ids"`
		Finish        string          `json:"finish"`
		Row           json.RawMessage `json:"row"`
	}{a.ID, a.Prompt, a.Messages, a.Completion, ids, a.Finish, row})
	if err != nil {
		panic(err) // Judge has checked what is not text
	}
	return line.Bytes()
}

// said is an answer of a judge. Its id may be known although the rest is wrong: then the verdict has the cause, and
// detail says what it is.
type said struct {
	id      int64
	verdict verdict
	detail  string
}

// parseLine reads a line that a judge has written. An error is of a line that is not even of one answer.
func parseLine(line []byte) (said, error) {
	var doc struct {
		ID      *int64                     `json:"id"`
		Reward  json.RawMessage            `json:"reward"`
		Metrics map[string]json.RawMessage `json:"metrics"`
	}
	if err := budget.Unmarshal(line, &doc); err != nil {
		again := quoteNonFinite(line)
		if again == nil || budget.Unmarshal(again, &doc) != nil {
			return said{}, fmt.Errorf("it wrote %s where a line such as {\"id\": 1, \"reward\": 0.5} is expected", shown(line))
		}
	}
	if doc.ID == nil {
		return said{}, fmt.Errorf("it wrote %s, which has no whole number as id", shown(line))
	}
	s := said{id: *doc.ID}
	if doc.Reward == nil {
		s.verdict = null(Malformed)
		s.detail = fmt.Sprintf("it wrote %s, which has no reward: write null for none", shown(line))
		return s, nil
	}
	s.verdict = verdict{isGiven: true, metrics: make(map[string]float64, min(len(doc.Metrics), mostMetrics))}
	var isNull bool
	var err error
	if s.verdict.reward, isNull, err = number(doc.Reward); err == nil && len(doc.Metrics) > mostMetrics {
		err = fmt.Errorf("there are %d metrics: %d at most", len(doc.Metrics), mostMetrics)
	}
	for name, text := range doc.Metrics {
		x, isNull, metricErr := number(text)
		switch {
		case err != nil || isNull:
		case name == "" || len(name) > mostMetricNameBytes:
			err = fmt.Errorf("a metric has a name of %d bytes: 1 to %d", len(name), mostMetricNameBytes)
		case metricErr != nil:
			err = fmt.Errorf("a metric: %w", metricErr)
		default:
			s.verdict.metrics[name] = x
		}
	}
	switch {
	case errors.Is(err, errNotFinite):
		s.verdict = null(NotFinite)
	case err != nil:
		s.verdict = null(Malformed)
	case isNull:
		s.verdict.reward, s.verdict.cause = math.NaN(), Null
	}
	if err != nil {
		s.detail = fmt.Sprintf("it wrote %s: %v", shown(line), err)
	}
	return s, nil
}

// errNotFinite is of a number that files of rollouts cannot hold.
var errNotFinite = errors.New("it is not a number between -1e12 and 1e12")

// number reads a number, true or false, or null.
func number(text json.RawMessage) (x float64, isNull bool, err error) {
	switch string(text) {
	case "null":
		return 0, true, nil
	case "true":
		return 1, false, nil
	case "false", "0":
		return 0, false, nil
	case nonFinite:
		return 0, false, errNotFinite
	}
	if !bytes.ContainsAny(text[:1], "-0123456789") {
		return 0, false, errors.New("a number or null is expected there")
	}
	if x, err = strconv.ParseFloat(string(text), 64); err != nil || math.Abs(x) > mostReward {
		return 0, false, errNotFinite
	}
	return x, false, nil
}

// nonFinite stands for what Python writes for numbers that JSON does not have.
const nonFinite = `"NaN"`

// quoteNonFinite replaces what Python writes for numbers that JSON does not have; nil where there are no such.
func quoteNonFinite(line []byte) (out []byte) {
	found, inText := false, false
	for i := 0; i < len(line); {
		c := line[i]
		if inText {
			n := 1
			if c == '\\' && i+1 < len(line) {
				n = 2
			}
			inText = c != '"'
			out, i = append(out, line[i:i+n]...), i+n
			continue
		}
		n := 0
		for _, word := range []string{"NaN", "Infinity", "-Infinity"} {
			if bytes.HasPrefix(line[i:], []byte(word)) {
				n = len(word)
			}
		}
		if n > 0 {
			out, i, found = append(out, nonFinite...), i+n, true
			continue
		}
		inText = c == '"'
		out, i = append(out, c), i+1
	}
	if !found {
		return nil
	}
	return out
}

// shown is the beginning of a line, for people.
func shown(line []byte) string {
	const most = 80
	text := string(bytes.ToValidUTF8(line[:min(len(line), most)], []byte("?")))
	if len(line) > most {
		text += "..."
	}
	return terminal.Quote(text)
}
