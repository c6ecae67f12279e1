package timeline

import (
	"fmt"
	"strings"
)

// Theme says which colors a picture has.
type Theme uint8

// The themes.
const (
	Light Theme = iota // for a light page
	Dark               // for a dark one
)

// tint is the color of some kinds of blocks.
type tint struct {
	class, means string
	marks        string // of plan.MarkOf
	fill         [2]string
}

// tints holds the tints of Okabe and Ito (Color Universal Design, 2008), lighter where the page is dark, and greys.
// Tints that one lane can show differ for every usual kind of color blindness; a test computes that. The last one is
// for all other marks.
var tints = []tint{
	{"f", "forward", "F", [2]string{"#0072b2", "#3d95d6"}},
	{"h", "head and loss", "H", [2]string{"#e69f00", "#f0c04a"}},
	{"b", "backward", "Bg", [2]string{"#d55e00", "#de6a2b"}},
	{"w", "weights", "W", [2]string{"#7b8a9a", "#8494a6"}},
	{"a", "activations", "xa", [2]string{"#56b4e9", "#9fd6f5"}},
	{"g", "gradients", "G", [2]string{"#b5508a", "#cf7db0"}},
	{"u", "update", "U", [2]string{"#009e73", "#1eae86"}},
	{"e", "embedding", "e", [2]string{"#b3a400", "#d9cd3f"}},
	{"r", "read", "r", [2]string{"#8fa5b8", "#6c8398"}},
	{"d", "write", "w", [2]string{"#43586b", "#c3d0da"}},
	{"o", "other", "", [2]string{"#a3a8ad", "#6b7178"}},
}

// tintOf is the index of a mark's tint.
func tintOf(mark byte) int {
	for i, t := range tints {
		if strings.IndexByte(t.marks, mark) >= 0 {
			return i
		}
	}
	return len(tints) - 1
}

// page has the colors of all that is no block. The tracks are the background of lanes; muted text says details.
type page struct{ ground, track, line, text, muted string }

var pages = [2]page{
	Light: {"#ffffff", "#f0f2f5", "#d5dae0", "#1f2328", "#57606a"},
	Dark:  {"#0d1117", "#1a2029", "#303843", "#e6edf3", "#9aa4af"},
}

// style is the style sheet. It has no variables: only browsers know them.
func (t Theme) style() string {
	p := pages[t]
	var b strings.Builder
	b.WriteString("text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif}" +
		".title{font-size:16px;font-weight:600}.lane{font-size:13px;font-weight:600}\n")
	fmt.Fprintf(&b, ".ground{fill:%s}.track{fill:%s}.grid{stroke:%s}text{fill:%s}.muted{fill:%s}\n",
		p.ground, p.track, p.line, p.text, p.muted)
	for _, t2 := range tints {
		fmt.Fprintf(&b, ".%s{fill:%s}", t2.class, t2.fill[t])
	}
	return b.String() + "\n"
}
