package main

import "strings"

// fuzzers lists the fuzzers of all packages, as package and name.
func fuzzers(packages []*pkg) []string {
	var found []string
	for _, p := range packages {
		for _, f := range p.tests {
			for _, name := range f.names {
				if strings.HasPrefix(name, "Fuzz") {
					found = append(found, "./"+p.dir+":"+name)
				}
			}
		}
	}
	return found
}
