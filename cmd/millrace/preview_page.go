package main

import (
	"html/template"
	"io"
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
	Breaks  bool // the line ends after it
}

type pageExample struct {
	Name            string
	Tokens, Trained int
	More            int // tokens that are not spelled
	Spelled         []pageToken
}

// previewPage writes a page with every token of the examples. It stands alone: no script, nothing from the net.
func previewPage(w io.Writer, examples []verbs.PreviewExample, s *verbs.PreviewSummary, c *runfile.Config) error {
	var all []pageExample
	for i, e := range examples {
		name := exampleName(e, i+1)
		p := pageExample{Name: strings.ToUpper(name[:1]) + name[1:], Tokens: len(e.InputIDs), Trained: counted(e.Labels)}
		for t, token := range e.Tokens {
			p.Spelled = append(p.Spelled, pageToken{
				Text: spelled(token), ID: e.InputIDs[t], Trained: e.Trained(t), Breaks: strings.Contains(token, "\n"),
			})
		}
		p.More = len(e.InputIDs) - len(e.Tokens)
		all = append(all, p)
	}
	summary := summaryLines(s, c.SequenceLen)
	summary[0] = strings.TrimPrefix(summary[0], "--- ")
	return page.Execute(w, struct {
		Model    string
		Summary  []string
		Examples []pageExample
	}{c.Model, summary, all})
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
<p><span class="t y">green</span> tokens count in the loss, <span class="t">grey</span> ones are only read. Point at a token for its id.</p>
{{range .Examples}}
<h2>{{.Name}}: {{.Tokens}} tokens, {{.Trained}} count</h2>
<div class="example">{{range .Spelled}}<span class="t{{if .Trained}} y{{end}}" title="{{.ID}}">{{.Text}}</span>{{if .Breaks}}<br>{{end}}{{end}}</div>{{if .More}}
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
