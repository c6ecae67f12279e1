package ptx

import "strings"

// A token is a word (an opcode with its modifiers, a name, a directive, a number), a string, or one character of
// punctuation.
type token struct {
	text string
	line int
}

// isWord reports whether a character may stand in a word. Opcodes keep their dots, and "::" joins words
// (.L1::evict_last).
func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '$' || c == '%' ||
		c == '.'
}

// scan cuts PTX text into tokens. Debugging information on lines of their own (.loc, .file) is left out.
func scan(src string) ([]token, error) {
	var tokens []token
	line := 1
	for i := 0; i < len(src); {
		c := src[i]
		switch {
		case c == 0 && strings.Trim(src[i:], "\x00") == "": // C strings end so
			return tokens, nil
		case c == '\n':
			line++
			i++
		case c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v':
			i++
		case strings.HasPrefix(src[i:], "//"):
			i = endOfLine(src, i)
		case strings.HasPrefix(src[i:], "/*"):
			n := strings.Index(src[i+2:], "*/")
			if n < 0 {
				return nil, errorAt(line, "a comment does not end")
			}
			line += strings.Count(src[i:i+2+n], "\n")
			i += n + 4
		case c == '"':
			n := strings.IndexAny(src[i+1:], "\"\n")
			if n < 0 || src[i+1+n] != '"' {
				return nil, errorAt(line, "a string does not end")
			}
			tokens = append(tokens, token{src[i : i+n+2], line})
			i += n + 2
		case isWord(c):
			start := i
			for i < len(src) && (isWord(src[i]) || strings.HasPrefix(src[i:], "::")) {
				if src[i] == ':' {
					i++
				}
				i++
			}
			text := src[start:i]
			if text == ".loc" || text == ".file" {
				i = endOfLine(src, i)
				break
			}
			tokens = append(tokens, token{text, line})
		case c > ' ' && c < 0x7f:
			tokens = append(tokens, token{src[i : i+1], line})
			i++
		default:
			return nil, errorAt(line, "character %#x", c)
		}
	}
	return tokens, nil
}

func endOfLine(src string, i int) int {
	if n := strings.IndexByte(src[i:], '\n'); n >= 0 {
		return i + n
	}
	return len(src)
}
