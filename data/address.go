package data

import (
	"regexp"
	"strings"

	"github.com/millrace/millrace/hf/hub"
)

// hubPage matches addresses of data sets of the hub, with what comes after their name.
var hubPage = regexp.MustCompile(`^(?:hf://|(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/)datasets/([^/]+/[^/@?#]+)(?:@([^/]+))?/?(?:(?:resolve|blob|tree|raw)/([^/]+))?/?([^?#]*)`)

// checkAddress refuses paths that are addresses, and says what to write.
func (s Source) checkAddress() error {
	if m := hubPage.FindStringSubmatch(s.Path); m != nil {
		if _, ok := hub.Parse(hub.Dataset, m[1]); ok {
			advice := "path: " + m[1]
			if revision := m[2] + m[3]; revision != "" && revision != hub.Main {
				advice += ", revision: " + revision
			}
			if m[4] != "" && m[4] != "viewer" {
				advice += ", glob: " + shown(m[4])
			}
			return s.fail("addresses are not read; a data set of the hub is named by its id: write %s", advice)
		}
	}
	scheme, rest, ok := strings.Cut(s.Path, "://")
	switch {
	case !ok || len(scheme) < 2 || strings.ContainsAny(scheme, `/\`):
		return nil
	case strings.EqualFold(scheme, "file"):
		return s.fail("addresses are not read: write the path, %s", shown(rest))
	}
	return s.fail("addresses such as %s:// are not read: copy the files here and name their path, or name a data set of the hub as ORG/NAME", scheme)
}
