package terminal

import (
	"io"
	"io/fs"
	"os"
)

// Is reports whether a writer is a terminal on which bars can be drawn.
func Is(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&fs.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}
