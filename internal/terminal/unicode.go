package terminal

import (
	"os"
	"strings"
)

// ShowsBlocks reports whether what shows the program's output has the block elements of Unicode, as far as the
// environment says: the locale's encoding is UTF-8, and the terminal is not a dumb one, nor the console of Linux, whose
// fonts lack most of them.
func ShowsBlocks() bool {
	if term := os.Getenv("TERM"); term == "dumb" || term == "linux" {
		return false
	}
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale := strings.ToLower(os.Getenv(name)); locale != "" {
			return strings.HasSuffix(locale, "utf-8") || strings.HasSuffix(locale, "utf8")
		}
	}
	return false
}
