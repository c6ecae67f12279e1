// Package surroundings makes the processes of tests independent of what they inherit.
//
// Tests begin in a shell, an editor, make -j or a container, and each of them hands something down: descriptors that are
// open, a umask, proxies, a locale, tokens and endpoints of a hub, settings of Go's runtime. Tests start processes of their own with
// limits and compare what these print, so they would pass for one person and fail for another.
//
// TestMain calls Run, or Leave before anything else, except in the processes that tests start. make surroundings runs quick tests
// where everything that can be inherited is odd.
package surroundings

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// left are the variables that the program, the libraries below it or the system's tools read. A test that wants one sets it.
var left = []string{
	"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "COLUMNS", "LINES", "NO_COLOR",
	"HF_*", "HUGGING_FACE_HUB_TOKEN", "XDG_*", "MILLRACE_CACHE", "MILLRACE_FOLLOW_LINKS",
	"OMPI_*", "PMIX_*", "PMI_*", "SLURM_*", "GOGC", "GOMEMLIMIT", "GOTRACEBACK", "SOURCE_DATE_EPOCH",
}

// plain matches the names of directories for temporary files that tests may compare, put into settings and give to shells.
var plain = regexp.MustCompile(`^/?[A-Za-z0-9._/-]{1,80}$`)

// Leave closes inherited descriptors for processes that this one starts, takes the usual umask, and unsets what the program reads
// of the environment. Variables that choose what a test runs stay. A directory for temporary files with a long or odd name makes way for
// /tmp.
func Leave() error {
	closeForChildren()
	usualUmask()
	if dir := os.TempDir(); runtime.GOOS != "windows" && !plain.MatchString(dir) {
		if err := os.Setenv("TMPDIR", "/tmp"); err != nil {
			return err
		}
		onDisk = "/tmp"
	}
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		for _, pattern := range left {
			if match, _ := filepath.Match(pattern, strings.ToUpper(name)); match {
				if err := os.Unsetenv(name); err != nil {
					return err
				}
				break
			}
		}
	}
	return nil
}
