//go:build !(linux && (amd64 || arm64)) || nogpu

package driver

import (
	"errors"
	"strings"
	"testing"
)

func TestLoad(t *testing.T) {
	api, err := Load()
	if api != nil || !errors.Is(err, ErrMissing) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v: is not one line that says that there is no driver", err)
	}
}
