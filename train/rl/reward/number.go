package reward

import (
	"math/big"
	"regexp"
	"strings"
)

// The final number of a text, as GSM8K, MATH and models that are trained on them write it: that of the last \boxed{},
// else the first one after the last ####, else the last one of the text.

// finalNumber returns it; nil where the text has none.
func finalNumber(text string) *big.Rat {
	if inner, ok := lastBoxed(text); ok {
		return onlyNumber(inner)
	}
	if i := strings.LastIndex(text, "####"); i >= 0 {
		line, _, _ := strings.Cut(text[i+4:], "\n")
		if all := numbers(line); len(all) > 0 {
			return all[0]
		}
		return nil
	}
	if all := numbers(text); len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
}

// lastBoxed returns what the last \boxed{} of a text has in it. One that is not closed does not count.
func lastBoxed(text string) (inner string, ok bool) {
	var open []int // braces that are open, by the place after them
	last := -1     // of the last box that is closed, the place after its brace
	for i := range len(text) {
		switch text[i] {
		case '{':
			open = append(open, i+1)
		case '}':
			if len(open) == 0 {
				continue
			}
			at := open[len(open)-1]
			open = open[:len(open)-1]
			if before := strings.TrimRight(text[:at-1], " "); at > last && strings.HasSuffix(before, `\boxed`) {
				inner, last = text[at:i], at
			}
		}
	}
	return inner, last >= 0
}

var (
	// units are what may be next to a number in \boxed{}: marks of text, units in them, spaces, and signs of money.
	units = regexp.MustCompile(`\\(?:text|mathrm|mbox)\s*\{[^{}]*\}|\\[!,;: ]|\\(?:left|right)\b|\^?\{?\\circ\}?|\\%|\\\$`)
	// foreign is what makes a number part of something else: a command, or a letter next to it.
	foreign = regexp.MustCompile(`\\[a-zA-Z]|[0-9][a-zA-Z](?:[^a-zA-Z]|$)|[a-zA-Z]\s*[(^]`)
	// fraction is one of LaTeX, also without braces.
	fraction = regexp.MustCompile(`\\[dt]?frac\s*(?:\{\s*(-?[0-9,.]+)\s*\}|([0-9]))\s*(?:\{\s*([0-9,.]+)\s*\}|([0-9]))`)
)

// onlyNumber returns the one number of a text that is a number, perhaps with a unit, or an equation that ends in it;
// nil for other texts.
func onlyNumber(text string) *big.Rat {
	text = units.ReplaceAllString(strings.ReplaceAll(text, `\,`, ","), " ")
	if i := strings.LastIndexByte(text, '='); i >= 0 {
		text = text[i+1:]
	}
	if foreign.MatchString(fraction.ReplaceAllString(text, " ")) {
		return nil
	}
	if all := numbers(text); len(all) == 1 {
		return all[0]
	}
	return nil
}

// numeral is a number in a text: a fraction of LaTeX, perhaps after a whole number, or digits, with commas between
// thousands, an exponent, or a denominator.
var numeral = regexp.MustCompile(`(?:([0-9]+)\s*)?` + fraction.String() +
	`|((?:[0-9]{1,3}(?:(?:,|\{,\})[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE]([-+]?[0-9]+))?` +
	`(?:\s*/\s*([0-9]+))?`)

// numbers lists the numbers of a text. Exponents and indices (cm^2, x_1) and digits within words (H2O) do not count.
func numbers(text string) (all []*big.Rat) {
	text = strings.ReplaceAll(text, "\u2212", "-")
	for _, m := range numeral.FindAllStringSubmatchIndex(text, -1) {
		before := strings.TrimRight(text[:m[0]], "{")
		if before != "" {
			c := before[len(before)-1]
			if c == '^' || c == '_' || isLetter(c) && !isCommand(before) {
				continue
			}
		}
		part := func(i int) string {
			if m[2*i] < 0 {
				return ""
			}
			return text[m[2*i]:m[2*i+1]]
		}
		n := value(part(1), part(2)+part(3), part(4)+part(5), part(6), part(7), part(8))
		if n == nil {
			continue
		}
		if isNegative(text[:m[0]]) {
			n.Neg(n)
		}
		all = append(all, n)
	}
	return all
}

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

// isCommand reports whether a text ends in a command of LaTeX, such as \times.
func isCommand(text string) bool {
	i := len(text)
	for i > 0 && isLetter(text[i-1]) {
		i--
	}
	return i > 0 && text[i-1] == '\\'
}

// isNegative reports whether a text ends in the sign of the number after it: a minus that does not subtract.
func isNegative(before string) bool {
	before, ok := strings.CutSuffix(strings.TrimRight(before, "$\\{"), "-")
	if !ok { // a space between them: 3 - 4 subtracts, and = - 4 does not
		if before, ok = strings.CutSuffix(strings.TrimRight(before, " $\\{"), "-"); !ok {
			return false
		}
		before = strings.TrimRight(before, " ")
	}
	if before == "" {
		return true
	}
	c := before[len(before)-1]
	return !(isLetter(c) || '0' <= c && c <= '9' || c == ')' || c == '-')
}

// mostDigits bounds the characters of a number, and mostExponentDigits those of its exponent.
const (
	mostDigits         = 64
	mostExponentDigits = 4
)

var thousands = strings.NewReplacer(",", "", "{", "", "}", "")

// value is a number of its parts: whole and a fraction of LaTeX after it, or digits with an exponent, perhaps over a
// denominator. It is nil for what is too long, or divided by 0.
func value(whole, above, under, digits, exponent, denominator string) *big.Rat {
	read := func(text string) *big.Rat {
		text = thousands.Replace(text)
		if len(text) > mostDigits {
			return nil
		}
		n, ok := new(big.Rat).SetString(text)
		if !ok {
			return nil
		}
		return n
	}
	over := func(n *big.Rat, text string) *big.Rat {
		d := read(text)
		if n == nil || d == nil || d.Sign() == 0 {
			return nil
		}
		return n.Quo(n, d)
	}
	if above != "" {
		n := over(read(above), under)
		if w := read(whole); whole != "" && n != nil && w != nil {
			n.Add(n, w)
		}
		return n
	}
	if len(exponent) > mostExponentDigits {
		return nil
	}
	if exponent != "" {
		digits += "e" + exponent
	}
	n := read(digits)
	if denominator != "" {
		n = over(n, denominator)
	}
	return n
}
