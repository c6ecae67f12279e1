package main

import (
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// mostCell bounds the characters of a value in a column: a path or a template can have many.
const mostCell = 48

// columns lays out rows of cells under headings. The first cell of a row says what the row has. Columns that a terminal
// of a width has no room for follow below, with the first one again; 0 is any width.
func columns(head []string, rows [][]string, width int) string {
	widths := make([]int, len(head))
	for _, row := range append([][]string{head}, rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	const gap = "  "
	for from := 1; from < len(head); {
		to, room := from, width-widths[0]
		for ; to < len(head) && (to == from || width == 0 || widths[to]+len(gap) <= room); to++ {
			room -= widths[to] + len(gap)
		}
		if from > 1 {
			b.WriteByte('\n')
		}
		for _, row := range append([][]string{head}, rows...) {
			line := padded(row[0], widths[0])
			for i := from; i < to; i++ {
				line += gap + padded(row[i], widths[i])
			}
			b.WriteString(strings.TrimRight(line, " ") + "\n")
		}
		from = to
	}
	return b.String()
}

func padded(text string, width int) string {
	return text + strings.Repeat(" ", max(width-utf8.RuneCountInString(text), 0))
}

// cellOf is a value in one line, and without its middle where it is long.
func cellOf(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > mostCell {
		const half = (mostCell - 3) / 2
		text = string(runes[:half]) + "..." + string(runes[len(runes)-half:])
	}
	return text
}

// shortNames are the names of directories without the one that all of them are in; within is that, empty where there is
// no such directory.
func shortNames(dirs []string) (short []string, within string) {
	cleaned := make([]string, len(dirs))
	for i, dir := range dirs {
		cleaned[i] = filepath.Clean(dir)
	}
	for within = filepath.Dir(cleaned[0]); within != "." && within != "/"; within = filepath.Dir(within) {
		inAll := true
		for _, dir := range cleaned {
			inAll = inAll && strings.HasPrefix(dir, within+"/")
		}
		if inAll {
			for _, dir := range cleaned {
				short = append(short, strings.TrimPrefix(dir, within+"/"))
			}
			return short, within
		}
	}
	return cleaned, ""
}
