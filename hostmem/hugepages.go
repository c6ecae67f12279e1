package hostmem

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

// HugePages returns the resident bytes of all mappings of this process that ask for huge pages, as large regions do,
// and how many of them are on huge pages. The error is not nil where the system does not tell (other systems than
// Linux). The kernel goes through the tables of all pages for it.
func HugePages() (huge, asked int64, err error) { return hugePages(os.DirFS("/")) }

func hugePages(root fs.FS) (huge, asked int64, err error) {
	text, err := fs.ReadFile(root, "proc/self/smaps")
	if err != nil {
		return 0, 0, err
	}
	var rss, anon int64 // of a mapping, whose flags come last
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "Rss:":
			rss, err = strconv.ParseInt(f[1], 10, 64)
		case "AnonHugePages:":
			anon, err = strconv.ParseInt(f[1], 10, 64)
		case "VmFlags:":
			if slices.Contains(f, "hg") {
				huge, asked = huge+anon<<10, asked+rss<<10
			}
		}
		if err != nil {
			return 0, 0, fmt.Errorf("/proc/self/smaps: %w", err)
		}
	}
	return huge, asked, nil
}

// hugePagesFile says whether there are huge pages for memory that asks.
const hugePagesFile = "sys/kernel/mm/transparent_hugepage/enabled"

// HugePagesOff is why large regions get no huge pages on this machine, and what to do, in one line for people; it is
// empty where they do, or where the system does not tell.
func HugePagesOff() string { return hugePagesOff(os.DirFS("/")) }

func hugePagesOff(root fs.FS) string {
	text, err := fs.ReadFile(root, hugePagesFile)
	if err != nil || !strings.Contains(string(text), "[never]") {
		return ""
	}
	return "2 MiB pages are off, so the host's updates are slower: echo madvise > /" + hugePagesFile
}
