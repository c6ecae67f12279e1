package main

import (
	"runtime"
	"runtime/debug"
)

type versionCmd struct {
	JSON bool `help:"Print it as JSON."`
}

func (*versionCmd) Help() string {
	return `The module version or the commit that the program was built from, and the Go release. Put it into bug
reports:

  millrace version`
}

// build describes the binary.
type build struct {
	Version  string `json:"version"` // "(devel)" for one built in a checkout
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified"` // the checkout had changes
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// version is for those who build from sources without git: go build -ldflags "-X main.version=v1.2.3".
var version string

// thisBuild is the build that runs.
func thisBuild() build {
	v := build{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "" {
			v.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Commit = s.Value
			case "vcs.modified":
				v.Modified = s.Value == "true"
			}
		}
	}
	if version != "" {
		v.Version = version
	}
	return v
}

// Run prints the build.
func (c *versionCmd) Run(p *program) error {
	v := thisBuild()
	if c.JSON {
		return p.printJSON(v)
	}
	commit := ""
	if v.Commit != "" {
		commit = ", commit " + v.Commit
	}
	if v.Modified {
		commit += " with changes"
	}
	return p.printf("millrace %s%s, %s, %s\n", v.Version, commit, v.Go, v.Platform)
}
