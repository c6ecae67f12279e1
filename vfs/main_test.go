package vfs

import (
	"os"
	"testing"

	"github.com/millrace/millrace/internal/surroundings"
)

func TestMain(m *testing.M) {
	if err := surroundings.Leave(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
