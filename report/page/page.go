// Package page has the page that shows runs: for [github.com/millrace/millrace/serve], which answers its requests, and
// frozen in one file, which stands alone.
//
//   - [Files] are the page's, and [Names] lists them.
//   - [WriteFrozen] writes the page with the answers to its requests in it.
//
// Invariants: a frozen page loads nothing, and its Content-Security-Policy lets a browser run no script and use no
// style but its own, whatever text the answers have. The same answers give the same bytes.
package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"io/fs"
	"regexp"
)

// Files has index.html, and what it loads by relative names.
//
//go:embed index.html *.css *.js LICENSE.uPlot
var Files embed.FS

// Names lists the files, other than index.html.
func Names() (names []string) {
	entries, err := fs.ReadDir(Files, ".")
	if err != nil {
		panic(err) // they are part of the program
	}
	for _, e := range entries {
		if e.Name() != "index.html" {
			names = append(names, e.Name())
		}
	}
	return names
}

// The parts of index.html that have another form in a frozen page.
var (
	charset = []byte(`<meta charset="utf-8">`)
	frozen  = []byte(`<script type="application/json" id="frozen"></script>`)
	bodyEnd = []byte(`</body>`)
	style   = regexp.MustCompile(`<link rel="stylesheet" href="([^"]*)">`)
	script  = regexp.MustCompile(`[ \t]*<script src="([^"]*)" defer></script>\n?`)
)

// WriteFrozen writes the page with answers, JSON by the path of the request without its query. With refreshSec above 0
// a browser loads the page again after as many seconds.
func WriteFrozen(w io.Writer, answers map[string]json.RawMessage, refreshSec int) error {
	index, err := Files.ReadFile("index.html")
	if err != nil {
		return err
	}
	doc, err := json.Marshal(answers) // which spells out what HTML reads as marks
	if err != nil {
		return err
	}
	var scripts, scriptSums, styleSums []byte
	inlined := func(pattern *regexp.Regexp, with func(text []byte) []byte) {
		index = pattern.ReplaceAllFunc(index, func(tag []byte) []byte {
			text, errRead := Files.ReadFile(string(pattern.FindSubmatch(tag)[1]))
			if errRead != nil {
				err = errRead
			}
			return with(text)
		})
	}
	inlined(style, func(text []byte) []byte {
		styleSums = fmt.Appendf(styleSums, " '%s'", sumOf(text))
		return fmt.Appendf(nil, "<style>%s</style>", text)
	})
	inlined(script, func(text []byte) []byte {
		scriptSums = fmt.Appendf(scriptSums, " '%s'", sumOf(text))
		scripts = fmt.Appendf(scripts, "<script>%s</script>\n", text)
		return nil
	})
	if err != nil {
		return err
	}
	policy := fmt.Sprintf("default-src 'none'; script-src%s; style-src%s; img-src data:; base-uri 'none'; "+
		"form-action 'none'", scriptSums, styleSums)
	head := fmt.Appendf(nil, "%s\n<meta http-equiv=\"Content-Security-Policy\" content=\"%s\">", charset,
		html.EscapeString(policy))
	if refreshSec > 0 {
		head = fmt.Appendf(head, "\n<meta http-equiv=\"refresh\" content=\"%d\">", refreshSec)
	}
	for _, part := range []struct{ from, to []byte }{{charset, head},
		{frozen, fmt.Appendf(nil, `<script type="application/json" id="frozen">%s</script>`, doc)},
		{bodyEnd, append(scripts, bodyEnd...)}} {
		if bytes.Count(index, part.from) != 1 {
			return fmt.Errorf("the page does not have %s once: report this", part.from)
		}
		index = bytes.Replace(index, part.from, part.to, 1)
	}
	_, err = w.Write(index)
	return err
}

// sumOf is a text's checksum as a Content-Security-Policy has it.
func sumOf(text []byte) string {
	sum := sha256.Sum256(text)
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}
