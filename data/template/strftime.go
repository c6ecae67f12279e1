package template

import (
	"strings"
	"time"
)

// strftime formats a time as C's function does in the C locale.
func (s *state) strftime(t time.Time, format string) string {
	var b strings.Builder
	for format != "" {
		i := strings.IndexByte(format, '%')
		if i < 0 || i+1 >= len(format) {
			b.WriteString(format)
			break
		}
		b.WriteString(format[:i])
		c := format[i+1]
		format = format[i+2:]
		if c == '-' && format != "" { // glibc: without padding
			text := s.strftimeOne(t, format[0])
			if trimmed := strings.TrimLeft(text, "0 "); trimmed != "" || text == "" {
				text = trimmed
			} else {
				text = "0"
			}
			b.WriteString(text)
			format = format[1:]
			continue
		}
		b.WriteString(s.strftimeOne(t, c))
	}
	return b.String()
}

func (s *state) strftimeOne(t time.Time, c byte) string {
	layouts := map[byte]string{
		'a': "Mon", 'A': "Monday", 'b': "Jan", 'B': "January", 'd': "02", 'e': "_2", 'j': "002", 'm': "01", 'y': "06", 'Y': "2006",
		'H': "15", 'I': "03", 'M': "04", 'p': "PM", 'S': "05", 'D': "01/02/06", 'F': "2006-01-02", 'T': "15:04:05", 'R': "15:04",
		'%': "%",
	}
	layout, ok := layouts[c]
	if !ok {
		s.fail("%s", unsupported("conversion", "%"+string(rune(c))+" of strftime_now"))
	}
	return t.Format(layout)
}
