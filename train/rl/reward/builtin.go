package reward

import (
	"encoding/json"
	"math/big"
	"regexp"
	"strings"

	"github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/runfile"
)

// builtin is a judge that needs no other program.
type builtin struct {
	panel *Panel
	judge int
	score func(a *Answer) verdict
}

func (b *builtin) ask(q *question) {
	b.panel.settle(q, b.score(&q.sheet.Answer), func() string { return "" })
}

func (b *builtin) close() {}

func newBuiltin(p *Panel, i int) (judge, error) {
	s := &p.specs[i]
	b := &builtin{panel: p, judge: i}
	column := s.ComparesWith()
	switch s.Type {
	case runfile.RewardExact:
		b.score = func(a *Answer) verdict { return exact(a, column) }
	case runfile.RewardNumber:
		b.score = func(a *Answer) verdict { return sameNumber(a, column) }
	case runfile.RewardRegex:
		pattern, err := regexp.Compile(s.Pattern)
		if err != nil {
			return nil, err
		}
		b.score = func(a *Answer) verdict { return matches(a, pattern, column) }
	case runfile.RewardLength:
		most, cache, err := lengthsOf(s, p.options.MaxTokens)
		if err != nil {
			return nil, err
		}
		b.score = func(a *Answer) verdict { return scored(overlong(len(a.CompletionIDs), most, cache)) }
	}
	return b, nil
}

func scored(reward float64) verdict { return verdict{isGiven: true, reward: reward} }

func isTrue(b bool) verdict {
	if b {
		return scored(1)
	}
	return scored(0)
}

// exact scores an answer that is the text of a column, or one of its texts, without the white space around both.
func exact(a *Answer, column string) verdict {
	wanted := texts(a.Row, column)
	if wanted == nil {
		return null(Lacking)
	}
	text := strings.TrimSpace(a.Completion)
	for _, w := range wanted {
		if strings.TrimSpace(w) == text {
			return scored(1)
		}
	}
	return scored(0)
}

// matches scores an answer in which a pattern is found; with a column, one whose last match has the text of that in the
// pattern's first group.
func matches(a *Answer, pattern *regexp.Regexp, column string) verdict {
	if column == "" {
		return isTrue(pattern.MatchString(a.Completion))
	}
	wanted := texts(a.Row, column)
	if wanted == nil {
		return null(Lacking)
	}
	all := pattern.FindAllStringSubmatch(a.Completion, -1)
	if len(all) == 0 {
		return scored(0)
	}
	text := all[len(all)-1][1]
	return exact(&Answer{Completion: text, Row: a.Row}, column)
}

// sameNumber scores an answer whose final number is that of a column.
func sameNumber(a *Answer, column string) verdict {
	var wanted []*big.Rat
	for _, text := range texts(a.Row, column) {
		if n := finalNumber(text); n != nil {
			wanted = append(wanted, n)
		}
	}
	if wanted == nil {
		return null(Lacking)
	}
	got := finalNumber(a.Completion)
	for _, w := range wanted {
		if got != nil && got.Cmp(w) == 0 {
			return scored(1)
		}
	}
	return scored(0)
}

// lengthsOf are the lengths of DAPO's soft punishment.
func lengthsOf(s *runfile.Reward, maxTokens int) (most, cache int, err error) {
	if most, cache = s.Max, s.Cache; most == 0 {
		most = maxTokens
	}
	if cache == 0 {
		cache = most / 5
	}
	checked := *s
	checked.Max, checked.Cache = max(most, 1), cache
	return most, cache, checked.Check()
}

// overlong is the soft punishment of long answers: 0 up to most - cache tokens, then down to -1 at most (DAPO, equation
// 13).
func overlong(tokens, most, cache int) float64 {
	switch {
	case tokens <= most-cache:
		return 0
	case tokens <= most:
		return float64(most-cache-tokens) / float64(cache)
	}
	return -1
}

// texts are the texts at a key of a row: one, or those of a list; nil where it has no text. A key with dots goes into
// mappings, unless the row has a key of that name.
func texts(row json.RawMessage, key string) []string {
	for value := row; ; {
		var object map[string]json.RawMessage
		if value == nil || budget.Unmarshal(value, &object) != nil {
			return nil
		}
		if whole, ok := object[key]; ok {
			return textsOf(whole)
		}
		first, rest, ok := strings.Cut(key, ".")
		if !ok {
			return nil
		}
		value, key = object[first], rest
	}
}

// textsOf reads a text, a number, or a list of them.
func textsOf(value json.RawMessage) (all []string) {
	var list []json.RawMessage
	if budget.Unmarshal(value, &list) != nil {
		list = []json.RawMessage{value}
	}
	for _, v := range list {
		var text string
		switch err := budget.Unmarshal(v, &text); {
		case string(v) == "null":
		case err == nil:
			all = append(all, text)
		case !strings.ContainsAny(string(v[:1]), "{["):
			all = append(all, string(v))
		}
	}
	return all
}
