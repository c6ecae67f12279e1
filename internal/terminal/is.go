package terminal

import (
	"io"
	"os"

	"golang.org/x/term"
)

// Is reports whether a reader or a writer is a terminal. A device such as /dev/null is not.
func Is(file any) bool {
	f, ok := file.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// CanDraw reports whether a writer is a terminal that can draw bars.
func CanDraw(w io.Writer) bool { return Is(w) && os.Getenv("TERM") != "dumb" }

// CanColor reports whether a writer is a terminal that can show colors, and the user has nothing against them
// (no-color.org).
func CanColor(w io.Writer) bool { return CanDraw(w) && os.Getenv("NO_COLOR") == "" }
