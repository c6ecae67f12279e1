package stream_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/millrace/millrace/internal/surroundings"
)

// Under the race detector, which slows everything down, properties are tried less often unless -rapid.checks says otherwise.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if raceEnabled && !given {
		if err := flag.Set("rapid.checks", "15"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	os.Exit(surroundings.Run(m))
}
