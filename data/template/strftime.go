package template

import (
	"strings"
	"time"
)

// strftime formats a time as C's function does in the C locale.
func (s *state) strftime(t time.Time, format string) string {
	var b []byte
	for format != "" {
		i := strings.IndexByte(format, '%')
		if i < 0 || i+1 >= len(format) {
			b = s.appended(b, format)
			break
		}
		b = s.appended(b, format[:i])
		c := format[i+1]
		format = format[i+2:]
		if c == '-' && format != "" { // glibc: without padding
			text := s.strftimeOne(t, format[0])
			if trimmed := strings.TrimLeft(text, "0 "); trimmed != "" || text == "" {
				text = trimmed
			} else {
				text = "0"
			}
			b = s.appended(b, text)
			format = format[1:]
			continue
		}
		b = s.appended(b, s.strftimeOne(t, c))
	}
	return s.text(b)
}

// layouts are the conversions, as Go writes them.
var layouts = map[byte]string{
	'a': "Mon", 'A': "Monday", 'b': "Jan", 'B': "January", 'd': "02", 'e': "_2", 'j': "002", 'm': "01", 'y': "06", 'Y': "2006",
	'H': "15", 'I': "03", 'M': "04", 'p': "PM", 'S': "05", 'D': "01/02/06", 'F': "2006-01-02", 'T': "15:04:05", 'R': "15:04",
	'%': "%",
}

func (s *state) strftimeOne(t time.Time, c byte) string {
	s.work(0)
	layout, ok := layouts[c]
	if !ok {
		s.fail("%s", unsupported("conversion", "%"+string(rune(c))+" of strftime_now"))
	}
	return t.Format(layout)
}
