package demo

import (
	"fmt"
	"io"
	"strings"

	"github.com/millrace/millrace/internal/terminal"
)

// stage shows the demo. Its lines are at most lineWidth columns long, except those with names of files.
type stage struct {
	out   *output
	bars  io.Writer // nil: none are drawn
	color bool
}

// output remembers the first error of its writer, and writes nothing after that.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(p []byte) (n int, err error) {
	if o.err == nil {
		n, o.err = o.w.Write(p)
	}
	return n, o.err
}

// lineWidth is the width that every terminal has.
const lineWidth = 79

// Colors, as a terminal takes them (ECMA-48, SGR).
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

func (s *stage) paint(color, text string) string {
	if !s.color {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// say writes a line, in which no character acts on a terminal.
func (s *stage) say(format string, args ...any) {
	fmt.Fprintln(s.out, terminal.Text(fmt.Sprintf(format, args...)))
}

func (s *stage) title(text string) {
	fmt.Fprintf(s.out, "\n%s\n\n", s.paint(bold, "== "+terminal.Text(text)))
}

// row writes a name and what there is to say of it, in as many lines as that takes.
func (s *stage) row(name, format string, args ...any) {
	const indent = 11
	for i, line := range wrap(terminal.Text(fmt.Sprintf(format, args...)), lineWidth-indent) {
		if i > 0 {
			name = ""
		}
		fmt.Fprintf(s.out, "%-*s%s\n", indent, name, line)
	}
}

func (s *stage) verdict(good bool, text string) {
	color := red
	if good {
		color = green
	}
	fmt.Fprintf(s.out, "\n%s\n", s.paint(color, text))
}

// quote shows text that the model wrote: the prompt, and how it continues.
func (s *stage) quote(prompt, text string) {
	const margin = "  | "
	for i, line := range wrap(terminal.Text(prompt+text), lineWidth-len(margin)) {
		if i == 0 && strings.HasPrefix(line, prompt) {
			line = s.paint(bold, prompt) + s.paint(yellow, line[len(prompt):])
		} else {
			line = s.paint(yellow, line)
		}
		fmt.Fprintf(s.out, "%s%s\n", margin, line)
	}
}

// wrap cuts a text into lines of at most width characters: at spaces where it can.
func wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
		for r := []rune(line); len(r) > width; r = []rune(line) {
			lines, line = append(lines, string(r[:width])), string(r[width:])
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// progress shows some steps of a run, and on a terminal also draws each in its turn.
type progress struct {
	s             *stage
	every         int
	tokensPerByte float64
	drawn         bool
}

// shownSteps counts the steps of a run that are shown.
const shownSteps = 6

// progress shows a run up to a last step, whose losses are in nats per token.
func (s *stage) progress(last int, tokensPerByte float64) *progress {
	return &progress{s: s, every: max(1, last/shownSteps), tokensPerByte: tokensPerByte}
}

// show takes a line of a run; ok is true of one that is about a step.
func (p *progress) show(line string) (step int, ok bool) {
	var steps int
	var loss float64
	if n, _ := fmt.Sscanf(line, "step %d/%d loss %f", &step, &steps, &loss); n < 3 {
		return 0, false
	}
	text := fmt.Sprintf("step %*d of %d   loss %.2f nats per byte", len(fmt.Sprint(steps)), step, steps,
		loss*p.tokensPerByte)
	fields := strings.Fields(line)
	for i, unit := range fields[1:] {
		if unit == "tokens/s" || unit == "left" {
			text += "   " + fields[i] + " " + unit
		}
	}
	switch {
	case step%p.every == 0:
		p.end()
		p.s.say("%s", text)
	case p.s.bars != nil:
		terminal.Draw(p.s.bars, terminal.EraseLine+p.s.paint(dim, terminal.Text(text)))
		p.drawn = true
	}
	return step, true
}

// end removes what was drawn.
func (p *progress) end() {
	if p.drawn {
		terminal.Draw(p.s.bars, terminal.EraseLine)
		p.drawn = false
	}
}
