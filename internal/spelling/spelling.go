// Package spelling finds the name that a user meant by a name that does not exist, and writes lists and numbers of
// things.
package spelling

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// mostMeant bounds the names that are suggested.
const mostMeant = 6

// Meant are the known names that a word may stand for, nearest first: those that differ in case and in dashes only,
// else those that have the word in them, else those that a few changed letters make of it.
func Meant(word string, known []string) []string {
	folded := fold(word)
	if folded == "" {
		return nil
	}
	first := func(names []string) []string { return names[:min(len(names), mostMeant)] }
	var same, longer, near []string
	for _, name := range known {
		switch f := fold(name); {
		case f == folded:
			same = append(same, name)
		case len(folded) > 1 && strings.Contains(f, folded):
			longer = append(longer, name)
		}
	}
	if len(same) > 0 {
		return first(same)
	}
	if len(longer) > 0 {
		return first(longer)
	}
	most := max(1, len(folded)/4)
	for _, name := range known {
		if len(folded) > 2 && Distance(folded, fold(name)) <= most {
			near = append(near, name)
		}
	}
	slices.SortStableFunc(near, func(a, b string) int { return cmp.Compare(Distance(folded, fold(a)), Distance(folded, fold(b))) })
	return first(near)
}

// Question asks for what was meant, as in ": did you mean train?"; it is empty where nothing is near.
func Question(word string, known []string) string {
	meant := Meant(word, known)
	if len(meant) == 0 {
		return ""
	}
	return ": did you mean " + Or(meant) + "?"
}

// Or lists names as alternatives: "a, b or c".
func Or(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// Count is a number of things: "1 block", "2 blocks", "3 micro-batches".
func Count(n int, noun string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(noun, "ch"):
		noun += "es"
	default:
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

func fold(name string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || r == ' ' {
			return -1
		}
		return r
	}, strings.ToLower(name))
}

// Distance is Levenshtein's, of the first bytes of two names.
func Distance(a, b string) int {
	const most = 100
	a, b = a[:min(len(a), most)], b[:min(len(b), most)]
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
