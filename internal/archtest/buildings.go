package archtest

import (
	"io/fs"
	"slices"
)

// The tree is two buildings: what the program links and what users import, and the workshop. internal/ is of the first.

// ofTheTree are packages of internal/ that the program does not link: the floor, and the checks of the tree.
var ofTheTree = append([]string{"internal/archtest"}, bottom...)

// Buildings lists the packages of internal/ that the program does not link, a line each.
func Buildings(root fs.FS) ([]string, error) {
	packages, err := sourcesOf(root)
	if err != nil {
		return nil, err
	}
	var found []string
	linked := linkedBy(packages)
	for pkg := range packages {
		if within(pkg, "internal") && !linked[pkg] && !slices.Contains(ofTheTree, pkg) {
			found = append(found, pkg+": the program does not link it: it belongs to workshop/")
		}
	}
	slices.Sort(found)
	return found, nil
}
