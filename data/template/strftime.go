package template

import (
	"fmt"
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
		'a': "Mon", 'A': "Monday", 'b': "Jan", 'h': "Jan", 'B': "January", 'd': "02", 'e': "_2", 'H': "15", 'I': "03", 'm': "01",
		'M': "04", 'p': "PM", 'S': "05", 'y': "06", 'Y': "2006", 'D': "01/02/06", 'F': "2006-01-02", 'T': "15:04:05", 'R': "15:04",
		'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05", 'j': "002", 'r': "03:04:05 PM",
	}
	if layout, ok := layouts[c]; ok {
		return t.Format(layout)
	}
	weekday := int(t.Weekday())
	switch c {
	case '%':
		return "%"
	case 'n':
		return "\n"
	case 't':
		return "\t"
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000)
	case 'w':
		return fmt.Sprint(weekday)
	case 'u':
		return fmt.Sprint((weekday+6)%7 + 1)
	case 'U':
		return fmt.Sprintf("%02d", (t.YearDay()+6-weekday)/7)
	case 'W':
		return fmt.Sprintf("%02d", (t.YearDay()+6-(weekday+6)%7)/7)
	case 'V':
		_, week := t.ISOWeek()
		return fmt.Sprintf("%02d", week)
	case 'G':
		year, _ := t.ISOWeek()
		return fmt.Sprint(year)
	case 'C':
		return fmt.Sprintf("%02d", t.Year()/100)
	case 's':
		return fmt.Sprint(t.Unix())
	case 'z', 'Z': // Python's datetime.now() has no zone
		return ""
	}
	s.fail("strftime_now: unknown conversion %%%c", c)
	return ""
}
