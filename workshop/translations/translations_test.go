package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// The Chinese pages have the form that the program needs, and sections that were made from today's English are held to
// it. Sections that are out of date are no failure: make docs-zh lists them.
func TestChinesePages(t *testing.T) {
	pages, err := load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if len(pages) < 8 {
		t.Errorf("%d pages in Chinese, and there were 8", len(pages))
	}
	for _, p := range pages {
		for _, line := range p.check(pages) {
			t.Error(line)
		}
		t.Logf("%s: %d of %d sections to translate", p.name, len(p.outdated()), len(p.english))
	}
}

const (
	englishText = "# Keys\n\nA run of 7 steps: see [data](data.md#kinds) and [away](https://a.b).\n\n## Table\n\n" +
		"| key | default | meaning |\n|---|---|---|\n| `a` | `1` | One. |\n| `b` | `2` | Two `x`. |\n\n" +
		"```sh\nmillrace plan # ask\n```\n\n    a line of\n"
	chineseText = "# 键\n\n[English](../run-yaml.md)\n\n7 步的训练：见[数据](data.md#种类)和[外部](https://a.b)。\n\n## 表\n\n" +
		"| 键 | 默认值 | 含义 |\n|---|---|---|\n| `a` | `1` | 一。 |\n| `b` | `2` | 二 `x`。 |\n\n" +
		"```sh\nmillrace plan # 问一问\n```\n\n    a line of\n"
)

// tree is a tree of two translations whose hashes are those of the English pages.
func tree(t *testing.T) fstest.MapFS {
	t.Helper()
	root := fstest.MapFS{}
	write := func(name, text string) { root[name] = &fstest.MapFile{Data: []byte(text)} }
	write("docs/run-yaml.md", englishText)
	write("docs/data.md", "# Data\n\n## Kinds\n\nKinds.\n")
	write("docs/zh/terms.md", "# 术语\n")
	write("docs/zh/run-yaml.md", "<!-- from docs/run-yaml.md sha256:0 -->\n"+chineseText)
	write("docs/zh/data.md", "<!-- from docs/data.md sha256:0 -->\n# 数据\n\n## 种类\n\n种类。见[术语](terms.md)。\n")
	for _, page := range []string{"docs/zh/run-yaml.md", "docs/zh/data.md"} {
		name, text, err := renew(root, page)
		if err != nil {
			t.Fatal(err)
		}
		write(name, text)
	}
	return root
}

// Each fault of a translation is found, and a change of an English page is no fault: it makes sections out of date.
func TestCheck(t *testing.T) {
	const zh, en = "docs/zh/run-yaml.md", "docs/run-yaml.md"
	for _, c := range []struct{ file, pattern, new, wrong, outdated string }{
		{zh, "问一问", "another comment", "", ""},
		{zh, "<!-- from", "<!-- of", "the first line must be", ""},
		{zh, "from docs/run", "from docs/walk", "it was made from docs/walk-yaml.md, which is not there", ""},
		{zh, "# 键\n", "\n# 键\n", "the second line must be the title", ""},
		{zh, "7 步", "8 步", `键: numbers: English has ["7"], and this page has ["8"]`, ""},
		{zh, "7 步", "七步", `键: numbers: English has ["7"]`, ""},
		{zh, "https://a.b", "https://a.c", "键: links:", ""},
		{zh, "#种类", "", "键: links:", ""},
		{zh, `\(data.md#种类`, "(../data.md#kinds", "../data.md#kinds is in Chinese, too: link to docs/zh/data.md", ""},
		{zh, "二 `x`", "二 `y`", `表: words in backquotes: English has ["x"], and this page has ["y"]`, ""},
		{zh, "\\| `b`.*\n", "", `表: rows of tables: English has ["4"], and this page has ["3"]`, ""},
		{zh, "\\| `b`", "| `c`", `there is no key "c": remove the row`, ""},
		{zh, "millrace plan", "millrace train", `表: code: English has ["millrace plan"]`, ""},
		{zh, "a line of", "another line", `表: code: English has ["a line of"]`, ""},
		{zh, "## 表", "### 表", "表: the heading has level 3, and 2 in English", ""},
		{zh, "## 表", "## 又一个\n\n## 表", "又一个: the line after the heading must be <!-- en:0 -->", ""},
		{zh, "## 表\n", "## 表\n\n", "表: the line after the heading must be <!-- en:0 -->", ""},
		{zh, "(?s)\n## 表.*", "\n", "is not that of the sections", ""},
		{en, "7 steps", "9 steps", "", `1, line 2, "键": line 1 of docs/run-yaml.md has changed, "Keys"`},
		{en, "7 steps", "7\nsteps", "", ""},
		{en, "millrace plan", "millrace train", "", `2, line 9, "表": line 5 of docs/run-yaml.md has changed, "Table"`},
		{en, "`2`", "`3`", "", `changed, "Table": the second column of b`},
		{en, "\\| `b`", "| `c` | `1` | x |\n| `b`", "", `changed, "Table": c is new`},
		{en, "## Table", "## New\n\nText.\n\n## Table", "", `new: line 5 of docs/run-yaml.md, "New"`},
		{en, "(?s)## Table.*", "", `there is no key "a": remove the row`, `2, line 9, "表": English has no such section`},
		{"docs/data.md", "Kinds\\.", "More.", "", ""},
	} {
		root := tree(t)
		at := regexp.MustCompile(c.pattern).FindIndex(root[c.file].Data)
		if at == nil {
			t.Fatalf("%s has no %q", c.file, c.pattern)
		}
		root[c.file].Data = slices.Replace(root[c.file].Data, at[0], at[1], []byte(c.new)...)
		var wrong, outdated []string
		pages, err := load(root)
		if err != nil {
			wrong = append(wrong, err.Error())
		}
		for _, p := range pages {
			wrong = append(wrong, p.check(pages)...)
			if p.name == zh && c.file != zh {
				outdated = p.outdated()
			}
		}
		for _, is := range []struct {
			lines []string
			want  string
		}{{wrong, c.wrong}, {outdated, c.outdated}} {
			got := strings.Join(is.lines, "\n")
			if (is.want == "") != (got == "") || !strings.Contains(got, is.want) {
				t.Errorf("%s, %q for %q: got %q, want %q", c.file, c.new, c.pattern, got, is.want)
			}
		}
	}
}

// Sections that are translated again get the hashes of today's English, and others keep theirs.
func TestDone(t *testing.T) {
	root := tree(t)
	const zh, en = "docs/zh/run-yaml.md", "docs/run-yaml.md"
	root[en].Data = []byte(strings.NewReplacer("7 steps", "9 steps", "One", "Ones").Replace(englishText))
	left := func() (numbers string) {
		p, err := read(root, zh)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range p.outdated() {
			numbers += line[:1]
		}
		return numbers
	}
	for _, c := range []struct{ done, left, wrong string }{
		{zh + ":", "12", ""},
		{zh + ":3", "12", "has sections 1 to 2, and no section \"3\""},
		{zh + ":a", "12", "no section \"a\""},
		{zh + ":2", "1", ""},
		{zh + ":1,2", "", ""},
		{zh, "", ""},
	} {
		_, text, err := renew(root, c.done)
		if err != nil {
			if c.wrong == "" || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: %v, want %q", c.done, err, c.wrong)
			}
			continue
		}
		root[zh].Data = []byte(text)
		if got := left(); got != c.left {
			t.Errorf("%s leaves %q, want %q", c.done, got, c.left)
		}
		if p, err := read(root, zh); err != nil || p.text() != text {
			t.Errorf("%s: a page that is read and written differs: %v", c.done, err)
		}
	}
	root[en].Data = append(root[en].Data, "\n## New\n\nText.\n"...)
	if _, _, err := renew(root, zh); err == nil || !strings.Contains(err.Error(), `has no section for "New", line 18`) {
		t.Error(err)
	}
	root[en].Data = []byte("# Keys\n")
	_, _, err := renew(root, zh)
	if err == nil || !strings.Contains(err.Error(), `"表" is no section of docs/run-yaml.md`) {
		t.Error(err)
	}
}
