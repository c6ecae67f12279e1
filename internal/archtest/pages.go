package archtest

import (
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
)

var (
	linkTo    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	heading   = regexp.MustCompile(`^(#+) +(.*)$`)
	inAnchors = regexp.MustCompile(`[^\p{L}\p{N} _-]`) // what GitHub leaves out of the anchor of a heading
)

// Pages lists what is wrong with the Markdown files below root, a line each: links to files and headings that are not
// there, and headings without a text, which a merge leaves.
func Pages(root fs.FS) (found []string, err error) {
	anchors := map[string]map[string]bool{} // of each page
	links := map[string][]string{}          // of each page
	err = walkProse(root, func(name string, text []byte) error {
		if path.Ext(name) != ".md" {
			return nil
		}
		anchors[name] = map[string]bool{}
		fenced, above := false, 0 // the level of the heading above, if no text has followed
		for n, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				fenced = !fenced
			}
			at := heading.FindStringSubmatch(line)
			switch {
			case fenced || at == nil:
				if strings.TrimSpace(line) != "" {
					above = 0
				}
			default:
				level := len(at[1])
				if above >= level {
					found = append(found, fmt.Sprintf("%s:%d: the heading above has no text", name, n+1))
				}
				above = level
				anchor := strings.ReplaceAll(inAnchors.ReplaceAllString(strings.ToLower(at[2]), ""), " ", "-")
				anchors[name][anchor] = true
			}
			if !fenced {
				for _, m := range linkTo.FindAllStringSubmatch(line, -1) {
					links[name] = append(links[name], m[1])
				}
			}
		}
		return nil
	})
	for name, targets := range links {
		for _, target := range targets {
			to, err := url.Parse(target)
			if err != nil || to.IsAbs() || strings.HasPrefix(target, "//") {
				continue
			}
			page := name
			if to.Path != "" {
				page = path.Join(path.Dir(name), to.Path)
			}
			if _, err := fs.Stat(root, page); err != nil {
				found = append(found, fmt.Sprintf("%s: there is no %s", name, target))
			} else if of, read := anchors[page]; read && to.Fragment != "" && !of[to.Fragment] {
				found = append(found, fmt.Sprintf("%s: %s has no heading for %s", name, page, target))
			}
		}
	}
	slices.Sort(found)
	return found, err
}
