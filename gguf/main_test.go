package gguf

import (
	"os"
	"testing"

	"github.com/millrace/millrace/internal/surroundings"
)

// Exports sync each file, and the tests make many.
func TestMain(m *testing.M) { os.Exit(surroundings.Run(m)) }
