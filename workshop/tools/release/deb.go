package main

import (
	"bytes"
	"crypto/md5"
	"fmt"
	"io"
	"path"
	"strings"
	"time"
)

// What packages say of the program.
const (
	authors  = "The Millrace authors <millrace@users.noreply.github.com>"
	homepage = "https://github.com/millrace/millrace"
	summary  = "trains language models that do not fit on the device that computes"

	description = `Weights, gradients and optimizer state live in host memory and on disk. The
weights of each layer stream to the GPU, every micro-batch of the step uses
them, and gradients stream back. All parameters are trained, in full
precision.`
)

const control = `Package: millrace
Version: %s
Architecture: %s
Maintainer: ` + authors + `
Installed-Size: %d
Depends: libc6
Recommends: ca-certificates
Section: science
Priority: optional
Homepage: ` + homepage + `
Description: ` + summary + `
 %s
`

const copyright = `Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: millrace
Source: https://github.com/millrace/millrace

Files: *
Copyright: 2026 The Millrace authors
License: Apache-2.0
 On Debian systems the text of this license is in
 /usr/share/common-licenses/Apache-2.0. The licenses of what is linked are in
 THIRD-PARTY-LICENSES.gz.
`

const changelog = `millrace (%s) unstable; urgency=medium

  * What changed is in NEWS.gz.

 -- ` + authors + `  %s
`

// makeDeb returns a Debian package: deb(5). Its files are in the places that Debian's policy names, and documents and
// man pages are compressed.
func makeDeb(arch string, v version, files []file, made time.Time) ([]byte, error) {
	places := strings.NewReplacer("share/zsh/site-functions/", "share/zsh/vendor-completions/", "CHANGELOG.md", "NEWS")
	installed := []file{{path: "usr/share/doc/millrace/copyright", data: []byte(copyright)}}
	date := made.UTC().Format(time.RFC1123Z)
	changes := file{path: "share/doc/millrace/changelog", data: fmt.Appendf(nil, changelog, v.distribution(), date)}
	for _, f := range append([]file{changes}, files...) {
		f.path = "usr/" + places.Replace(f.path)
		switch {
		case path.Base(f.path) == "LICENSE": // the system has it
			continue
		case strings.HasPrefix(f.path, "usr/share/man/"), strings.HasPrefix(f.path, "usr/share/doc/"):
			var b bytes.Buffer
			if err := gzipped(&b, func(w io.Writer) error { _, err := w.Write(f.data); return err }); err != nil {
				return nil, err
			}
			f.path, f.data = f.path+".gz", b.Bytes()
		}
		installed = append(installed, f)
	}
	var sums strings.Builder
	kib := 0
	for _, f := range sorted(installed) {
		fmt.Fprintf(&sums, "%x  %s\n", md5.Sum(f.data), f.path)
		kib += (len(f.data) + 1023) / 1024
	}
	text := strings.ReplaceAll(description, "\n", "\n ")
	about := []file{
		{path: "control", data: fmt.Appendf(nil, control, v.distribution(), arch, kib, text)},
		{path: "md5sums", data: []byte(sums.String())},
	}
	controlTar, err := tarGzip("./", about, made)
	if err != nil {
		return nil, err
	}
	dataTar, err := tarGzip("./", installed, made)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString("!<arch>\n")
	for _, member := range []file{
		{path: "debian-binary", data: []byte("2.0\n")},
		{path: "control.tar.gz", data: controlTar},
		{path: "data.tar.gz", data: dataTar},
	} {
		fmt.Fprintf(&b, "%-16s%-12d%-6d%-6d%-8o%-10d`\n", member.path, made.Unix(), 0, 0, 0o100644, len(member.data))
		b.Write(member.data)
		if len(member.data)%2 == 1 {
			b.WriteByte('\n')
		}
	}
	return b.Bytes(), nil
}
