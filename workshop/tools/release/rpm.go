package main

import (
	"bytes"
	"path"
	"strings"
	"time"

	"github.com/google/rpmpack"
)

// rpmArch has RPM's name of each architecture.
var rpmArch = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// rpmFile names the file of an RPM package, without a tilde: see debFile.
func (v version) rpmFile(arch string) string {
	return "millrace-" + strings.ReplaceAll(v.distribution(), "~", ".") + "-1." + rpmArch[arch] + ".rpm"
}

// makeRPM returns an RPM package. It owns the two directories that have its name, so that removing it removes them.
func makeRPM(arch string, v version, files []file, made time.Time) ([]byte, error) {
	r, err := rpmpack.NewRPM(rpmpack.RPMMetaData{
		Name: "millrace", Version: v.distribution(), Release: "1", Arch: rpmArch[arch],
		Summary: summary, Description: description, Licence: "Apache-2.0", URL: homepage,
		Packager: authors, Vendor: "The Millrace authors", Group: "Applications/Engineering",
		Epoch: rpmpack.NoEpoch, BuildHost: "localhost", BuildTime: made, Compressor: "gzip:9",
	})
	if err != nil {
		return nil, err
	}
	for _, d := range []struct {
		to   *rpmpack.Relations
		name string
	}{{&r.Requires, "glibc"}, {&r.Recommends, "ca-certificates"}} {
		if err := d.to.Set(d.name); err != nil {
			return nil, err
		}
	}
	add := func(f rpmpack.RPMFile) {
		f.Owner, f.Group, f.MTime = "root", "root", uint32(made.Unix())
		r.AddFile(f)
	}
	places := strings.NewReplacer("share/doc/millrace/LICENSE", "share/licenses/millrace/LICENSE",
		"share/doc/millrace/THIRD-PARTY-LICENSES", "share/licenses/millrace/THIRD-PARTY-LICENSES")
	const directory = 0o40755
	for _, name := range []string{"/usr/share/doc/millrace", "/usr/share/licenses/millrace"} {
		add(rpmpack.RPMFile{Name: name, Mode: directory})
	}
	for _, f := range files {
		to := rpmpack.RPMFile{Name: "/usr/" + places.Replace(f.path), Body: f.data, Mode: uint(mode(f))}
		switch path.Dir(to.Name) {
		case "/usr/share/licenses/millrace":
			to.Type = rpmpack.LicenceFile
		case "/usr/share/doc/millrace", "/usr/share/man/man1":
			to.Type = rpmpack.DocFile
		}
		add(to)
	}
	var b bytes.Buffer
	err = r.Write(&b)
	return b.Bytes(), err
}
