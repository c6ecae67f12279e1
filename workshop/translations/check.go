package main

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

var (
	inlineCode  = regexp.MustCompile("`([^`]+)`")
	link        = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	number      = regexp.MustCompile(`[0-9]+(?:[.,][0-9]+)*`)
	commentary  = regexp.MustCompile(`(^|\s)#\s.*$`) // in a line of code
	description = regexp.MustCompile(`  .*$`)        // of a line of code in no language
	otherText   = regexp.MustCompile(`^\[(English|中文)\]\([^()\s]+\)$`)
)

// months are numbers in Chinese.
var months = strings.NewReplacer("January", "1", "February", "2", "March", "3", "April", "4", "May", "5", "June", "6",
	"July", "7", "August", "8", "September", "9", "October", "10", "November", "11", "December", "12")

// check lists what is wrong with a page, a line each. It asks of a section no more than its notes if the English one
// has changed, except for links, and for rows of run.yaml's keys, which must be keys.
func (p *page) check(pages []page) (found []string) {
	report := func(s *section, format string, args ...any) {
		found = append(found, fmt.Sprintf("%s:%d: %s: ", p.name, s.line, s.title)+fmt.Sprintf(format, args...))
	}
	for i := range p.sections {
		if s := &p.sections[i]; !s.noted {
			report(s, "the line after the heading must be <!-- en:0 -->: then make docs-zh DONE=%s:%d", p.name, i+1)
		}
		for _, m := range link.FindAllStringSubmatch(prose(p.sections[i].lines), -1) {
			if to := fileOf(p.name, m[1]); !isAway(m[1]) && to != p.original && translationOf(pages, to) != nil {
				report(&p.sections[i], "%s is in Chinese, too: link to %s", m[1], translationOf(pages, to).name)
			}
		}
	}
	if len(found) == 0 && p.hash != hashOfAll(p.sections) {
		found = append(found, fmt.Sprintf("%s:1: sha256:%s is not that of the sections: of %s the page had others. "+
			"If all of its sections are here, make docs-zh DONE=%s: notes that", p.name, p.hash, p.original, p.name))
	}
	for _, at := range p.pairs() {
		if at.chinese < 0 || at.english < 0 || !p.isCurrent(at.chinese, at.english) {
			continue
		}
		s, e := &p.sections[at.chinese], &p.english[at.english]
		if s.level != e.level {
			report(s, "the heading has level %d, and %d in English", s.level, e.level)
		}
		have, want := contentsOf(s, p.name, pages), contentsOf(e, p.original, pages)
		for _, kind := range slices.Sorted(maps.Keys(want)) {
			if less, more := differences(have[kind], want[kind]); len(less)+len(more) > 0 {
				report(s, "%s: English has %q, and this page has %q", kind, less, more)
			}
		}
	}
	if path.Base(p.original) == "run-yaml.md" {
		found = append(found, p.checkKeys()...)
	}
	return found
}

// contentsOf lists what a section of a file has that is the same in both languages.
func contentsOf(s *section, name string, pages []page) map[string][]string {
	text := prose(s.lines)
	c := map[string][]string{"code": codeLines(s.lines), "words in backquotes": unique(codeIn(text))}
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		if fileOf(name, m[1]) != glossary { // English pages do not link to it
			c["links"] = append(c["links"], destination(m[1], name, pages))
		}
	}
	slices.Sort(c["links"])
	words := link.ReplaceAllString(inlineCode.ReplaceAllString(s.title+"\n"+text, " "), "]")
	c["numbers"] = unique(number.FindAllString(months.Replace(words), -1))
	c["rows of tables"] = []string{fmt.Sprint(strings.Count("\n"+text, "\n|"))}
	return c
}

// destination names what a link of a file leads to, in both languages alike: the English file, and its section. A
// section of a translated page is named by its hash, as long as both texts have it.
func destination(target, name string, pages []page) string {
	if isAway(target) {
		return target
	}
	to, _, _ := strings.Cut(target, "#")
	anchor := strings.TrimPrefix(target[len(to):], "#")
	to = fileOf(name, target)
	for i := range pages {
		p := &pages[i]
		all := p.english
		switch {
		case to == p.name:
			all = p.sections
		case !p.isOf(to):
			continue
		}
		for j := range all {
			if made := all[j].made; all[j].anchor() == anchor && p.hasBoth(made) {
				return p.original + "#" + made
			}
		}
		return p.original
	}
	return to + "#" + anchor
}

// hasBoth reports whether both texts have the section with this hash.
func (p *page) hasBoth(made string) bool {
	isIt := func(s section) bool { return s.made == made }
	return slices.ContainsFunc(p.sections, isIt) && slices.ContainsFunc(p.english, isIt)
}

// checkKeys holds the rows of keys to those of the English page, which a test of runfile holds to the program's.
func (p *page) checkKeys() (found []string) {
	keys := map[string]bool{}
	for i := range p.english {
		for _, row := range rowsOf(p.english[i].lines) {
			keys[strings.Join(codeIn(row[0]), " ")] = true
		}
	}
	for i := range p.sections {
		for _, row := range rowsOf(p.sections[i].lines) {
			if key := strings.Join(codeIn(row[0]), " "); !keys[key] {
				found = append(found, fmt.Sprintf("%s: there is no key %q: remove the row", p.name, key))
			}
		}
	}
	return found
}

// rowsOf returns the cells of the rows of tables that begin with a word in backquotes.
func rowsOf(lines []string) (rows [][]string) {
	for _, line := range lines {
		if cells := strings.Split(line, "|"); strings.HasPrefix(line, "| `") && len(cells) > 3 {
			rows = append(rows, cells[1:])
		}
	}
	return rows
}

// codeIn returns the words in backquotes.
func codeIn(text string) (words []string) {
	for _, m := range inlineCode.FindAllStringSubmatch(text, -1) {
		words = append(words, strings.Join(strings.Fields(m[1]), " "))
	}
	return words
}

// codeLines returns the lines of code without comments, which may be translated, and without differences in space. In
// blocks of no language, words after two spaces describe what they follow, and are left out, too.
func codeLines(lines []string) (code []string) {
	fenced, described := false, false
	blank := true
	for _, line := range lines {
		indented := strings.HasPrefix(line, "    ") && blank && !fenced
		switch {
		case isFence(line):
			fenced, described = !fenced, strings.TrimSpace(line) == "```"
			code = append(code, strings.TrimSpace(line))
		case fenced || indented:
			line = commentary.ReplaceAllString(strings.TrimSpace(line), "")
			if described {
				line = description.ReplaceAllString(line, "")
			}
			code = append(code, strings.Join(strings.Fields(line), " "))
		}
		blank = strings.TrimSpace(line) == "" || indented
	}
	return code
}

// prose returns the lines that are not code, without a line that has the other language.
func prose(lines []string) string {
	var text []string
	fenced, blank := false, true
	for _, line := range lines {
		indented := strings.HasPrefix(line, "    ") && blank && !fenced
		switch {
		case isFence(line):
			fenced = !fenced
		case !fenced && !indented && !otherText.MatchString(line):
			text = append(text, line)
		}
		blank = strings.TrimSpace(line) == "" || indented
	}
	return strings.Join(text, "\n")
}

// differences returns what only the first list lacks, and what it has more.
func differences(have, want []string) (less, more []string) {
	if slices.Equal(have, want) {
		return nil, nil
	}
	count := map[string]int{}
	for _, w := range want {
		count[w]++
	}
	for _, h := range have {
		if count[h]--; count[h] < 0 {
			more = append(more, h)
		}
	}
	for _, w := range want {
		if count[w] > 0 {
			count[w]--
			less = append(less, w)
		}
	}
	if len(less)+len(more) == 0 {
		return want, have // the order differs
	}
	return less, more
}

func unique(words []string) []string {
	slices.Sort(words)
	return slices.Compact(words)
}

// isAway is true of links that leave the tree.
func isAway(target string) bool {
	return strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:")
}

// fileOf is the file that a link of a page leads to.
func fileOf(page, target string) string {
	file, _, _ := strings.Cut(target, "#")
	if file == "" {
		return page
	}
	return path.Join(path.Dir(page), file)
}
