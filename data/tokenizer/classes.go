package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// class is what the split expressions distinguish in a character.
type class uint8

const (
	other   class = iota
	letter        // \p{L}
	number        // \p{N}
	newline       // \r and \n
	space         // any other \s
)

// asciiClass is classify for the characters that most text consists of.
var asciiClass = func() (t [utf8.RuneSelf]class) {
	for r := range rune(utf8.RuneSelf) {
		t[r] = classify(r)
	}
	return t
}()

func classify(r rune) class {
	switch {
	case r == '\r' || r == '\n':
		return newline
	case unicode.IsSpace(r):
		return space
	case unicode.IsLetter(r) || unicode.Is(laterLetters, r):
		return letter
	case unicode.IsNumber(r) || unicode.Is(laterNumbers, r):
		return number
	}
	return other
}

// classAt returns the class and the width in bytes of the character at s[i].
func classAt(s string, i int) (class, int) {
	if c := s[i]; c < utf8.RuneSelf {
		return asciiClass[c], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return classify(r), n
}

// laterLetters and laterNumbers are the letters and numbers that Unicode 15.1 and 16.0 added to the 15.0 of Go's
// tables. The regular expressions of `tokenizers` know them, so a split without them would differ.
var (
	laterLetters = &unicode.RangeTable{
		R16: []unicode.Range16{
			{0x1c89, 0x1c8a, 1},
			{0xa7cb, 0xa7cd, 1},
			{0xa7da, 0xa7dc, 1},
		},
		R32: []unicode.Range32{
			{0x105c0, 0x105f3, 1},
			{0x10d4a, 0x10d65, 1},
			{0x10d6f, 0x10d85, 1},
			{0x10ec2, 0x10ec4, 1},
			{0x11380, 0x11389, 1},
			{0x1138b, 0x1138b, 1},
			{0x1138e, 0x1138e, 1},
			{0x11390, 0x113b5, 1},
			{0x113b7, 0x113b7, 1},
			{0x113d1, 0x113d1, 1},
			{0x113d3, 0x113d3, 1},
			{0x11bc0, 0x11be0, 1},
			{0x13460, 0x143fa, 1},
			{0x16100, 0x1611d, 1},
			{0x16d40, 0x16d6c, 1},
			{0x18cff, 0x18cff, 1},
			{0x1e5d0, 0x1e5ed, 1},
			{0x1e5f0, 0x1e5f0, 1},
			{0x2ebf0, 0x2ee5d, 1},
		},
	}
	laterNumbers = &unicode.RangeTable{
		R32: []unicode.Range32{
			{0x10d40, 0x10d49, 1},
			{0x116d0, 0x116e3, 1},
			{0x11bf0, 0x11bf9, 1},
			{0x16130, 0x16139, 1},
			{0x16d70, 0x16d79, 1},
			{0x1ccf0, 0x1ccf9, 1},
			{0x1e5f1, 0x1e5fa, 1},
		},
	}
)
