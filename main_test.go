package millrace_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/millrace/millrace/internal/surroundings"
)

// The cache of these tests is their own: a machine that was probed plans in another way, and tokens stay out of it.
func TestMain(m *testing.M) {
	if err := surroundings.Leave(); err != nil {
		panic(err)
	}
	dir, err := os.MkdirTemp("", "millrace-cache-")
	if err == nil {
		err = os.Setenv("MILLRACE_CACHE", dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}
