package main

import (
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// pair is a Chinese section and the English one that it belongs to. One of the two may be -1, which is no section.
type pair struct{ chinese, english int }

// pairs aligns both texts: sections that were made from an English one belong to it, in order, and those between them
// belong to each other one by one.
func (p *page) pairs() []pair {
	n, m := len(p.sections), len(p.english)
	same := make([][]int, n+1) // the most sections from i and j on that keep their hashes
	for i := n; i >= 0; i-- {
		same[i] = make([]int, m+1)
		for j := m - 1; j >= 0 && i < n; j-- {
			if p.isCurrent(i, j) {
				same[i][j] = same[i+1][j+1] + 1
			} else {
				same[i][j] = max(same[i+1][j], same[i][j+1])
			}
		}
	}
	var all []pair
	from := pair{}
	between := func(i, j int) {
		for from.chinese < i || from.english < j {
			next := pair{-1, -1}
			if from.chinese < i {
				next.chinese = from.chinese
				from.chinese++
			}
			if from.english < j {
				next.english = from.english
				from.english++
			}
			all = append(all, next)
		}
	}
	for i, j := 0, 0; i < n && j < m; {
		switch {
		case p.isCurrent(i, j):
			between(i, j)
			all = append(all, pair{i, j})
			i, j = i+1, j+1
			from = pair{i, j}
		case same[i+1][j] >= same[i][j+1]:
			i++
		default:
			j++
		}
	}
	between(n, m)
	return all
}

// isCurrent reports whether a section was made from the English one as it is now.
func (p *page) isCurrent(chinese, english int) bool {
	return p.sections[chinese].made == p.english[english].made
}

// outdated lists the sections to translate, a line each, with their numbers for -done. Of a section with rows of keys
// it also names those that the page does not have, and those whose defaults differ.
func (p *page) outdated() (lines []string) {
	for _, at := range p.pairs() {
		switch {
		case at.english < 0:
			s := p.sections[at.chinese]
			lines = append(lines, fmt.Sprintf("%d, line %d, %q: English has no such section any more",
				at.chinese+1, s.line, s.title))
		case at.chinese < 0:
			e := p.english[at.english]
			lines = append(lines, fmt.Sprintf("new: line %d of %s, %q", e.line, p.original, e.title))
		case !p.isCurrent(at.chinese, at.english):
			s, e := p.sections[at.chinese], p.english[at.english]
			lines = append(lines, fmt.Sprintf("%d, line %d, %q: line %d of %s has changed, %q%s",
				at.chinese+1, s.line, s.title, e.line, p.original, e.title, differingKeys(s, e)))
		}
	}
	return lines
}

// differingKeys names the rows of keys that differ between a section and its original.
func differingKeys(s, e section) string {
	have, want := map[string][]string{}, map[string][]string{}
	for _, row := range rowsOf(s.lines) {
		have[strings.Join(codeIn(row[0]), " ")] = unique(codeIn(row[1]))
	}
	var names []string
	for _, row := range rowsOf(e.lines) {
		key := strings.Join(codeIn(row[0]), " ")
		want[key] = unique(codeIn(row[1]))
		switch values, there := have[key]; {
		case key == "":
		case !there:
			names = append(names, key+" is new")
		case !slices.Equal(values, want[key]):
			names = append(names, "the second column of "+key)
		}
	}
	for key := range have {
		if _, there := want[key]; !there {
			names = append(names, key+" is no more")
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return ": " + strings.Join(names, ", ")
}

// renew returns a page with new hashes: of all sections, or of those that are numbered after a colon. Without a number
// after it, only the first line is new.
func renew(root fs.FS, done string) (name, text string, err error) {
	name, list, some := strings.Cut(done, ":")
	p, err := read(root, name)
	if err != nil {
		return "", "", err
	}
	var numbers []int
	for _, number := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) {
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > len(p.sections) {
			return "", "", fmt.Errorf("%s has sections 1 to %d, and no section %q", name, len(p.sections), number)
		}
		numbers = append(numbers, n)
	}
	for _, at := range p.pairs() {
		switch {
		case at.chinese >= 0 && some && !slices.Contains(numbers, at.chinese+1):
		case at.chinese >= 0 && at.english >= 0:
			p.sections[at.chinese].made = p.english[at.english].made
		case at.chinese >= 0:
			s := p.sections[at.chinese]
			return "", "", fmt.Errorf("%s:%d: %q is no section of %s any more: remove it", name, s.line, s.title, p.original)
		case !some:
			e := p.english[at.english]
			return "", "", fmt.Errorf("%s has no section for %q, line %d of %s: add it", name, e.title, e.line, p.original)
		}
	}
	return name, p.text(), nil
}

// text is the page with its notes.
func (p *page) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "<!-- from %s sha256:%s -->\n", p.original, hashOfAll(p.sections))
	for i := range p.sections {
		s := &p.sections[i]
		fmt.Fprintf(&b, "%s %s\n<!-- en:%s -->\n", strings.Repeat("#", s.level), s.title, s.made)
		b.WriteString(strings.Join(s.lines, "\n"))
		if i < len(p.sections)-1 {
			b.WriteString("\n")
		}
	}
	return b.String()
}
