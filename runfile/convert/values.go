package convert

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// number reads a number, which some files have as text.
func number(v any) (float64, bool) {
	var x float64
	switch n := v.(type) {
	case int64:
		x = float64(n)
	case uint64:
		x = float64(n)
	case int:
		x = float64(n)
	case float64:
		x = n
	case string:
		var err error
		if x, err = strconv.ParseFloat(strings.TrimSpace(n), 64); err != nil {
			return 0, false
		}
	default:
		return 0, false
	}
	return x, !math.IsNaN(x) && !math.IsInf(x, 0)
}

// count reads a whole number from 1 on.
func count(v any) (int64, bool) {
	x, ok := number(v)
	return int64(x), ok && x >= 1 && x == math.Trunc(x) && x <= 1<<40
}

// isOn reads a switch. Axolotl's auto is on.
func isOn(v any) bool {
	switch s := v.(type) {
	case bool:
		return s
	case string:
		switch strings.ToLower(s) {
		case "true", "yes", "on", "auto", "full", "1":
			return true
		}
	}
	return false
}

// isOff reports whether a value asks for nothing.
func isOff(v any) bool {
	if x, ok := number(v); ok {
		return x <= 0
	}
	switch s := v.(type) {
	case bool:
		return !s
	case string:
		return s == "" || slices.Contains([]string{"no", "none", "off", "false"}, strings.ToLower(s))
	case []any:
		return len(s) == 0
	case map[string]any:
		for _, inner := range s {
			if !isOff(inner) {
				return false
			}
		}
		return true
	}
	return v == nil
}

// list reads a list of texts, or texts with commas between them.
func list(v any) (all []string) {
	switch l := v.(type) {
	case string:
		for s := range strings.SplitSeq(l, ",") {
			if s = strings.TrimSpace(s); s != "" {
				all = append(all, s)
			}
		}
	case []any:
		for _, e := range l {
			if s, ok := e.(string); ok && s != "" {
				all = append(all, s)
			}
		}
	}
	return all
}

// plain is text that YAML takes without quotes, and that is no number and no other value.
var plain = regexp.MustCompile(`^[A-Za-z_./][A-Za-z0-9_./@+-]*$`)

// scalar is text as YAML.
func scalar(s string) string {
	switch strings.ToLower(s) {
	case "true", "false", "null", "yes", "no", "on", "off", ".inf", ".nan", "y", "n":
		return strconv.Quote(s)
	}
	if plain.MatchString(s) {
		return s
	}
	doc, err := json.Marshal(s)
	if err != nil {
		return strconv.Quote(s)
	}
	return string(doc)
}

// numeral is a number as YAML.
func numeral(x float64) string {
	if x == math.Trunc(x) && math.Abs(x) < 1<<53 {
		return strconv.FormatInt(int64(x), 10)
	}
	return strings.Replace(strconv.FormatFloat(x, 'g', -1, 64), "e-0", "e-", 1)
}

// shown is a value in a comment.
func shown(v any) string {
	if s, ok := v.(string); ok {
		return plainWord(s)
	}
	doc, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("a value of type %T", v)
	}
	return plainWord(string(doc))
}

// mostWord bounds a word of a comment.
const mostWord = 80

// inComment is text that cannot end a comment, nor fill it.
var inComment = regexp.MustCompile(`^[\x21-\x7e]+$`)

// plainWord is a word of the file in a comment.
func plainWord(s string) string {
	if len(s) > mostWord {
		s = strings.ToValidUTF8(s[:mostWord], "") + "..."
	}
	if inComment.MatchString(s) {
		return s
	}
	return strconv.QuoteToASCII(s)
}

func plainList(words []string) string {
	var all []string
	for _, w := range words {
		all = append(all, plainWord(w))
	}
	return strings.Join(all, ", ")
}
