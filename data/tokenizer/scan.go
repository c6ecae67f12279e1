package tokenizer

// The split expressions that models use, each with a scanner written by hand: a backtracking engine is some thirty times
// slower. The expressions' alternatives are tried in order, and a run of white space before a word leaves its last character
// to the word (`\s+(?!\S)`).
const (
	contractions = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	blanks       = `\s*[\r\n]+|\s+(?!\S)|\s+`
	upperFirst   = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
	lowerFirst   = `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`

	gpt2Expr   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	llama3Expr = contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|` + blanks // and GPT-4, Phi-4, OLMo 2
	qwen2Expr  = contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|` + blanks      // and Qwen 3
	gpt4oExpr  = `[^\r\n\p{L}\p{N}]?` + upperFirst + `*` + lowerFirst + `+` + contractions + `?|` +        // and gpt-oss, Llama 4
		`[^\r\n\p{L}\p{N}]?` + upperFirst + `+` + lowerFirst + `*` + contractions + `?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|` + blanks
	tekkenExpr = `[^\r\n\p{L}\p{N}]?` + upperFirst + `*` + lowerFirst + `+|` + // Mistral Nemo and later
		`[^\r\n\p{L}\p{N}]?` + upperFirst + `+` + lowerFirst + `*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|` + blanks
	threeDigitsExpr = `\p{N}{1,3}` // the three steps of DeepSeek-V3
	cjkExpr         = "[一-龥\u3040-ゟ゠-ヿ]+"
	deepseekExpr    = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|" +
		" ?[\\p{P}\\p{S}]+[\r\n]*|" + blanks
)

// A scanner returns the end of the match that starts at s[i], or i if none does.
type scanner func(s string, i int) (end int)

var scanners = map[string]scanner{
	gpt2Expr:        scanGPT2,
	llama3Expr:      func(s string, i int) int { return scanLlama3(s, i, 3) },
	qwen2Expr:       func(s string, i int) int { return scanLlama3(s, i, 1) },
	gpt4oExpr:       func(s string, i int) int { return scanGPT4o(s, i, 3, true) },
	tekkenExpr:      func(s string, i int) int { return scanGPT4o(s, i, 1, false) },
	threeDigitsExpr: func(s string, i int) int { return scanNumber(s, i, 3) },
	cjkExpr:         scanCJK,
	deepseekExpr:    scanDeepSeek,
}

// contraction returns the length of the 's, 't, 're, 've, 'm, 'll or 'd at s[i], or 0. With fold it ignores case,
// which includes the long s (U+017F): Unicode folds it to s.
func contraction(s string, i int, fold bool) int {
	if i+1 >= len(s) || s[i] != '\'' {
		return 0
	}
	at := func(j int) byte {
		if j >= len(s) {
			return 0
		}
		if c := s[j]; !fold || c < 'A' || c > 'Z' {
			return c
		}
		return s[j] + 'a' - 'A'
	}
	switch a, b := at(i+1), at(i+2); {
	case a == 's' || a == 't' || a == 'm' || a == 'd':
		return 2
	case a == 'r' && b == 'e' || a == 'v' && b == 'e' || a == 'l' && b == 'l':
		return 3
	case fold && a == "ſ"[0] && b == "ſ"[1]:
		return 3
	}
	return 0
}

// scanBlank scans `\s*[\r\n]+|\s+(?!\S)|\s+`, or without lines only the last two.
func scanBlank(s string, i int, lines bool) int {
	end, last, lineBreak := i, i, 0
	for end < len(s) {
		p, n := propsAt(s, end)
		if p&propSpace == 0 {
			break
		}
		last = end
		end += n
		if p&propNewline != 0 {
			lineBreak = end
		}
	}
	switch {
	case lines && lineBreak > 0:
		return lineBreak
	case end < len(s) && last > i:
		return last
	}
	return end
}

// scanNumber scans `\p{N}{1,most}`.
func scanNumber(s string, i, most int) int {
	for ; most > 0 && i < len(s); most-- {
		p, n := propsAt(s, i)
		if p&propNumber == 0 {
			break
		}
		i += n
	}
	return i
}

func scanGPT2(s string, i int) int {
	if n := contraction(s, i, false); n > 0 {
		return i + n
	}
	p, n := propsAt(s, i)
	if s[i] == ' ' && i+1 < len(s) {
		if next, m := propsAt(s, i+1); next&propSpace == 0 {
			p, n = next, 1+m
		}
	}
	switch {
	case p&propLetter != 0:
		return run(s, i+n, propLetter)
	case p&propNumber != 0:
		return run(s, i+n, propNumber)
	case p&propRest != 0:
		return run(s, i+n, propRest)
	}
	return scanBlank(s, i, false)
}

// scanLlama3 scans llama3Expr with numbers of up to digits characters; with one it is qwen2Expr.
func scanLlama3(s string, i, digits int) int {
	if n := contraction(s, i, true); n > 0 {
		return i + n
	}
	p, n := propsAt(s, i)
	j := i + n
	if p&propLetter != 0 {
		return run(s, j, propLetter)
	}
	if p&propNumber != 0 {
		return scanNumber(s, j, digits-1)
	}
	var next props
	var m int
	if j < len(s) {
		next, m = propsAt(s, j)
	}
	switch {
	case p&propNewline == 0 && next&propLetter != 0:
		return run(s, j+m, propLetter)
	case p&propRest != 0 || s[i] == ' ' && next&propRest != 0:
		return run(s, run(s, j, propRest), propNewline)
	}
	return scanBlank(s, i, true)
}

// Letters of gpt4oExpr: those of a capital's kind may be followed by those of a small letter's kind; most are both.
const (
	propUpper = propLu | propLt | propLm | propLo | propMark
	propLower = propLl | propLm | propLo | propMark
)

// scanGPT4o scans gpt4oExpr, or tekkenExpr, which has single digits and no contractions.
func scanGPT4o(s string, i, digits int, contracted bool) int {
	p, n := propsAt(s, i)
	if p&propNumber != 0 {
		return scanNumber(s, i+n, digits-1)
	}
	j := i + n
	prefixed := p&(propNewline|propLetter) == 0 && j < len(s)
	bare := p&(propLetter|propMark) != 0
	end := -1
	if prefixed {
		end = mixedWord(s, j)
	}
	if end < 0 && bare {
		end = mixedWord(s, i)
	}
	if end < 0 && prefixed {
		end = capitals(s, j)
	}
	if end < 0 && bare {
		end = capitals(s, i)
	}
	if end >= 0 {
		if contracted {
			end += contraction(s, end, true)
		}
		return end
	}
	if p&propRest != 0 {
		return lineEnds(s, run(s, j, propRest))
	}
	if s[i] == ' ' {
		if k := run(s, j, propRest); k > j {
			return lineEnds(s, k)
		}
	}
	return scanBlank(s, i, true)
}

// lineEnds scans `[\r\n/]*`.
func lineEnds(s string, i int) int {
	for i < len(s) && (s[i] == '\r' || s[i] == '\n' || s[i] == '/') {
		i++
	}
	return i
}

// mixedWord scans `upperFirst*lowerFirst+`, or returns -1. Where no small letter follows the capitals, the greedy run of
// capitals gives back what it must: up to its last character that is also of the other kind, which is then the end.
func mixedWord(s string, i int) int {
	k, both := i, -1
	for k < len(s) {
		p, n := propsAt(s, k)
		if p&propUpper == 0 {
			break
		}
		k += n
		if p&propLower != 0 {
			both = k
		}
	}
	if end := run(s, k, propLower); end > k {
		return end
	}
	return both
}

// capitals scans `upperFirst+lowerFirst*`, or returns -1.
func capitals(s string, i int) int {
	k := run(s, i, propUpper)
	if k == i {
		return -1
	}
	return run(s, k, propLower)
}

func scanCJK(s string, i int) int {
	for i < len(s) {
		if s[i] < 0xE3 || s[i] > 0xE9 { // the first bytes of U+3000 to U+9FFF
			break
		}
		r := rune(s[i]&15)<<12 | rune(s[i+1]&63)<<6 | rune(s[i+2]&63)
		if (r < 0x4E00 || r > 0x9FA5) && (r < 0x3040 || r > 0x30FF) {
			break
		}
		i += 3
	}
	return i
}

func scanDeepSeek(s string, i int) int {
	p, n := propsAt(s, i)
	j := i + n
	if s[i] < 0x80 && p&(propP|propS) != 0 && j < len(s) && isASCIILetter(s[j]) {
		for j < len(s) && isASCIILetter(s[j]) {
			j++
		}
		return j
	}
	if p&(propLetter|propMark) != 0 {
		return run(s, j, propLetter|propMark)
	}
	if p&(propNewline|propP|propS) == 0 {
		if end := run(s, j, propLetter|propMark); end > j {
			return end
		}
	}
	if p&(propP|propS) != 0 {
		return run(s, run(s, j, propP|propS), propNewline)
	}
	if s[i] == ' ' {
		if k := run(s, j, propP|propS); k > j {
			return run(s, k, propNewline)
		}
	}
	if p&propSpace != 0 {
		return scanBlank(s, i, true)
	}
	return i
}

func isASCIILetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
