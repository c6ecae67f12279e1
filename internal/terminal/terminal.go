// Package terminal makes text from files and arguments safe to show: a name can have bytes in it that move a
// terminal's cursor, clear its screen or change its title.
package terminal

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text is a text in which every control character but line breaks and tabs, every sign that turns the direction of
// writing and every byte that is not UTF-8 is spelled out, as in \x1b.
func Text(s string) string {
	if isPlain(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case !acts(r):
			b.WriteString(s[:n])
		case r < utf8.RuneSelf:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		s = s[n:]
	}
	return b.String()
}

// Quote is %q, cut short: names from damaged files may be megabytes long.
func Quote(s string) string {
	const limit = 200
	if len(s) > limit {
		return fmt.Sprintf("%q... (%d bytes)", s[:limit], len(s))
	}
	return fmt.Sprintf("%q", s)
}

// EraseLine removes the line that the cursor is in, and puts the cursor at its beginning.
const EraseLine = "\r\x1b[K"

// Drawer is a writer that spells out what acts on a terminal, and draws what the program means to act on it.
type Drawer interface {
	io.Writer
	Draw(text string)
}

// Draw writes text with characters that act on a terminal, such as those that begin a line again.
func Draw(w io.Writer, text string) {
	if d, ok := w.(Drawer); ok {
		d.Draw(text)
		return
	}
	_, _ = io.WriteString(w, text) // what is drawn is no result
}

func isPlain(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, acts)
}

// acts reports whether a terminal does more with a character than show it.
func acts(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
}
