package tokenizer

// The split expressions that the supported models use, each with a scanner written by hand: a backtracking engine is
// some thirty times slower. A scanner returns the end of the match that starts at s[i]; every character belongs to a
// match. The expressions' alternatives are tried in order, and a run of white space before a word leaves its last
// character to the word (`\s+(?!\S)`).
const (
	gpt2Expr   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	llama3Expr = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwen2Expr  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

type scanner func(s string, i int) (end int)

var scanners = map[string]scanner{
	gpt2Expr:   scanGPT2,
	llama3Expr: func(s string, i int) int { return scanLlama3(s, i, 3) },
	qwen2Expr:  func(s string, i int) int { return scanLlama3(s, i, 1) },
}

// contraction returns the length of the 's, 't, 're, 've, 'm, 'll or 'd at s[i], or 0. With fold it ignores case,
// which includes the long s (U+017F): Unicode folds it to s.
func contraction(s string, i int, fold bool) int {
	if s[i] != '\'' || i+1 == len(s) {
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

// run returns the end of the run of class c that starts at s[i], which may be empty.
func run(s string, i int, c class) int {
	for i < len(s) {
		k, n := classAt(s, i)
		if k != c {
			break
		}
		i += n
	}
	return i
}

// blank returns the end of the run of white space at s[i], where its last character starts, and the end of its last
// line break (0 if it has none).
func blank(s string, i int) (end, last, lineBreak int) {
	for end = i; end < len(s); {
		k, n := classAt(s, end)
		if k != space && k != newline {
			break
		}
		last = end
		end += n
		if k == newline {
			lineBreak = end
		}
	}
	return end, last, lineBreak
}

func scanGPT2(s string, i int) int {
	if n := contraction(s, i, false); n > 0 {
		return i + n
	}
	c, n := classAt(s, i)
	if s[i] == ' ' && i+1 < len(s) {
		if next, m := classAt(s, i+1); next != space && next != newline {
			c, n = next, 1+m
		}
	}
	if c != space && c != newline {
		return run(s, i+n, c)
	}
	end, last, _ := blank(s, i)
	if end < len(s) && last > i {
		return last
	}
	return end
}

// scanLlama3 scans llama3Expr with numbers of up to digits characters; with one it is qwen2Expr.
func scanLlama3(s string, i, digits int) int {
	if n := contraction(s, i, true); n > 0 {
		return i + n
	}
	c, n := classAt(s, i)
	j := i + n
	next, m := other, 0
	if j < len(s) {
		next, m = classAt(s, j)
	}
	switch {
	case c == letter:
		return run(s, j, letter)
	case c == number:
		for k := 1; k < digits && next == number && j < len(s); k++ {
			j += m
			if j < len(s) {
				next, m = classAt(s, j)
			}
		}
		return j
	case c != newline && next == letter && m > 0:
		return run(s, j+m, letter)
	case c == other || s[i] == ' ' && next == other && m > 0:
		return run(s, run(s, j, other), newline)
	}
	end, last, lineBreak := blank(s, i)
	switch {
	case lineBreak > 0:
		return lineBreak
	case end < len(s) && last > i:
		return last
	}
	return end
}
