package terminal

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// Columns is the width of a terminal in characters; 0 if a writer is not one.
func Columns(w io.Writer) int {
	if !Is(w) {
		return 0
	}
	columns, _, err := term.GetSize(int(w.(*os.File).Fd()))
	if err != nil {
		return 0
	}
	return columns
}

// leastColumns is the narrowest width for which lines are broken.
const leastColumns = 20

// Wrap breaks lines that are longer than columns at spaces. What follows is indented by two more than its line. Words
// that are too long stay whole. With fewer than 20 columns nothing changes.
func Wrap(text string, columns int) string {
	if columns < leastColumns {
		return text
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		body := strings.TrimLeft(line, " ")
		indent := min(len(line)-len(body)+2, columns/2)
		room := columns - (len(line) - len(body))
		b.WriteString(line[:len(line)-len(body)])
		for {
			at := breakAt(body, room)
			if at < 0 {
				b.WriteString(body)
				break
			}
			b.WriteString(strings.TrimRight(body[:at], " ") + "\n" + strings.Repeat(" ", indent))
			body, room = strings.TrimLeft(body[at:], " "), columns-indent
		}
	}
	return b.String()
}

// breakAt returns the byte of the last space before which a line fits, or of the first space if a word is too long;
// -1 if the line fits or cannot be broken.
func breakAt(line string, room int) int {
	trimmed := strings.TrimRight(line, " \n")
	if utf8.RuneCountInString(trimmed) <= room {
		return -1
	}
	last, count := -1, 0
	for i, r := range trimmed {
		if r == ' ' {
			if count > room && last >= 0 {
				return last
			}
			last = i
			if count > room {
				return last
			}
		}
		count++
	}
	return last
}
