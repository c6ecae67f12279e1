package plan

import (
	"os"
	"runtime/debug"
	"testing"
)

// Searches make much garbage in a small heap, and millrace plan has it collected as seldom.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}
