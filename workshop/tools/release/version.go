package main

import (
	"fmt"
	"strings"

	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

// version is a version of a Go module, in parts.
type version struct {
	core     string // 1.2.3
	pre      string // of a prerelease: alpha, beta or rc
	preCount string
	time     string // of a pseudo-version: that of the commit, as yyyymmddhhmmss; the version comes before core
	commit   string
}

// parseVersion takes v1.2.3, v1.2.3-rc.1 and pseudo-versions.
func parseVersion(v string) (version, error) {
	if module.IsPseudoVersion(v) {
		base := strings.TrimPrefix(semver.Canonical(v), "v")
		core, _, _ := strings.Cut(base, "-")
		at, err := module.PseudoVersionTime(v)
		if err != nil {
			return version{}, err
		}
		commit, err := module.PseudoVersionRev(v)
		return version{core: core, time: at.Format("20060102150405"), commit: commit}, err
	}
	core, pre, isPre := strings.Cut(strings.TrimPrefix(v, "v"), "-")
	parsed := version{core: core}
	if isPre {
		parsed.pre, parsed.preCount, _ = strings.Cut(pre, ".")
	}
	switch {
	case !semver.IsValid(v) || semver.Canonical(v) != v:
		return version{}, fmt.Errorf("%q is no version of a release: tag the commit v1.2.3 or v1.2.3-rc.1", v)
	case isPre && (pythonPre[parsed.pre] == "" || strings.Trim(parsed.preCount, "0123456789") != "" ||
		parsed.preCount == ""):
		return version{}, fmt.Errorf("%q: a prerelease is tagged as -alpha.N, -beta.N or -rc.N, since pip knows no other", v)
	}
	return parsed, nil
}

var pythonPre = map[string]string{"alpha": "a", "beta": "b", "rc": "rc"}

// python is the version in the spelling of PEP 440.
func (v version) python() string {
	if v.time != "" {
		return v.core + ".dev" + v.time + "+" + v.commit
	}
	return v.core + pythonPre[v.pre] + v.preCount
}

// distribution spells the version as dpkg and rpm do: a version comes after the same one with a tilde and more.
func (v version) distribution() string {
	switch {
	case v.time != "":
		return v.core + "~" + v.time + "+" + v.commit
	case v.pre != "":
		return v.core + "~" + v.pre + v.preCount
	}
	return v.core
}

// debFile names the file of a Debian package. GitHub makes a dot of a tilde in the name of a file of a release,
// and SHA256SUMS must have the name that people download.
func (v version) debFile(arch string) string {
	return "millrace_" + strings.ReplaceAll(v.distribution(), "~", ".") + "_" + arch + ".deb"
}
