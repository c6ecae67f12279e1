package main

import (
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
	"unicode"

	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/verbs"
)

// pageToken is one token on the page.
type pageToken struct {
	Text    string
	ID      int32
	Trained bool
	Breaks  bool   // the line ends after it
	Loss    string // in nats; empty: not known
	Shade   int    // of it, from 0 to mostShade
}

// Losses have shades of this many nats each.
const (
	mostShade    = 8
	natsPerShade = 1.0
)

type pageExample struct {
	Name            string
	Tokens, Trained int
	Loss            string // mean over those that count; empty: not known
	More            int    // tokens that are not spelled
	Spelled         []pageToken
}

// previewPage writes a page with every token of the examples. It stands alone: no script, nothing from the net.
func previewPage(w io.Writer, examples []verbs.PreviewExample, s *verbs.PreviewSummary, c *runfile.Config) error {
	var all []pageExample
	for i, e := range examples {
		name := exampleName(e, i+1)
		p := pageExample{Name: strings.ToUpper(name[:1]) + name[1:], Tokens: len(e.InputIDs), Trained: counted(e.Labels)}
		if e.Loss != nil {
			p.Loss = fmt.Sprintf("%.4f", *e.Loss)
		}
		for t, token := range e.Tokens {
			s := pageToken{Text: spelled(token), ID: e.InputIDs[t], Trained: e.Trained(t),
				Breaks: strings.Contains(token, "\n")}
			if t < len(e.Losses) && !math.IsNaN(float64(e.Losses[t])) {
				s.Loss = fmt.Sprintf("%.3f", e.Losses[t])
				s.Shade = int(min(max(float64(e.Losses[t])/natsPerShade, 0), mostShade))
			}
			p.Spelled = append(p.Spelled, s)
		}
		p.More = len(e.InputIDs) - len(e.Tokens)
		all = append(all, p)
	}
	summary := summaryLines(s, c.SequenceLen)
	summary[0] = strings.TrimPrefix(summary[0], "--- ")
	return page.Execute(w, struct {
		Model    string
		Summary  []string
		Losses   bool
		Examples []pageExample
	}{c.Model, summary, len(examples) > 0 && examples[0].Losses != nil, all})
}

// spelled makes white space and control characters of a token visible. Bytes that are a part of a character show as
// U+FFFD.
func spelled(token string) string {
	return strings.Map(func(r rune) rune {
		switch r {
		case '\n':
			return '⏎'
		case '\t':
			return '⇥'
		case ' ':
			return '·'
		}
		return visible(r)
	}, strings.ToValidUTF8(token, "\uFFFD"))
}

var page = template.Must(template.New("preview").Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>millrace preview: {{.Model}}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222; background: #fff }
.example { font: 13px/1.9 ui-monospace, monospace; overflow-wrap: anywhere; border: 1px solid #ddd; border-radius: 6px; padding: .8em }
.t { background: #eee; border-radius: 3px; padding: 1px 1px; margin-right: 1px; color: #666 }
.y { background: #bfe8c5; color: #111 }
.l { border-bottom: 2px solid transparent }
.l2 { border-color: #f6c86a } .l3 { border-color: #f0a844 } .l4 { border-color: #e98830 } .l5 { border-color: #dd6a2c }
.l6 { border-color: #cc4c2a } .l7 { border-color: #b43028 } .l8 { border-color: #8f1a24 }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #161616 } .example { border-color: #444 }
  .t { background: #2c2c2c; color: #999 } .y { background: #1e5b2a; color: #fff }
}
</style>
</head>
<body>
<h1>{{.Model}}</h1>
<ul>{{range .Summary}}
<li>{{.}}</li>{{end}}
</ul>
<p><span class="t y">green</span> tokens count in the loss, <span class="t">grey</span> ones are only read. Point at a token for its id{{if .Losses}} and its loss. A line below a token is the darker the greater its loss, from 2 nats on{{end}}.</p>
{{range .Examples}}
<h2>{{.Name}}: {{.Tokens}} tokens, {{.Trained}} count{{if .Loss}}, loss {{.Loss}}{{end}}</h2>
<div class="example">{{range .Spelled}}<span class="t{{if .Trained}} y{{end}}{{if .Loss}} l l{{.Shade}}{{end}}" title="{{.ID}}{{if .Loss}}, loss {{.Loss}}{{end}}">{{.Text}}</span>{{if .Breaks}}<br>{{end}}{{end}}</div>{{if .More}}
<p>... and {{.More}} more tokens</p>{{end}}
{{end}}
</body>
</html>
`))

// visible is a character that changes nothing on a page but the place where it is.
func visible(r rune) rune {
	switch {
	case r == '\n' || r == '\t':
		return r
	case r < 0x20:
		return 0x2400 + r // the picture of the control character
	case unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r):
		return unicode.ReplacementChar
	}
	return r
}
