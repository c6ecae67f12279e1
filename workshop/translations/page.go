package main

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

const (
	chinese  = "docs/zh"
	glossary = "docs/zh/terms.md" // of the Chinese pages alone
)

var (
	headingLine = regexp.MustCompile(`^(#+) +(.*)$`)
	pageNote    = regexp.MustCompile(`^<!-- from (\S+\.md) sha256:([0-9a-f]+) -->$`)
	sectionNote = regexp.MustCompile(`^<!-- en:([0-9a-f]+) -->$`)
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`) // what GitHub leaves out of the anchor of a heading
)

// section is a heading with the lines up to the next one.
type section struct {
	line  int // of the heading, from 1 on
	level int
	title string
	lines []string // after the heading, without the note
	made  string   // hash of the English section that it was made from; of English sections their own
	noted bool     // a line after the heading has made
}

// anchor returns the fragment of links to the section.
func (s *section) anchor() string {
	return strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(s.title), ""), " ", "-")
}

// page is a translation, with the sections of both texts.
type page struct {
	name, original string
	hash           string // of the hashes of the sections that it was made from, as the first line has it
	sections       []section
	english        []section
}

// sectionsOf cuts a page at its headings. Lines before the first heading belong to none.
func sectionsOf(text string) []section {
	var all []section
	fenced := false
	for i, line := range strings.Split(text, "\n") {
		if isFence(line) {
			fenced = !fenced
		}
		at := headingLine.FindStringSubmatch(line)
		switch last := len(all) - 1; {
		case at != nil && !fenced:
			all = append(all, section{line: i + 1, level: len(at[1]), title: at[2]})
		case last < 0:
		case len(all[last].lines) == 0 && sectionNote.MatchString(line):
			all[last].made, all[last].noted = sectionNote.FindStringSubmatch(line)[1], true
		default:
			all[last].lines = append(all[last].lines, line)
		}
	}
	return all
}

func isFence(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "```") }

// hashOf is a hash of words: where the lines break does not matter.
func hashOf(text string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(strings.Fields(text), " "))))[:12]
}

// hashOfAll is the hash of a page that was made from sections with these hashes.
func hashOfAll(sections []section) string {
	var all []string
	for i := range sections {
		all = append(all, sections[i].made)
	}
	return hashOf(strings.Join(all, " "))
}

// load reads the translations below root, and the pages that they were made from.
func load(root fs.FS) ([]page, error) {
	names, err := fs.Glob(root, chinese+"/*.md")
	if err != nil {
		return nil, err
	}
	var pages []page
	for _, name := range names {
		if name == glossary {
			continue
		}
		p, err := read(root, name)
		if err != nil {
			return nil, err
		}
		pages = append(pages, p)
	}
	return pages, nil
}

// read reads a translation and its original.
func read(root fs.FS, name string) (page, error) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return page{}, err
	}
	first, rest, _ := strings.Cut(string(text), "\n")
	note := pageNote.FindStringSubmatch(first)
	if note == nil {
		return page{}, fmt.Errorf("%s: the first line must be <!-- from PAGE.md sha256:0 -->, with the English page",
			name)
	}
	english, err := fs.ReadFile(root, note[1])
	if err != nil {
		return page{}, fmt.Errorf("%s: it was made from %s, which is not there: name the page that has its text",
			name, note[1])
	}
	p := page{name: name, original: note[1], hash: note[2]}
	p.sections, p.english = sectionsOf("\n"+rest), sectionsOf(string(english))
	if len(p.sections) == 0 || p.sections[0].line != 2 {
		return page{}, fmt.Errorf("%s: the second line must be the title", name)
	}
	for i := range p.english {
		s := &p.english[i]
		s.made = hashOf(s.title + "\n" + strings.Join(s.lines, "\n"))
	}
	return p, nil
}

// isOf reports whether the page was made from a file, or from the README of a folder.
func (p *page) isOf(original string) bool {
	return p.original == original || p.original == path.Join(original, "README.md")
}

// translationOf is the page that was made from a file or from the README of a folder; nil if no page was.
func translationOf(pages []page, original string) *page {
	if i := slices.IndexFunc(pages, func(p page) bool { return p.isOf(original) }); i >= 0 {
		return &pages[i]
	}
	return nil
}
