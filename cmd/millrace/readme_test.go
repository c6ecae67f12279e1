package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	benchmarkLink = regexp.MustCompile(`\]\(([^)]*\.md)\)`)
	figure        = regexp.MustCompile(`\d+(,\d{3})*(\.\d+)?`)
)

// Every number in the result column of a table row that links to a page of benchmarks/ is on that page.
func TestFiguresComeFromBenchmarks(t *testing.T) {
	for _, page := range []string{"../../README.md", "../../benchmarks/README.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		checked := 0
		for line := range strings.Lines(string(text)) {
			cells := strings.Split(line, "|")
			link := benchmarkLink.FindStringSubmatch(line)
			if len(cells) < 5 || link == nil || strings.Contains(link[1], "gpucheck") {
				continue
			}
			source, err := os.ReadFile(filepath.Join(filepath.Dir(page), filepath.FromSlash(link[1])))
			if err != nil {
				t.Errorf("%s: %v", page, err)
				continue
			}
			for _, n := range figure.FindAllString(cells[2], -1) {
				checked++
				if !hasFigure(string(source), n) {
					t.Errorf("%s: %s is not in %s: %s", page, n, link[1], line)
				}
			}
		}
		if checked < 5 {
			t.Errorf("%s: only %d figures with a link to their page", page, checked)
		}
	}
}

// hasFigure reports whether a text has a number as a whole, not as a part of another one.
func hasFigure(text, number string) bool {
	whole := regexp.MustCompile(`(^|[^\d.,])` + regexp.QuoteMeta(number) + `([^\d]|$)`)
	return whole.MatchString(text)
}
